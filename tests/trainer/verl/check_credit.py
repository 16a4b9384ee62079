"""Credit through each of verl's ways in: random groups, and verl's own advantage functions over what they became."""

from __future__ import annotations

from math import sqrt
from types import SimpleNamespace
from typing import Any

import pytest
import torch  # type: ignore[import-not-found]
import transfer_queue as tq  # type: ignore[import-not-found]
from omegaconf import OmegaConf  # type: ignore[import-not-found]
from tensordict import TensorDict  # type: ignore[import-not-found]
from transfer_queue import KVBatchMeta
from verl import DataProto  # type: ignore[import-not-found]
from verl.trainer.ppo.core_algos import (  # type: ignore[import-not-found]
    AdvantageEstimator,
    compute_grpo_outcome_advantage,
)
from verl.trainer.ppo.v1.replay_buffer import ReplayBufferAsync  # type: ignore[import-not-found]
from verl.trainer.ppo.v1.trainer_base import PPOTrainer  # type: ignore[import-not-found]
from verl.trainer.ppo.v1.utils import (  # type: ignore[import-not-found]
    compute_advantage_for_multi_trajectories,
)

from sandgate.trainer.credit.batches import masked
from sandgate.trainer.credit.sink import SinkGroup
from sandgate.trainer.verl import (
    Lengths,
    VerlSink,
    put_group,
    session_advantages,
    to_dataproto,
    transfer_rows,
)
from sandgate.trainer.verl.dataproto import objects
from sandgate.trainer.verl.framework import aligned
from sandgate.trainer.verl.sessions import BatchSample
from tests.trainer.groups import RandomGroup, random_group, trained
from tests.trainer.verl.rows import row

LENGTHS = Lengths(8, 64)
SEEDS = range(60)
LOST: dict[str, Any] = {"failure_class": "infra", "failure_reason": "NodeLost", "reward": None}


def grpo(batch: Any, *, scale: bool = True) -> Any:
    """verl's function over a batch as it is: one number for each row."""
    found, _ = compute_grpo_outcome_advantage(
        token_level_rewards=batch.batch["rm_scores"],
        response_mask=torch.ones_like(batch.batch["response_mask"]),
        index=batch.non_tensor_batch["uid"],
        norm_adv_by_std_in_grpo=scale,
    )
    return found[:, 0]


def survivors(group: RandomGroup) -> dict[str, float]:
    """Session -> its advantage in a group of those alone that count, one row for each."""
    rows = [one for one in group.plain if one.session_id in group.rewards]
    if (
        len(rows) == 1 and group.sessions > 1
    ):  # with nothing to compare; of a group of one verl takes the score
        return {rows[0].session_id: 0.0}
    if not rows:
        return {}
    made = grpo(to_dataproto(rows, LENGTHS)).tolist()
    return {one.session_id: advantage for one, advantage in zip(rows, made, strict=True)}


def by_session(batch: Any, advantages: Any) -> dict[str, float]:
    """Session -> the advantage of its trained tokens, which must be one."""
    found: dict[str, float] = {}
    for at, name in enumerate(batch.non_tensor_batch["sandgate_session"]):
        for one in advantages[at][batch.batch["response_mask"][at].bool()].tolist():
            assert found.setdefault(name, one) == one
    return found


@pytest.mark.parametrize("fails", [0.3, 1.0], ids=["some fail", "all fail"])
def test_a_forked_group_has_the_advantages_of_the_same_group_unforked(fails: float) -> None:
    for seed in SEEDS:
        group = random_group(seed, fails=fails)
        batch = to_dataproto(group.forked, LENGTHS)
        if "rm_scores" not in batch.batch.keys():  # noqa: SIM118 - nobody scored anything
            assert not group.rewards
            continue
        advantages, _ = session_advantages(batch)
        assert by_session(batch, advantages) == pytest.approx(survivors(group), abs=1e-5), seed


def test_every_token_of_the_main_role_is_trained_exactly_once() -> None:
    for seed in SEEDS:
        group = random_group(seed)
        if not group.rewards:
            continue
        batch = to_dataproto(group.forked, LENGTHS)
        found: dict[str, list[str]] = {}
        for at, name in enumerate(batch.non_tensor_batch["sandgate_session"]):
            ids, mask = batch.batch["responses"][at].tolist(), batch.batch["response_mask"][at].tolist()
            found.setdefault(name, []).extend(trained(ids, mask))
        for name, turns in found.items():
            assert len(turns) == len(set(turns)), (seed, name)
            assert set(group.main_turns.get(name, [])) <= set(turns), (seed, name)
            assert bool(turns) == (name in group.rewards), (seed, name)


def one_row_each(group: RandomGroup) -> Any:
    """As the v0 trainer gets it: sessions that do not count have no row, as if their agents had failed here."""
    samples = [BatchSample(uid="q1", index=at, raw_prompt=None) for at in range(group.sessions)]
    found = [
        [one for one in group.forked if one.session_id == f"s{at}" in group.rewards]
        for at in range(group.sessions)
    ]
    return to_dataproto(aligned(samples, found, 0), LENGTHS)


def test_blank_rows_leave_the_others_the_advantages_of_a_group_of_their_own() -> None:
    """Exactly, but where one row alone is blank: it can keep the mean, and then the deviation of n is that of n + 1."""
    kinds = set()
    for seed in range(200):
        group = random_group(seed, sessions=1 + seed % 8)
        if not group.rewards:
            continue
        batch = one_row_each(group)
        live = batch.batch["response_mask"].any(-1)
        count, blanks = int(live.sum()), int((~live).sum())
        if count == 1 and not blanks:
            continue  # a group of one: verl takes its bare score, as it always does
        wanted = survivors(group)
        factor = sqrt(count / (count - 1)) if blanks == 1 and count > 1 else 1.0
        for name, one, lives in zip(
            batch.non_tensor_batch["sandgate_session"], grpo(batch).tolist(), live, strict=True
        ):
            if lives:
                assert one == pytest.approx(wanted[name] * factor, abs=2e-5), (seed, name)
        unscaled = grpo(batch, scale=False)
        assert unscaled[live].sum().item() == pytest.approx(0.0, abs=1e-5), seed
        kinds.add((min(count, 2), min(blanks, 3)))
    assert kinds >= {(1, 1), (1, 2), (1, 3), (2, 0), (2, 1), (2, 2), (2, 3)}


def test_one_row_of_a_session_has_every_sampled_token_of_its_path() -> None:
    for seed in SEEDS:
        group = random_group(seed, fails=0.0)
        batch = one_row_each(group)
        for at in range(len(batch)):
            ids, mask = batch.batch["responses"][at].tolist(), batch.batch["response_mask"][at].tolist()
            assert sum(one % 1000 >= 500 for one in ids) == sum(mask), (seed, at)


EQUAL: dict[str, list[float | None]] = {
    "all equal": [1.0, 1.0, None, 1.0],
    "one left": [1.0, None, None, None],
    "one left beside one": [1.0, None],
}


@pytest.mark.parametrize("rewards", EQUAL.values(), ids=EQUAL)
def test_where_there_is_nothing_to_compare_nothing_is_learned(rewards: list[float | None]) -> None:
    samples = [BatchSample(uid="q1", index=at, raw_prompt=None) for at in range(len(rewards))]
    found = [[] if one is None else [row(at, reward=one)] for at, one in enumerate(rewards)]
    assert not grpo(to_dataproto(aligned(samples, found, 0), LENGTHS)).any()


def test_a_group_of_failures_beside_another_group_trains_nothing_and_moves_nothing() -> None:
    samples = [BatchSample(uid=uid, index=at, raw_prompt=None) for uid in ("q1", "q2") for at in range(2)]
    found = [[], [], [row(0, uid="q2", reward=1.0)], [row(1, uid="q2", reward=0.0)]]
    batch = to_dataproto(aligned(samples, found, 0), LENGTHS)
    assert [round(one, 3) for one in grpo(batch).tolist()] == [0.0, 0.0, 0.707, -0.707]
    assert batch.batch["response_mask"].any(-1).tolist() == [False, False, True, True]


# -- TransferQueue ----------------------------------------------------------------------------------------------------


async def stored(group: RandomGroup, uid: str, **said: Any) -> tuple[Any, dict[str, float]]:
    """Keys of the rows that verl's asynchronous buffer gives out, and the advantages that its v1 trainer makes."""
    await put_group(uid, group.forked, global_steps=1, lengths=LENGTHS, **said)
    buffer = ReplayBufferAsync(
        "separate_async", SimpleNamespace(), None, "drop", SimpleNamespace(), poll_interval=0.01
    )
    if not group.rewards:
        assert buffer.get_sampleable_count(1, "train") == 0, "a group without a row is evicted"
        return [], {}
    batch, _ = buffer.sample(1, "train", 1)
    data = tq.kv_batch_get(keys=batch.keys, partition_id="train")
    padded = {
        name: torch.nn.utils.rnn.pad_sequence(list(data[name].unbind()), batch_first=True)
        for name in ("rm_scores", "response_mask")
    }
    made = DataProto.from_dict(
        tensors={"token_level_rewards": padded["rm_scores"], "response_mask": padded["response_mask"]},
        non_tensors={
            "uid": objects(list(data["uid"])),
            "sandgate_session": objects([one["sandgate_session"] for one in data["extra_fields"]]),
        },
    )
    found = compute_advantage_for_multi_trajectories(made, batch.keys, adv_estimator=AdvantageEstimator.GRPO)
    return batch.keys, by_session(made, found.batch["advantages"])


async def test_v1_makes_the_advantages_of_the_unforked_group_of_what_is_in_the_queue(queue: None) -> None:
    for seed in range(12):
        group = random_group(seed, sessions=2 + seed % 4)
        _, found = await stored(group, f"q{seed}")
        assert found == pytest.approx(survivors(group), abs=1e-5), seed
        left = tq.kv_list(partition_id="train").get("train", {})
        tq.kv_clear(keys=list(left), partition_id="train")


LONELY: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "another left a row of its failure": ([row(0), row(1, **LOST)], {}),
    "the others left none": ([row(0)], {"samples": 4}),
    "the one before it left none, as its number says": ([row(1)], {}),
}
"""Rows of a group of which one session is left, and what is said of it."""


@pytest.mark.parametrize(("rows", "said"), LONELY.values(), ids=LONELY)
async def test_v1_learns_nothing_from_one_session_that_is_left_of_several(
    queue: None, rows: list[Any], said: dict[str, Any]
) -> None:
    """Alone in its group it would have its bare score for an advantage."""
    name = rows[0].session_id
    group = RandomGroup(forked=rows, rewards={name: 1.0}, sessions=2)
    keys, found = await stored(group, "q1", **said)
    assert (keys, found) == (["q1_0_0", "q1_1_0"], {name: 0.0})


async def test_in_validation_a_lone_survivor_counts_once(queue: None) -> None:
    """verl says that the others have an accuracy of 0."""
    await put_group("q1", [row(0)], global_steps=1, lengths=LENGTHS, samples=4, partition="val")
    assert sorted(tq.kv_list(partition_id="val")["val"]) == ["q1", "q1_0_0"]


async def test_of_a_group_of_one_verl_takes_the_score_as_it_always_does(queue: None) -> None:
    group = RandomGroup(forked=[row(0)], rewards={"shop-q1-0": 1.0}, sessions=1)
    keys, found = await stored(group, "q1", samples=1)
    assert keys == ["q1_0_0"]
    assert found == {"shop-q1-0": pytest.approx(1.0, abs=1e-5)}


@pytest.mark.parametrize("samples", [1, 4])
def test_a_sink_knows_of_sessions_that_left_no_row(samples: int) -> None:
    batch = VerlSink(LENGTHS).batch([SinkGroup("q1", [row(0)], samples), SinkGroup("q2", [], samples)])
    wanted = pytest.approx(1.0 if samples == 1 else 0.0, abs=1e-5)
    advantages, _ = session_advantages(batch)
    assert by_session(batch, advantages) == {"shop-q1-0": wanted}
    assert grpo(batch)[0].item() == wanted


def metrics_of(keys: list[str], step: int) -> dict[str, float]:
    """What verl's v1 trainer makes of a step's rows, at the end of every step."""
    tags = tq.kv_list(partition_id="train")["train"]
    data = tq.kv_batch_get(keys=keys, partition_id="train", select_fields=["rm_scores"])
    tq.kv_batch_put(
        keys=keys,
        partition_id="train",
        fields=TensorDict(dict.fromkeys(("advantages", "returns"), data["rm_scores"]), len(keys)),
    )
    trainer = SimpleNamespace(
        config=OmegaConf.create({"actor_rollout_ref": {"rollout": {}, "model": {}}}),
        use_critic=False,
        _rollout_moe_lb_metrics_accumulator=None,
        _get_n_gpus_for_throughput=lambda: 1,
    )
    batch = KVBatchMeta(keys=keys, tags=[tags[key] for key in keys], partition_id="train")
    made: dict[str, float] = {}
    PPOTrainer._compute_metrics(trainer, batch, made, {"step": 1.0}, step, 0)
    return made


async def test_v1s_metrics_of_a_step_take_the_row_that_stands_beside_a_lone_survivor(queue: None) -> None:
    """Its versions are those of the row that it stands beside."""
    await put_group("q1", [row(0), row(1, **LOST)], global_steps=3, lengths=LENGTHS)
    made = metrics_of(["q1_0_0", "q1_1_0"], 9)
    assert made["training/off_policy/trajectory_spans/mean"] == 2.0
    assert made["training/off_policy/trajectory_staleness/max"] == 0
    extra = tq.kv_batch_get(keys=["q1_1_0"], partition_id="train")["extra_fields"]
    assert [(one["min_global_steps"], one["max_global_steps"]) for one in extra] == [(7, 8)]


def test_a_row_that_trains_nothing_has_its_prompts_step_for_a_version() -> None:
    (made,) = transfer_rows([masked(row())], uid="q1", session=0, global_steps=3)
    assert (made.tag["min_global_steps"], made.tag["max_global_steps"]) == (3, 3)
