"""The conformance suite over each sink whose package verl's interpreter has, as the package reads its batches."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch  # type: ignore[import-not-found]
from skyrl.train.dataset.preprocess import (  # type: ignore[import-not-found]
    convert_prompts_responses_to_batch_tensors,
)
from skyrl.train.generators.base import TrajectoryID  # type: ignore[import-not-found]
from skyrl.train.utils.trainer_utils import validate_generator_output  # type: ignore[import-not-found]

STAND_INS = {name: MagicMock() for name in ("vllm", "vllm.inputs", "vllm.utils")}
"""See check_openrlhf.py."""
sys.modules |= STAND_INS

from openrlhf.trainer.ppo_utils.samples_generator import SamplesGenerator  # type: ignore[import-not-found]  # noqa: E402

for name in STAND_INS:
    sys.modules.pop(name, None)

from sandgate.trainer.credit.lengths import Lengths  # noqa: E402
from sandgate.trainer.credit.reasons import CreditRules, Truncated  # noqa: E402
from sandgate.trainer.openrlhf import OpenRLHFSink  # noqa: E402
from sandgate.trainer.skyrl import SkyRLSink  # noqa: E402
from sandgate.trainer.tinker import TinkerSink  # noqa: E402
from sandgate.trainer.verl.rows import VERSIONS  # noqa: E402
from sandgate.trainer.verl.sink import VerlSink  # noqa: E402
from tests.trainer.conformance import Reading, Taught, check_mutants  # noqa: E402


def read_tinker(batch: Sequence[Any]) -> list[Taught]:
    """Context has no advantage."""
    found = []
    for datum in batch:
        told = {name: value.to_numpy() for name, value in datum.loss_fn_inputs.items()}
        ids = [*datum.model_input.to_ints(), int(told["target_tokens"][-1])]
        mask = [0, *told["mask"].astype(int).tolist()]
        (score,) = {float(one) for one, bit in zip(told["advantages"], mask[1:], strict=True) if bit}
        found.append(Taught(ids, mask, [0.0, *told["logprobs"].tolist()], score=score))
    return found


def read_skyrl(batch: dict[str, Any]) -> list[Taught]:
    """As its trainer does: checked, then padded."""
    steps = batch["is_last_step"] is not None
    asked = len({(one.instance_id, one.repetition_id) for one in batch["trajectory_ids"]})
    validate_generator_output(asked, batch, step_wise=steps)
    rewards = [[0.0] * len(ids) for ids in batch["response_ids"]]
    sequences, attention, response, _, loss, logprobs, _ = convert_prompts_responses_to_batch_tensors(
        SimpleNamespace(pad_token_id=0), batch["prompt_token_ids"], batch["response_ids"], rewards,
        batch["loss_masks"], batch["rollout_logprobs"],
    )  # fmt: skip
    last = batch["is_last_step"] or [True] * len(rewards)
    found = []
    for at, score in enumerate(batch["rewards"]):
        ids = sequences[at][attention[at].bool()].tolist()
        size = int(response[at].sum())
        before, bits = [0] * (len(ids) - size), response[at].bool()
        found.append(
            Taught(
                ids,
                before + loss[at][bits].int().tolist(),
                [0.0] * len(before) + logprobs[at][bits].tolist(),
                score=score if last[at] else None,
            )
        )
    return found


def read_openrlhf(batch: Sequence[Sequence[dict[str, Any]]]) -> list[Taught]:
    """As the experiences that its trainer makes of them."""
    found = []
    for response in (one for group in batch for one in group):
        made = SamplesGenerator._process_response_into_experience(SimpleNamespace(), response, max_len=2048)
        mask = [0, *made.action_mask[0].int().tolist()]
        logprobs = [0.0, *made.rollout_log_probs[0].tolist()]
        found.append(Taught(made.sequences[0].tolist(), mask, logprobs, score=made.rewards.item()))
    return found


def read_verl(batch: Any) -> list[Taught]:
    """Without its padding."""
    if batch is None:
        return []
    found, columns = [], batch.batch
    scores = columns["rm_scores"] if "rm_scores" in columns.keys() else None  # noqa: SIM118 - a TensorDict
    for at in range(len(batch)):
        attention = columns["attention_mask"][at].bool()
        before = int(attention[: columns["prompts"].shape[1]].sum())
        own = attention[columns["prompts"].shape[1] :]
        found.append(
            Taught(
                columns["input_ids"][at][attention].tolist(),
                [0] * before + columns["response_mask"][at][own].tolist(),
                [0.0] * before + columns["rollout_log_probs"][at][own].tolist(),
                [-1] * before + columns[VERSIONS][at][own].tolist(),
                None if scores is None else float(scores[at].sum()),
            )
        )
    return found


def skyrl(truncated: Truncated, *, step_wise: bool) -> SkyRLSink:
    return SkyRLSink(TrajectoryID, step_wise=step_wise, rules=CreditRules(truncated=truncated))


READINGS: dict[str, tuple[Reading, bool]] = {
    "tinker": (
        Reading(lambda how: TinkerSink(mask=True, truncated=how), read_tinker, score="advantage"),
        False,
    ),
    "skyrl": (Reading(lambda how: skyrl(how, step_wise=False), read_skyrl, rows="path"), False),
    "skyrl, step-wise": (Reading(lambda how: skyrl(how, step_wise=True), read_skyrl), False),
    "openrlhf": (
        Reading(lambda how: OpenRLHFSink(rules=CreditRules(truncated=how)), read_openrlhf, rows="path"),
        False,
    ),
    "verl": (
        Reading(lambda how: VerlSink(Lengths(16, 64), truncated=how), read_verl, scores_later=True),
        True,
    ),
}
"""Each, and whether its rows have versions."""


@pytest.mark.parametrize("name", READINGS)
def test_the_suite_holds_and_fails_for_its_mutants(name: str) -> None:
    torch.set_num_threads(1)
    reading, versions = READINGS[name]
    check_mutants(reading, places=name != "tinker", versions=versions)
