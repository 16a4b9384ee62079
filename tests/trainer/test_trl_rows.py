"""Trajectories as TRL's rollout dict: exactly one completion per entry, and nothing trained that should not be."""

from __future__ import annotations

import errno
import io
import os
from array import array
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.contract.errors import Conflict, InvalidBody, SandgateError
from sandgate.contract.job import Task
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.trl import rows as of
from sandgate.trainer.trl.checkpoints import last_checkpoint, sync
from sandgate.trainer.trl.names import Round, check_run, check_tasks
from sandgate.trainer.trl.rounds import LeaseFile
from tests.trainer.trajectories import trajectories, trajectory

PAD = 9
NOTHING: dict[str, Any] = {
    "response_ids": array("i"),
    "response_logprobs": array("f"),
    "loss_mask": array("b"),
    "versions": array("i"),
    "turn_ids": (),
    "turn_ends": (),
    "turn_rewards": (),
}


def rollout(*rows: Trajectory, n: int = 1) -> dict[str, list[Any]]:
    return of.rollout(of.group_rows(rows, n), PAD)


def test_a_row_is_the_trajectory_to_the_bit() -> None:
    assert rollout(trajectory()) == {
        "prompt_ids": [[1, 2, 3]],
        "completion_ids": [[10, 11, 4, 5, 12]],
        "logprobs": [list(array("f", [-0.1, -0.2, 0.0, 0.0, -0.3]))],
        "env_mask": [[1, 1, 0, 0, 1]],
        "env_reward": [1.0],
        "uid": ["q1"],
        "sandgate_session": ["shop-q1-0"],
        "sandgate_trajectory": [0],
        "sandgate_sample": [0],
        "sandgate_reward_info": [{}],
        "sandgate_versions": [[7, 7, -1, -1, 8]],
        "sandgate_failure": [None],
        "sandgate_left_out": [0],
        "sandgate_masked": [None],
    }


PADS = {
    "a tokenizer": SimpleNamespace(processing_class=SimpleNamespace(pad_token_id=PAD)),
    "a processor, whose tokenizer the trainer has": SimpleNamespace(
        processing_class=SimpleNamespace(), _tokenizer=SimpleNamespace(pad_token_id=PAD)
    ),
    "a processor": SimpleNamespace(
        processing_class=SimpleNamespace(tokenizer=SimpleNamespace(pad_token_id=PAD))
    ),
}


@pytest.mark.parametrize("trainer", PADS.values(), ids=PADS)
def test_the_padding_token_is_that_of(trainer: Any) -> None:
    assert of.pad_of(trainer) == PAD


def test_a_tokenizer_without_a_padding_token_is_refused() -> None:
    with pytest.raises(InvalidBody, match="no padding token"):
        of.pad_of(SimpleNamespace(processing_class=SimpleNamespace(pad_token_id=None)))


def test_a_title_that_was_asked_after_the_answer_is_not_what_is_trained() -> None:
    answer = trajectory(role="main", main=True)
    title = trajectory(trajectory_id=1, role="side", response_ids=array("i", [8] * 5))
    made = rollout(answer, title)
    assert made["completion_ids"] == [[10, 11, 4, 5, 12]]
    assert (made["sandgate_trajectory"], made["sandgate_left_out"]) == ([0], [1])


def test_of_rows_that_are_older_than_roles_the_one_that_ended_last_is_trained() -> None:
    assert rollout(trajectory(), trajectory(trajectory_id=1))["sandgate_trajectory"] == [1]


def test_a_masked_row_is_kept_without_its_mask_and_its_reward() -> None:
    made = rollout(trajectory(failure_class="infra", failure_reason="EngineLost"))
    assert made["completion_ids"] == [[10, 11, 4, 5, 12]]
    assert (made["env_mask"], made["env_reward"]) == ([[0, 0, 0, 0, 0]], [None])
    assert made["sandgate_failure"] == ["EngineLost"]


@pytest.mark.parametrize(
    "group", [pytest.param((), id="no session"), pytest.param((trajectory(**NOTHING),), id="no token")]
)
def test_a_sample_without_tokens_is_one_masked_token(group: tuple[Trajectory, ...]) -> None:
    made = rollout(*group)
    assert made["prompt_ids"] == [[PAD]]
    assert (made["completion_ids"], made["env_mask"], made["logprobs"]) == ([[PAD]], [[0]], [[0.0]])
    assert (made["env_reward"], made["sandgate_failure"]) == ([None], ["NoTurns"])


def test_of_several_trajectories_of_a_session_the_last_to_end_is_taken() -> None:
    rows = [trajectory(trajectory_id=one, reward=float(one)) for one in (1, 2, 0)]
    made = rollout(*rows)
    assert (made["sandgate_trajectory"], made["env_reward"], made["sandgate_left_out"]) == ([2], [2.0], [2])
    (first,) = of.group_rows(rows, 1, pick=lambda them: min(them, key=lambda row: row.trajectory_id))
    assert first.trajectory is rows[2]


def test_samples_come_in_their_order_whatever_the_lease_says() -> None:
    made = rollout(trajectory(2), trajectory(0), n=4)
    assert made["sandgate_sample"] == [0, None, 2, None]


AGAIN: dict[str, Any] = {"session_id": "again", "attempt": 1}
LOST: dict[str, Any] = {"failure_class": "infra", "failure_reason": "NodeLost"}
ATTEMPTS: dict[str, tuple[list[Trajectory], str, int]] = {
    "the newer one that ended well": ([trajectory(trajectory_id=3, **LOST), trajectory(**AGAIN)], "again", 0),
    "the older one, where the newer was lost": (
        [trajectory(), trajectory(trajectory_id=3, **AGAIN, **LOST)], "shop-q1-0", 0),
    "the newer one, where both were lost": ([trajectory(trajectory_id=3, **LOST), trajectory(**AGAIN, **LOST)],
                                            "again", 0),
    "the newer one, with its own further rows alone": (
        [trajectory(trajectory_id=3), trajectory(**AGAIN), trajectory(trajectory_id=1, **AGAIN)], "again", 1),
}  # fmt: skip


@pytest.mark.parametrize(("rows", "session", "left_out"), ATTEMPTS.values(), ids=ATTEMPTS)
@pytest.mark.parametrize("order", [1, -1], ids=["in order", "the other way round"])
def test_of_two_attempts_at_a_sample_one_counts(
    rows: list[Trajectory], session: str, left_out: int, order: int
) -> None:
    made = rollout(*rows[::order])
    assert (made["sandgate_session"], made["sandgate_left_out"]) == ([session], [left_out])


def test_two_sessions_of_one_attempt_are_refused() -> None:
    with pytest.raises(Conflict, match="two sessions of sample 0, attempt 0: shop-q1-0 and other"):
        rollout(trajectory(), trajectory(session_id="other"))


REFUSED: dict[str, tuple[type[SandgateError], str, Trajectory]] = {
    "a sample too many": (
        Conflict,
        "sample 2, which was not asked.*groupSize and num_generations",
        trajectory(2),
    ),
    "images": (InvalidBody, "rows with images are not carried", trajectory(multimodal=b"png")),
}


@pytest.mark.parametrize(("error", "match", "row"), REFUSED.values(), ids=REFUSED)
def test_it_is_refused(error: type[SandgateError], match: str, row: Trajectory) -> None:
    with pytest.raises(error, match=match):
        of.group_rows([row], 2)


SAMPLING: dict[str, tuple[dict[str, Any], float, str]] = {
    "the trainer's temperature is another": ({"temperature": 0.7}, 1.0, "sampled at temperature 0.7"),
    "raw logprobs at another temperature than 1": ({}, 0.7, "raw_logprobs"),
}


@pytest.mark.parametrize(("sampling", "trainer", "match"), SAMPLING.values(), ids=SAMPLING)
def test_ratios_of_two_different_policies_are_refused(
    sampling: dict[str, Any], trainer: float, match: str
) -> None:
    rows = of.group_rows([trajectory(sampling=sampling, logprobs_mode="raw_logprobs")], 1)
    with pytest.raises(Conflict, match=match):
        of.check_sampling(rows, trainer)


def test_one_turn_at_another_temperature_is_refused() -> None:
    told = ({"sampling": {"temperature": 0.7}}, {"sampling": {"temperature": 0.2}})
    rows = of.group_rows([trajectory(sampling={"top_k": -1}, turn_settings=told)], 1)
    with pytest.raises(Conflict, match=r"turn b, was sampled at temperature 0[.]2"):
        of.check_sampling(rows, 0.7)


def test_the_same_temperature_is_fine() -> None:
    rows = of.group_rows([trajectory(sampling={"temperature": 0.7}, logprobs_mode="processed_logprobs")], 2)
    of.check_sampling(rows, 0.7)


@given(group=st.lists(trajectories(any_floats=False), max_size=5), n=st.integers(1, 4))
def test_any_group_is_n_entries_of_aligned_lists_or_refused(group: list[Trajectory], n: int) -> None:
    try:
        made = of.rollout(of.group_rows(group, n), PAD)
    except (Conflict, InvalidBody):
        return
    assert {len(column) for column in made.values()} == {n}
    for ids, logprobs, mask, versions, reward in zip(
        *(
            made[name]
            for name in ("completion_ids", "logprobs", "env_mask", "sandgate_versions", "env_reward")
        ),
        strict=True,
    ):
        assert len(ids) == len(logprobs) == len(mask) == len(versions) > 0
        assert reward is not None or not any(mask)
    assert all(made["prompt_ids"])


class Logged(dict[str, float]):
    def __call__(self, name: str, value: float) -> None:
        self[name] = value


def test_the_reward_function_passes_rewards_on_and_logs_how_old_tokens_are() -> None:
    logged = Logged()
    said = of.env_reward(
        ["a", "b"],
        [1.0, None],
        log_metric=logged,
        sandgate_version=[9, 9],
        sandgate_versions=[[7, 7, -1, 8], [-1]],
    )
    assert said == [1.0, None]
    assert logged == {
        "rollout/masked": 0.5,
        "rollout/versions_behind_mean": 2.0,
        "rollout/versions_behind_max": 2.0,
    }


@given(
    st.lists(st.lists(st.integers(-1, 2**31 - 1), max_size=40), min_size=1, max_size=8),
    st.integers(0, 2**31 - 1),
)
def test_how_old_tokens_are_is_what_a_loop_over_tokens_says(versions: list[list[int]], now: int) -> None:
    logged = Logged()
    of.env_reward(
        ["p"] * len(versions),
        [1.0] * len(versions),
        log_metric=logged,
        sandgate_version=[now] * len(versions),
        sandgate_versions=versions,
    )
    behind = [now - min(known) for row in versions if (known := [one for one in row if one >= 0])]
    said = (
        {
            "rollout/versions_behind_mean": sum(behind) / len(behind),
            "rollout/versions_behind_max": float(max(behind)),
        }
        if behind
        else {}
    )
    assert logged == {"rollout/masked": 0.0} | said


def test_rewards_that_are_not_one_per_prompt_are_refused() -> None:
    with pytest.raises(InvalidBody, match="1 rewards for 2 prompts"):
        of.env_reward(["a", "b"], [1.0])


UIDS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)


@given(step=st.integers(0, 10**6), call=st.integers(0, 99), training=st.booleans(), uids=st.lists(UIDS))
def test_a_group_is_known_again_by_its_name(step: int, call: int, training: bool, uids: list[str]) -> None:
    this = Round(step, call, training)
    named = this.tasks("seed-1", [Task(uid=uid, prompt="p", data=1) for uid in uids])
    assert all(Round.of("seed-1", task.uid) == this for task in named)
    assert len({task.uid for task in named}) == len(uids), "the same task twice is two groups"
    assert all(Round.of("seed-2", task.uid) is None for task in named)


@pytest.mark.parametrize("uid", ["", "q1", "seed-1.t.0.0.q", "seed-1.x1.0.0.q", "seed-1.t1.0.0."])
def test_other_names_are_nobodys(uid: str) -> None:
    assert Round.of("seed-1", uid) is None


MOST = 256 - len("run.t999999999.999999999999.999999.")


def test_a_uid_that_is_taken_fits_into_the_names_of_all_rounds() -> None:
    task = Task(uid="u" * MOST)
    check_tasks("run", [task])
    (named,) = Round(999_999_999, 999_999_999_999).tasks("run", [task])
    assert len(named.uid) == 256 - len("999999") + len("0")
    assert Round.of("run", named.uid) == Round(999_999_999, 999_999_999_999)


def test_names_that_cannot_be_are_refused() -> None:
    with pytest.raises(InvalidBody, match=f"uid of {MOST + 1} characters leaves no room .* there are {MOST}"):
        check_tasks("run", [Task(uid="u" * (MOST + 1))])
    with pytest.raises(InvalidBody, match="run: 'a b'"):
        check_run("a b")


def test_a_lease_file_that_was_cut_is_an_empty_one(tmp_path: Path) -> None:
    (tmp_path / "leases.json").write_text('["a"')
    assert LeaseFile(tmp_path / "leases.json").left() == []
    assert LeaseFile(tmp_path / "none.json").left() == []


def checkpoint(folder: Path, step: int, state: str | None = None) -> Path:
    made = folder / f"checkpoint-{step}"
    made.mkdir()
    (made / "model.safetensors").write_bytes(b"weights")
    (made / "trainer_state.json").write_text(f'{{"global_step": {step}}}' if state is None else state)
    return made


TORN = {
    "nothing but weights": None,
    "cut in its last file": '{"global_',
    "of another step": '{"global_step": 1}',
    "not its form": "[]",
}


@pytest.mark.parametrize("state", TORN.values(), ids=TORN)
def test_a_checkpoint_that_a_kill_cut_short_is_passed_over(tmp_path: Path, state: str | None) -> None:
    for step in (9, 10):
        checkpoint(tmp_path, step)
    torn = checkpoint(tmp_path, 11, state or "")
    if state is None:
        (torn / "trainer_state.json").unlink()
    (tmp_path / "checkpoint-last").mkdir()
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10")


def test_a_checkpoint_that_cannot_be_read_now_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The training would begin with an older one, or anew, and write over what came after it."""
    for step in (1, 2):
        checkpoint(tmp_path, step)
    real = io.open

    def fails(path: Any, *args: Any, **more: Any) -> Any:
        if path == tmp_path / "checkpoint-2" / "trainer_state.json":
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path, *args, **more)

    monkeypatch.setattr(io, "open", fails)
    with pytest.raises(OSError, match=r"checkpoint-2/trainer_state\.json"):
        last_checkpoint(tmp_path)


def test_where_nothing_was_saved_there_is_no_checkpoint(tmp_path: Path) -> None:
    assert last_checkpoint(tmp_path / "none") is None
    sync(checkpoint(tmp_path, 1))
    assert last_checkpoint(tmp_path) == str(tmp_path / "checkpoint-1")
