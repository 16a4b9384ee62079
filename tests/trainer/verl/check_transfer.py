"""Our groups in a real TransferQueue on a real Ray, taken out by verl's own replay buffer."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch  # type: ignore[import-not-found]
import transfer_queue as tq  # type: ignore[import-not-found]
from verl.trainer.ppo.core_algos import AdvantageEstimator  # type: ignore[import-not-found]
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer  # type: ignore[import-not-found]
from verl.trainer.ppo.v1.utils import (  # type: ignore[import-not-found]
    compute_advantage_for_multi_trajectories,
)

from sandgate.contract.errors import InvalidBody
from sandgate.trainer.verl import (
    Lengths,
    put_group,
    put_rows,
    tensordict,
    to_dataproto,
    transfer_rows,
    uid_key,
)
from tests.trainer.verl.rows import row, short

LENGTHS = Lengths(4, 6)


pytestmark = pytest.mark.usefixtures("queue")


def replay() -> Any:
    return ReplayBuffer("sync", SimpleNamespace(), None, "drop", SimpleNamespace(), poll_interval=0.05)


async def test_a_group_is_sampled_whole_with_every_column() -> None:
    rows = [row(0), row(1, 0, reward=0.5), row(1, 1, reward=0.5), short(2)]
    columns = {
        "raw_prompt": [{"role": "user", "content": "buy"}],
        "data_source": "shop",
        "agent_name": "shop",
    }
    uid = await put_group("q1", rows, global_steps=3, lengths=LENGTHS, columns=columns)
    batch, _ = replay().sample(3, "train", 1)
    assert sorted(batch.keys) == ["q1_0_0", "q1_1_0", "q1_1_1", "q1_2_0"]
    assert batch.tags[0] == {
        "status": "success", "prompt_len": 3, "response_len": 5, "seq_len": 8,
        "global_steps": 3, "min_global_steps": 7, "max_global_steps": 8,
    }  # fmt: skip
    data = tq.kv_batch_get(keys=["q1_0_0", "q1_2_0"], partition_id="train")
    unpadded = {name: [one.tolist() for one in data[name].unbind()] for name in SEQUENCES}
    assert unpadded["input_ids"] == [[1, 2, 3, 10, 11, 4, 5, 12], [1, 2, 20, 21]]
    assert unpadded["position_ids"] == [list(range(8)), list(range(4))]
    assert unpadded["response_mask"] == unpadded["loss_mask"] == [[1, 1, 0, 0, 1], [1, 1]]
    assert unpadded["rm_scores"] == [[0.0, 0.0, 0.0, 0.0, 1.0], [0.0, 0.0]]
    assert unpadded["rollout_log_probs"][1] == [-0.5, -0.25]
    assert list(data["data_source"]) == ["shop", "shop"]
    assert uid == "q1"


SEQUENCES = ("input_ids", "position_ids", "response_mask", "loss_mask", "rm_scores", "rollout_log_probs")


async def test_grpo_over_sampled_rows_counts_each_session_once() -> None:
    """Session 1 forked: were its rows two, the group's mean would be a third."""
    rows = [row(0, reward=1.0), row(1, 0, reward=0.0), row(1, 1, reward=0.0)]
    await put_group("q1", rows, global_steps=1, lengths=LENGTHS)
    batch, _ = replay().sample(1, "train", 1)
    assert batch.keys == ["q1_0_0", "q1_1_0", "q1_1_1"]
    data = to_dataproto(rows, LENGTHS)
    stored = tq.kv_batch_get(keys=batch.keys, partition_id="train")["rm_scores"]
    padded = [torch.nn.functional.pad(one, (0, LENGTHS.response - len(one))) for one in stored.unbind()]
    data.batch["token_level_rewards"] = torch.stack(padded)
    assert torch.equal(data.batch["token_level_rewards"], data.batch["rm_scores"])
    found = compute_advantage_for_multi_trajectories(
        data, batch.keys, adv_estimator=AdvantageEstimator.GRPO, num_repeat=2
    )
    first = [round(one, 3) for one in found.batch["advantages"][:, 0].tolist()]
    assert first == [0.707, -0.707, -0.707]


async def test_a_uid_with_an_underscore_is_renamed_and_kept() -> None:
    uid = await put_group("task_1", [row(uid="task_1")], global_steps=1, lengths=LENGTHS)
    assert "_" not in uid
    batch, _ = replay().sample(1, "train", 1)
    data = tq.kv_batch_get(keys=batch.keys, partition_id="train")
    assert next(iter(data["extra_fields"]))["sandgate_uid"] == "task_1"
    with pytest.raises(InvalidBody, match="would be read as 'task'"):
        transfer_rows([row()], uid="task_1", session=0, global_steps=1)


async def test_what_teaches_nothing_is_left_out_and_the_others_keep_their_scores(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lost = row(1, failure_class="infra", failure_reason="NodeLost", reward=None)
    title = short(0, trajectory_id=1, session_id="shop-q1-0", role="side", reward=1.0)
    with caplog.at_level("INFO"):
        await put_group("q1", [row(0), title, lost, row(2, reward=0.0)], global_steps=1, lengths=LENGTHS)
    batch, _ = replay().sample(1, "train", 1)
    assert batch.keys == ["q1_0_0", "q1_1_0"]
    data = tq.kv_batch_get(keys=batch.keys, partition_id="train")
    assert [one.sum().item() for one in data["rm_scores"].unbind()] == [1.0, 0.0]
    assert "of 4 rows {'role': 1, 'failure': 1} are left out" in caplog.text


async def test_a_group_that_only_failed_is_a_failure() -> None:
    lost = [row(at, failure_class="infra", failure_reason="NodeLost", reward=None) for at in range(2)]
    uid = await put_group("q1", lost, global_steps=1, lengths=LENGTHS)
    assert tq.kv_list(partition_id="train")["train"][uid]["status"] == "failure"


async def test_a_group_that_nobody_scored_is_left_to_verls_reward_loop() -> None:
    await put_group("q1", [row(0, reward=None), row(1, reward=None)], global_steps=1, lengths=LENGTHS)
    batch, _ = replay().sample(1, "train", 1)
    assert batch.keys == ["q1_0_0", "q1_1_0"]


async def test_a_group_with_nothing_to_train_on_is_a_failure() -> None:
    uid = await put_group("q2", [], global_steps=1, lengths=LENGTHS)
    tag = tq.kv_list(partition_id="train")["train"][uid]
    assert tag == {"status": "failure", "is_prompt": True, "global_steps": 1}


async def test_a_group_that_cannot_be_written_is_a_failure_not_something_to_wait_for() -> None:
    with pytest.raises(InvalidBody, match="need verl's processor"):
        await put_group("q3", [row(), short(multimodal=b"x")], global_steps=1, lengths=LENGTHS)
    assert {key: tag["status"] for key, tag in tq.kv_list(partition_id="train")["train"].items()} == {
        "q3": "failure"
    }


async def test_no_rows_are_no_error() -> None:
    await put_rows([])
    assert tensordict([]).batch_size == torch.Size([0])


def test_a_column_that_a_row_lacks_is_named() -> None:
    with_it = transfer_rows([row()], uid="q", session=0, global_steps=1, columns={"data_source": "shop"})
    without = transfer_rows([short()], uid="q", session=1, global_steps=1)
    with pytest.raises(InvalidBody, match="column data_source is not in every row"):
        tensordict([*with_it, *without])


def test_uids_that_were_different_stay_different() -> None:
    given = ["a_b", "a-b", "a__b", "", "_", "plain"]
    keys = [uid_key(one) for one in given]
    assert len(set(keys)) == len(keys)
    assert all(key and "_" not in key for key in keys)
    assert keys[-1] == "plain"
    assert keys[1] == "a-b"


def test_logprobs_are_the_engines_to_the_bit() -> None:
    values = np.array([-0.1, -1e-7, -17.25], np.float32)
    one = row(
        response_ids=array("i", [1, 2, 3]), response_logprobs=array("f", values.tolist()),
        loss_mask=array("b", [1, 1, 1]), versions=array("i", [1, 1, 1]), turn_ends=(2, 3),
    )  # fmt: skip
    (made,) = transfer_rows([one], uid="q", session=0, global_steps=1)
    assert made.fields["rollout_log_probs"].numpy().tobytes() == values.tobytes()
