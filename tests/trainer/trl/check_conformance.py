"""The conformance suite over TrlSink, padded as GRPOTrainer pads what a rollout_func returns."""

from __future__ import annotations

from typing import Any

import torch  # type: ignore[import-not-found]
from trl.trainer.utils import pad  # type: ignore[import-not-found]

from sandgate.trainer.credit.reasons import CreditRules
from sandgate.trainer.trl import TrlSink
from tests.trainer.conformance import Reading, Taught, check_mutants


def read(batch: dict[str, list[Any]]) -> list[Taught]:
    """The mask of its trainer is that of padding times `env_mask`."""
    if not batch["env_mask"]:
        return []
    ids, mask, logprobs, there = (
        pad([torch.tensor(one) for one in column], padding_value=0, padding_side="right")
        for column in (
            batch["completion_ids"],
            batch["env_mask"],
            batch["logprobs"],
            [[1] * len(one) for one in batch["completion_ids"]],
        )
    )
    found = []
    for at, prompt in enumerate(batch["prompt_ids"]):
        own, before = there[at].bool(), len(prompt)
        found.append(
            Taught(
                prompt + ids[at][own].tolist(),
                [0] * before + (mask * there)[at][own].tolist(),
                [0.0] * before + logprobs[at][own].tolist(),
                [-1] * before + batch["sandgate_versions"][at],
                batch["env_reward"][at],
            )
        )
    return found


def test_the_suite_holds_and_fails_for_its_mutants() -> None:
    check_mutants(Reading(lambda how: TrlSink(rules=CreditRules(truncated=how)), read, rows="path"))
