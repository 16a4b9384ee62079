"""SkyRL's own checks, batches and advantages on what `to_generator_output` makes."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch  # type: ignore[import-not-found]
from skyrl.backends.skyrl_train.training_batch import TrainingInputBatch  # type: ignore[import-not-found]
from skyrl.train.dataset.preprocess import (  # type: ignore[import-not-found]
    convert_prompts_responses_to_batch_tensors,
)
from skyrl.train.generators.base import TrajectoryID  # type: ignore[import-not-found]
from skyrl.train.trainer import RayPPOTrainer  # type: ignore[import-not-found]
from skyrl.train.utils.trainer_utils import validate_generator_output  # type: ignore[import-not-found]

from sandgate.contract.errors import Conflict, InvalidBody
from sandgate.trainer.credit.group_advantages import prepare
from sandgate.trainer.credit.lengths import Lengths
from sandgate.trainer.credit.reasons import CreditRules
from sandgate.trainer.openrlhf import to_responses
from sandgate.trainer.skyrl import to_generator_output
from sandgate.trainer.tinker import to_data
from tests.gateway.trajectories.forest import T
from tests.trainer.groups import RandomGroup, random_group, session, trained

SEEDS = range(60)
FAILS = (0.0, 0.3, 0.7, 1.0)


def asked(group: RandomGroup) -> list[Any]:
    return [TrajectoryID("q1", number) for number in range(group.sessions)]


def advantages(made: dict[str, Any], *, step_wise: bool, by_deviation: bool) -> Any:
    """Of SkyRL's trainer, by its own tensors: one number for each row."""
    rewards = [
        [0.0] * (len(ids) - 1) + [reward]
        for ids, reward in zip(made["response_ids"], made["rewards"], strict=True)
    ]
    sequences, attention, response, scores, loss, logprobs, _ = convert_prompts_responses_to_batch_tensors(
        SimpleNamespace(pad_token_id=0), made["prompt_token_ids"], made["response_ids"], rewards,
        made["loss_masks"], made["rollout_logprobs"],
    )  # fmt: skip
    batch = TrainingInputBatch(
        {
            "sequences": sequences, "attention_mask": attention, "response_mask": response, "rewards": scores,
            "loss_mask": loss, "rollout_logprobs": logprobs, "values": None,
        }
    )  # fmt: skip
    batch.metadata = {"uids": [one.instance_id for one in made["trajectory_ids"]], "avg_response_length": 1.0}
    if step_wise:
        batch.metadata["is_last_step"] = made["is_last_step"]
    algorithm = SimpleNamespace(
        advantage_estimator="grpo", gamma=1.0, lambd=1.0, grpo_norm_by_std=by_deviation
    )
    config = SimpleNamespace(
        generator=SimpleNamespace(step_wise_trajectories=step_wise),
        trainer=SimpleNamespace(algorithm=algorithm),
    )
    trainer = SimpleNamespace(cfg=config, all_metrics={})
    found = RayPPOTrainer.compute_advantages_and_returns(trainer, batch)
    # Each row's is the same at every place of its response.
    return [
        float(row[mask.bool()][-1])
        for row, mask in zip(found["advantages"], found["response_mask"], strict=True)
    ]


def turns_of(made: dict[str, Any]) -> dict[int, Counter[str]]:
    """Sample -> the turns that are trained."""
    found: dict[int, Counter[str]] = {}
    rows = zip(made["trajectory_ids"], made["response_ids"], made["loss_masks"], strict=True)
    for one, ids, mask in rows:
        found.setdefault(one.repetition_id, Counter()).update(trained(ids, mask))
    return found


@pytest.mark.parametrize("step_wise", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_skyrl_takes_it_and_gives_each_session_the_advantage_of_the_unforked_group(
    seed: int, step_wise: bool
) -> None:
    group = random_group(seed, fails=FAILS[seed % 4])
    made = to_generator_output({"q1": group.forked}, asked(group), step_wise=step_wise)
    validate_generator_output(group.sessions, made, step_wise=step_wise)
    plain = prepare(group.plain, scale=False)
    found = advantages(made, step_wise=step_wise, by_deviation=False)
    for one, mask, own in zip(made["trajectory_ids"], made["loss_masks"], found, strict=True):
        name = f"s{one.repetition_id}"
        if name in group.rewards:
            assert any(mask)
            # Alone with itself a session has no mean in SkyRL (`compute_grpo_outcome_advantage`).
            mean = plain.mean if group.sessions > 1 else 0.0
            assert own == pytest.approx(group.rewards[name] - mean, abs=1e-6)
        else:
            assert not any(mask)


@pytest.mark.parametrize("seed", SEEDS)
def test_step_wise_every_token_of_the_main_role_is_trained_once(seed: int) -> None:
    group = random_group(seed, fails=FAILS[seed % 4])
    found = turns_of(to_generator_output({"q1": group.forked}, asked(group), step_wise=True))
    for name, turns in group.main_turns.items():
        counted = found[int(name[1:])]
        assert all(counted[turn] == 1 for turn in turns)
        assert max(counted.values()) == 1


@pytest.mark.parametrize("seed", SEEDS)
def test_one_row_has_all_that_was_sampled_on_the_main_path(seed: int) -> None:
    group = random_group(seed, fails=FAILS[seed % 4])
    made = to_generator_output({"q1": group.forked}, asked(group))
    for number, ids, mask in zip(
        range(group.sessions), made["response_ids"], made["loss_masks"], strict=True
    ):
        if f"s{number}" in group.rewards:
            assert sum(one % 1000 >= 500 for one in ids) == sum(mask)
            assert set(group.main_turns[f"s{number}"]) & set(trained(ids, mask))


def test_two_failures_leave_the_deviation_as_it_was() -> None:
    ends = [
        (1.0, None, None),
        (0.0, None, None),
        (0.25, None, None),
        (None, "infra", "NodeLost"),
        (0.0, "agent", "AgentExit"),
    ]
    rows = [row for number, end in enumerate(ends) for row in session(number, [T("a", role="main")], end)]
    made = to_generator_output({"q1": rows}, [TrajectoryID("q1", number) for number in range(len(ends))])
    found = advantages(made, step_wise=False, by_deviation=True)
    whole = prepare(rows)
    wanted = [(one - whole.mean) / (whole.deviation + 1e-6) for one in (1.0, 0.0, 0.25)]
    assert found[:3] == pytest.approx(wanted, abs=1e-5)
    assert made["rollout_metrics"]["sandgate/rows/left_out/failure"] == 2.0


def test_a_session_that_left_nothing_is_one_masked_token() -> None:
    rows = session(0, [T("a", role="main")], (1.0, None, None))
    made = to_generator_output({"q1": rows}, [TrajectoryID("q1", 0), TrajectoryID("q1", 1)], pad_token_id=7)
    assert (made["prompt_token_ids"][1], made["response_ids"][1], made["loss_masks"][1]) == ([7], [7], [0])
    assert made["rewards"] == [1.0, 1.0]
    validate_generator_output(2, made)


def test_what_is_too_long_is_not_cut_but_masked_and_counted() -> None:
    rows = session(0, [T("a", role="main")], (1.0, None, None))
    made = to_generator_output(
        {"q1": rows}, [TrajectoryID("q1", 0)], rules=CreditRules(lengths=Lengths(100, 1))
    )
    assert made["loss_masks"] == [[0]]
    assert made["rollout_metrics"]["sandgate/rows/left_out/too_long"] == 1.0


def test_a_group_that_is_larger_than_the_trainers_is_refused() -> None:
    rows = session(3, [T("a", role="main")], (1.0, None, None))
    with pytest.raises(Conflict, match=r"sample 3, which was not asked for.*n_samples_per_prompt"):
        to_generator_output({"q1": rows}, [TrajectoryID("q1", 0)])


def test_images_are_refused() -> None:
    rows = [replace(row, multimodal=b"x") for row in session(0, [T("a", role="main")], (1.0, None, None))]
    with pytest.raises(InvalidBody, match="session s0: rows with images"):
        to_generator_output({"q1": rows}, [TrajectoryID("q1", 0)])


GOOD = session(0, [T("a", role="main")], (1.0, None, None))
BAD = session(0, [T("a", role="main")], (None, "infra", "NodeLost"))


@pytest.mark.parametrize("step_wise", [False, True])
@pytest.mark.parametrize("failed_first", [False, True])
def test_of_several_attempts_the_newest_that_did_not_fail_counts(step_wise: bool, failed_first: bool) -> None:
    retried = [replace(row, session_id="again", attempt=1) for row in GOOD]
    rows = [*BAD, *retried] if failed_first else [*retried, *BAD]
    made = to_generator_output({"q1": rows}, [TrajectoryID("q1", 0)], step_wise=step_wise)
    assert (made["rewards"], [any(mask) for mask in made["loss_masks"]]) == ([1.0], [True])


def test_an_attempt_that_failed_is_no_step_of_the_one_that_did_not() -> None:
    before = [replace(row, reward=0.0) for row in GOOD]
    after = [replace(row, session_id="again", attempt=1, trajectory_id=1) for row in GOOD]
    made = to_generator_output({"q1": before + after}, [TrajectoryID("q1", 0)], step_wise=True)
    assert (made["rewards"], made["is_last_step"]) == ([1.0], [True])


def test_a_session_counts_whose_main_row_is_not_taught_but_another_is() -> None:
    turns = [T("a", role="main"), T("b", None, role="subagent", fork="new_root")]
    rows = session(0, turns, (1.0, None, None)) + session(1, turns, (0.0, None, None))
    asked_for = [TrajectoryID("q1", 0), TrajectoryID("q1", 1)]
    made = to_generator_output(
        {"q1": rows}, asked_for, step_wise=True, rules=CreditRules(roles=("subagent",))
    )
    validate_generator_output(2, made, step_wise=True)
    taught = [trained(ids, mask) for ids, mask in zip(made["response_ids"], made["loss_masks"], strict=True)]
    assert taught == [["b"], [], ["b"], []]
    assert advantages(made, step_wise=True, by_deviation=False) == [0.5, 0.5, -0.5, -0.5]


UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "a reward that is no number": ({"reward": float("nan")}, "its reward is nan"),
    "an infinite reward": ({"reward": float("inf")}, "its reward is inf"),
    "a logprob that is no number": (
        {"response_logprobs": array("f", [float("nan")] * 3)},
        "a logprob is no number",
    ),
    "no prompt": ({"prompt_ids": array("i")}, "has no prompt"),
    "a mask of 2": ({"loss_mask": array("b", [2, 1, 1])}, "other values than 0 and 1"),
}


@pytest.mark.parametrize("case", UNFIT)
@pytest.mark.parametrize("adapter", ["skyrl", "openrlhf", "tinker"])
def test_what_no_gateway_writes_is_refused(adapter: str, case: str) -> None:
    changes, words = UNFIT[case]
    rows = [replace(row, **changes) for row in GOOD]
    makes: dict[str, Callable[[], object]] = {
        "skyrl": lambda: to_generator_output({"q1": rows}, [TrajectoryID("q1", 0)]),
        "openrlhf": lambda: to_responses(rows, 1),
        "tinker": lambda: to_data([rows]),
    }
    with pytest.raises(InvalidBody, match=words):
        makes[adapter]()


def test_rows_of_another_task_are_refused() -> None:
    rows = GOOD + [replace(row, uid="q2", session_id="other", sample_index=1) for row in GOOD]
    with pytest.raises(InvalidBody, match="rows of 2 tasks"):
        to_generator_output({"q1": rows}, [TrajectoryID("q1", 0), TrajectoryID("q1", 1)])
    with pytest.raises(InvalidBody, match="rows of 2 tasks"):
        to_responses(rows, 2)


def test_a_sample_that_is_asked_for_twice_is_refused() -> None:
    with pytest.raises(Conflict, match="sample 0 of 'q1' is asked for twice"):
        to_generator_output({"q1": GOOD}, [TrajectoryID("q1", 0)] * 2)


@pytest.mark.parametrize("score", [0.1, 0.7, 1 / 3])
def test_a_group_without_variance_stays_one(score: float) -> None:
    """Dynamic sampling drops a group whose scores are all the same, to the bit."""
    rows = [row for number in range(3) for row in session(number, [T("a", role="main")], (score, None, None))]
    made = to_generator_output({"q1": rows}, [TrajectoryID("q1", number) for number in range(5)])
    assert set(made["rewards"]) == {score}


def test_tensors_are_of_what_was_sampled() -> None:
    """SkyRL's own layout: the response ends the sequence, and mask and logprobs with it."""
    (row,) = session(0, [T("a", role="main"), T("b", "a", role="main")], (1.0, None, None))
    made = to_generator_output({"q1": [row]}, [TrajectoryID("q1", 0)])
    sequences, _, _, _, loss, logprobs, _ = convert_prompts_responses_to_batch_tensors(
        SimpleNamespace(pad_token_id=0), made["prompt_token_ids"], made["response_ids"],
        [[0.0] * len(row.response_ids)], made["loss_masks"], made["rollout_logprobs"],
    )  # fmt: skip
    assert sequences[0].tolist() == [*row.prompt_ids, *row.response_ids]
    assert loss[0].tolist() == list(row.loss_mask)
    assert torch.equal(logprobs[0], torch.tensor(list(row.response_logprobs)))
