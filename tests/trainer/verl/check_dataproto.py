"""Our batches are verl's: its own post-processing makes the same, its own operations and losses take them."""

from __future__ import annotations

from array import array
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch  # type: ignore[import-not-found]
from verl import DataProto  # type: ignore[import-not-found]
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker  # type: ignore[import-not-found]
from verl.trainer.ppo.core_algos import (  # type: ignore[import-not-found]
    compute_grpo_outcome_advantage,
)
from verl.trainer.ppo.metric_utils import process_validation_metrics  # type: ignore[import-not-found]
from verl.trainer.ppo.reward import extract_reward  # type: ignore[import-not-found]

from sandgate.contract.errors import InvalidBody
from sandgate.trainer.credit.batches import no_row
from sandgate.trainer.credit.sink import SinkGroup
from sandgate.trainer.verl import Lengths, VerlSink, agent_loop_output, to_dataproto, usable
from sandgate.trainer.verl.reward_columns import ValidationColumns
from tests.trainer.verl.rows import row, short

P, R = 4, 6
LENGTHS = Lengths(P, R)


def tokenizer() -> Any:
    """With a padding id that is not 0, so that a padding of 0 is seen."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast  # type: ignore[import-not-found]

    words = {str(number): number for number in range(100)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(words, "0")), pad_token="99")


def worker() -> Any:
    """verl's worker without the servers that its constructor starts; the methods that are called are its own."""
    made = AgentLoopWorker.__new__(AgentLoopWorker)
    made.rollout_config = SimpleNamespace(prompt_length=P, response_length=R)
    made.tokenizer, made.processor = tokenizer(), None
    made.reward_loop_worker_handles = None
    made.mm_processor_kwargs, made.distillation_enabled = {}, False
    return made


async def by_verl(rows: list[Any]) -> DataProto:
    """The rows through AgentLoopWorker's own post-processing."""
    made = worker()
    padded = [
        await made._agent_loop_postprocess(agent_loop_output(one), False, raw_prompt=[{"role": "user"}])
        for one in rows
    ]
    return made._postprocess(padded, input_non_tensor_batch={"uid": np.array(["q1"] * len(rows), object)})


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([row(), short()], id="rows of different lengths"),
        pytest.param([row(0), row(1)], id="rows of one length"),
        pytest.param([short(reward=None), row(reward=None)], id="rows that nobody scored: no scores at all"),
        pytest.param([row(reward_info={}), row(reward_info={})], id="no reward info"),
    ],
)
async def test_verls_own_post_processing_makes_the_same_batch(rows: list[Any]) -> None:
    theirs = await by_verl(rows)
    ours = to_dataproto(rows, LENGTHS, pad_token_id=99, pad_positions="verl")
    assert set(ours.batch.keys()) == set(theirs.batch.keys()) | {"sandgate_versions"}
    for name in theirs.batch.keys():  # noqa: SIM118 - a TensorDict iterates over its rows
        assert ours.batch[name].dtype == theirs.batch[name].dtype, name
        assert torch.equal(ours.batch[name], theirs.batch[name]), name
    assert set(theirs.non_tensor_batch) - {"raw_prompt", "reward_extra_info"} <= set(ours.non_tensor_batch)
    for name in ("__num_turns__", "min_global_steps", "max_global_steps", "uid"):
        assert list(ours.non_tensor_batch[name]) == list(theirs.non_tensor_batch[name]), name
    assert ours.meta_info == theirs.meta_info
    assert ours.non_tensor_batch["__num_turns__"].dtype == np.int32


LOST: dict[str, Any] = {"failure_class": "infra", "failure_reason": "NodeLost", "reward": None}
TEACH_NOTHING: dict[str, tuple[dict[str, Any], list[int]]] = {
    "a row of a lost node": (LOST, [0, 0]),
    "a row that was scored though its agent crashed": ({"failure_class": "agent", "reward": 0.0}, [0, 0]),
    "a row that nobody scored": ({"reward": None}, [0, 0]),
    "a title": ({"role": "side", "reward": 1.0, "session_id": "shop-q1-0", "trajectory_id": 1}, [0, 0]),
    "a row of a turn limit, which is the policy's": ({"failure_class": "policy", "reward": 0.75}, [1, 1]),
}


@pytest.mark.parametrize(("changes", "mask"), TEACH_NOTHING.values(), ids=TEACH_NOTHING)
def test_a_row_that_teaches_nothing_keeps_its_place_and_changes_no_mean(
    changes: dict[str, Any], mask: list[int]
) -> None:
    whole: dict[str, Any] = {"role": "main", "main": True}
    rows = [row(0, reward=1.0, **whole), row(1, reward=0.5, **whole), short(2, **changes)]
    batch = to_dataproto(rows, LENGTHS).batch
    assert batch["response_mask"][2].tolist()[:2] == mask
    assert batch["rm_scores"].sum(-1).tolist() == [1.0, 0.5, 0.75]


def test_a_session_that_failed_takes_no_reward_column_along() -> None:
    """verl's validation wants each column of a batch in all of them, and takes None for what is not there."""
    solved = [row(0, reward=1.0, reward_info={"acc": 1.0, "by": "rule"})]
    lost = no_row("q1", 1, 0)
    first = to_dataproto([*solved, lost], LENGTHS)
    assert first.meta_info["reward_extra_keys"] == ["acc", "by"]
    assert first.non_tensor_batch["by"].tolist() == ["rule", None]
    batches = [first, to_dataproto([*solved, row(1, reward=0.0, reward_info={"acc": 0.0})], LENGTHS)]
    infos: dict[str, list[Any]] = {}
    for batch in batches:  # as RayPPOTrainer._validate gathers them
        for name, values in extract_reward(batch)[1].items():
            infos.setdefault(name, []).extend(values.tolist())
    assert {name: len(values) for name, values in infos.items()} == {"acc": 4, "by": 4}
    found = process_validation_metrics(["shop"] * 4, ["a", "a", "b", "b"], infos)
    assert found["shop"]["acc"]["mean@1"] == 1.0
    assert found["shop"]["acc"]["mean@2"] == 0.5


def test_all_batches_of_a_validation_have_the_columns_of_its_first() -> None:
    """What a verifier tells differs, and of what failed it tells nothing: verl ends where one batch has a column that
    another has not."""

    def told(*infos: dict[str, Any]) -> Any:
        rows = [row(at, reward=1.0, reward_info=info) for at, info in enumerate(infos)]
        return to_dataproto(rows, LENGTHS, validate=True)

    columns = ValidationColumns()
    for step, batches in {
        0: [told({"acc": 1.0}, {"acc": 0.0}), told({"acc": 1.0, "error": "late"}, {}), told({}, {})],
        5: [told({}, {}), told({"acc": 1.0}, {"acc": 0.0})],
    }.items():
        infos: dict[str, list[Any]] = {}
        for batch in batches:
            columns.settle(batch, {"validate": True, "global_steps": step})
            for name, values in extract_reward(batch)[1].items():
                infos.setdefault(name, []).extend(values.tolist())
        assert {name: len(values) for name, values in infos.items()} == {"acc": 2 * len(batches)}
        uids = [str(at) for at in range(len(batches)) for _ in range(2)]
        found = process_validation_metrics(["shop"] * len(uids), uids, infos)
        assert found["shop"]["acc"]["mean@2"] == 0.5
    training = told({"acc": 1.0, "error": "late"})
    columns.settle(training, {"global_steps": 6})
    assert training.meta_info["reward_extra_keys"] == ["acc", "error"]


def test_in_validation_what_failed_has_its_groups_plain_mean() -> None:
    """Scores around it keep the deviation for GRPO; here best@4 would be one that nobody reached."""
    rows = [row(0, reward=1.0), row(1, reward=0.0), no_row("q1", 2, 0), no_row("q1", 3, 0)]
    scores = to_dataproto(rows, LENGTHS, validate=True).batch["rm_scores"].sum(-1).tolist()
    assert scores == [1.0, 0.0, 0.5, 0.5]
    found = process_validation_metrics(["shop"] * 4, ["q1"] * 4, {"reward": scores})["shop"]["reward"]
    assert (found["mean@4"], found["std@4"] <= 0.5, found["best@4/mean"] <= 1.0) == (0.5, True, True)
    assert found["worst@4/mean"] >= 0.0


def test_sessions_without_a_task_are_no_group() -> None:
    """One was scored by another measure than the other: there is nothing to compare."""
    lost: dict[str, Any] = {"uid": "", "failure_class": "infra", "failure_reason": "NodeLost", "reward": None}
    rows = [row(0, uid="", session_id="a", reward=5.0), row(0, uid="", session_id="b", reward=1.0)]
    made = to_dataproto([*rows, row(0, session_id="c", **lost)], LENGTHS)
    assert made.non_tensor_batch["uid"].tolist() == ["a", "b", "c"]
    assert made.batch["rm_scores"].sum(-1).tolist() == [5.0, 1.0, 0.0]
    assert [max(one) for one in grpo_of(made)] == [5.0, 1.0, 0.0], "of a group of one verl takes the score"
    group = VerlSink(LENGTHS).batch([SinkGroup("q1", rows, 2)])
    assert group.non_tensor_batch["uid"].tolist() == ["q1", "q1"], "who leased them says that they are one"


TAKEN = ("uid", "sandgate_session", "__num_turns__", "responses", "data_source")
"""Names that a scorer may not give a column: ours, verl's, a tensor's, the data set's."""


@pytest.mark.parametrize("name", TAKEN)
def test_who_scores_replaces_no_column_of_verls(name: str) -> None:
    plain = [row(at, reward=float(at)) for at in range(2)]
    scored = [replace(one, reward_info={name: one.session_id, "acc": 1.0}) for one in plain]
    columns = {"data_source": ["shop", "shop"]}
    theirs, ours = (to_dataproto(rows, LENGTHS, columns=columns) for rows in (scored, plain))
    assert theirs.meta_info["reward_extra_keys"] == ["acc"]
    for kept in set(ours.non_tensor_batch) - {"score"}:
        assert theirs.non_tensor_batch[kept].tolist() == ours.non_tensor_batch[kept].tolist(), kept
    assert grpo_of(theirs) == grpo_of(ours)


def test_padded_position_ids_are_0() -> None:
    batch = to_dataproto([short()], LENGTHS).batch
    assert batch["attention_mask"].tolist() == [[0, 0, 1, 1, 1, 1, 0, 0, 0, 0]]
    assert batch["position_ids"].tolist() == [[0, 0, 0, 1, 2, 3, 0, 0, 0, 0]]


def test_a_row_that_does_not_fit_is_masked_and_said_and_never_cut() -> None:
    assert usable([row()], Lengths(2, 5)) == usable([row()], Lengths(3, 4)) == []
    made = to_dataproto([row(0, reward=1.0), short(1, reward=0.5), short(2, reward=0.0)], Lengths(2, 4))
    assert made.non_tensor_batch["sandgate_left_out"].tolist() == ["too_long", "", ""]
    assert made.batch["input_ids"][0].tolist() == [0, 1, 10, 0, 0, 0]
    assert made.batch["response_mask"].sum(-1).tolist() == [0, 2, 2]
    assert made.batch["rm_scores"].sum(-1).tolist() == [0.25, 0.5, 0.0]


def test_every_token_has_its_own_version() -> None:
    made = to_dataproto([row(), short()], LENGTHS)
    assert made.batch["sandgate_versions"].tolist() == [[7, 7, -1, -1, 8, -1], [8, 8, -1, -1, -1, -1]]
    assert made.non_tensor_batch["min_global_steps"].tolist() == [7, 8]


def test_rows_that_a_limit_ended_are_masked_if_the_job_says_so() -> None:
    rows = [row(0), short(1), short(2, failure_class="policy", failure_reason="ContextExceeded")]
    scored, masked = to_dataproto(rows, LENGTHS), to_dataproto(rows, LENGTHS, truncated="mask")
    assert scored.batch["response_mask"].any(-1).tolist() == [True, True, True]
    assert masked.batch["response_mask"].any(-1).tolist() == [True, True, False]
    assert masked.non_tensor_batch["sandgate_left_out"].tolist() == ["", "", "truncated"]
    assert masked.non_tensor_batch["sandgate_failure"].tolist() == [None, None, "ContextExceeded"]


def test_a_row_without_sampled_tokens_is_no_row() -> None:
    empty: dict[str, Any] = {
        "response_ids": array("i"),
        "response_logprobs": array("f"),
        "loss_mask": array("b"),
    }
    nothing = row(versions=array("i"), turn_ids=(), turn_ends=(), turn_rewards=(), **empty)
    assert usable([nothing, short()], LENGTHS) == [short()]
    with pytest.raises(InvalidBody, match="at least one row"):
        to_dataproto([], LENGTHS)


def test_union_concat_chunk_to_and_from(tmp_path: Path) -> None:
    data = to_dataproto([row(), short()], LENGTHS, columns={"data_source": ["shop", "shop"]})
    both = DataProto.concat([data, data])
    assert len(both) == 4
    assert [len(part) for part in both.chunk(2)] == [2, 2]
    more = DataProto.from_dict(tensors={"old_log_probs": torch.zeros(2, R)})
    assert "old_log_probs" in data.union(more).batch.keys()  # noqa: SIM118
    assert data.repeat(2, interleave=True).non_tensor_batch["sandgate_session"].tolist() == [
        "shop-q1-0", "shop-q1-0", "shop-q1-1", "shop-q1-1",
    ]  # fmt: skip
    data.save_to_disk(tmp_path / "batch")
    back = DataProto.load_from_disk(tmp_path / "batch")
    assert torch.equal(back.batch["input_ids"], data.batch["input_ids"])
    again = DataProto.from_tensordict(data.to_tensordict())
    assert torch.equal(again.batch["rollout_log_probs"], data.batch["rollout_log_probs"])
    assert data[0:1].non_tensor_batch["data_source"].tolist() == ["shop"]


def grpo_of(data: Any) -> list[list[float]]:
    """verl's advantages of each row."""
    advantages, _ = compute_grpo_outcome_advantage(
        token_level_rewards=data.batch["rm_scores"],
        response_mask=data.batch["response_mask"],
        index=data.non_tensor_batch["uid"],
    )
    return [[round(one, 3) for one in each] for each in advantages.tolist()]


def test_grpos_advantages_follow_the_rewards_and_spare_context() -> None:
    good, bad = grpo_of(to_dataproto([row(), short()], LENGTHS))
    assert good == [0.707, 0.707, 0.0, 0.0, 0.707, 0.0]
    assert bad == [-0.707, -0.707, 0.0, 0.0, 0.0, 0.0]


def test_a_column_of_the_wrong_length_is_named() -> None:
    with pytest.raises(InvalidBody, match="column data_source has 1 values for 2 rows"):
        to_dataproto([row(), short()], LENGTHS, columns={"data_source": ["shop"]})
