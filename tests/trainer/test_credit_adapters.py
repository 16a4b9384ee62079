"""Random groups through AReaL's and TRL's adapters; tests/trainer/verl/check_credit.py has verl's."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import replace
from itertools import zip_longest
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sandgate.contract.errors import InvalidBody
from sandgate.trainer.areal.batches import batch_rows
from sandgate.trainer.areal.tensors import columns
from sandgate.trainer.credit.batches import kept_in_place, taught
from sandgate.trainer.credit.group_advantages import prepare
from sandgate.trainer.credit.one_row import alone
from sandgate.trainer.credit.reasons import CreditRules, LeftOut, reasons
from sandgate.trainer.export.trl import to_rollout
from sandgate.trainer.trl import rows as trl
from tests.gateway.trajectories.forest import T
from tests.trainer.groups import RandomGroup, random_group, trained
from tests.trainer.groups import session as rows_of

GROUPS = st.builds(random_group, st.integers(0, 2**32), fails=st.sampled_from([0.0, 0.3, 0.7, 1.0]))
ALL_FAILED, ONE_LEFT = random_group(1, sessions=4, fails=1.0), random_group(2, sessions=1, fails=0.0)


UNFIT: dict[str, tuple[dict[str, Any], str]] = {
    "pictures": ({"multimodal": b"x"}, "rows with images are not carried"),
    "a reward that is no number": ({"reward": float("nan")}, "its reward is nan"),
    "a logprob that is no number": ({"response_logprobs": array("f", [float("nan")] * 3)}, "a logprob"),
}


@pytest.mark.parametrize(("change", "why"), UNFIT.values(), ids=UNFIT)
def test_an_areal_job_refuses_rows_that_its_tensors_cannot_carry(change: dict[str, Any], why: str) -> None:
    """It would train on the placeholders of pictures as if they were words."""
    (row,) = rows_of(0, [T("a", role="main")], (1.0, None, None))
    with pytest.raises(InvalidBody, match=why):
        batch_rows([row, replace(row, session_id="other", **change)])


@example(ALL_FAILED)
@example(ONE_LEFT)
@example(RandomGroup())
@given(GROUPS)
def test_areal_trains_every_token_of_the_main_role_once_and_none_of_a_failure(group: RandomGroup) -> None:
    kept, left = taught(group.forked)
    assert len(kept) + sum(left.values()) == len(group.forked)
    found: dict[str, Counter[str]] = {}
    for row in kept:
        tensors = columns(row)
        ids, mask = tensors["input_ids"][0].tolist(), tensors["loss_mask"][0].tolist()
        found.setdefault(row.session_id, Counter()).update(trained(ids, mask))
    if any(row.reward is not None for row in group.forked):
        assert set(found) == set(group.rewards)
    for session, turns in group.main_turns.items():
        assert all(found[session][turn] == 1 for turn in turns)
        assert max(found[session].values()) == 1


@example(ALL_FAILED)
@example(ONE_LEFT)
@given(GROUPS)
def test_trl_has_a_row_a_sample_with_all_of_its_path_and_the_sessions_score(group: RandomGroup) -> None:
    rows = trl.group_rows(group.forked, group.sessions)
    made = trl.rollout(rows, 0)
    assert len(rows) == len(made["env_reward"]) == group.sessions
    for at in range(group.sessions):
        session, ids, mask = f"s{at}", made["completion_ids"][at], made["env_mask"][at]
        assert made["env_reward"][at] == group.rewards.get(session)
        assert len(ids) == len(mask) == len(made["logprobs"][at]) == len(made["sandgate_versions"][at])
        if session in group.rewards:
            assert sum(one % 1000 >= 500 for one in ids) == sum(mask)
            assert len(set(trained(ids, mask))) * 3 == sum(mask)
            assert set(group.main_turns[session]) & set(trained(ids, mask))
            assert made["sandgate_masked"][at] is None
        else:
            assert not any(mask)
            assert made["sandgate_masked"][at] in ("failure", "no_reward")
        sampled = [version for version, bit in zip(made["sandgate_versions"][at], mask, strict=True) if bit]
        assert all(version >= 0 for version in sampled)


@given(GROUPS)
def test_trls_advantages_are_those_of_the_unforked_group(group: RandomGroup) -> None:
    """TRL: the mean of what is not None, and its deviation; `prepare` has the same."""
    rewards = trl.rollout(trl.group_rows(group.forked, group.sessions), 0)["env_reward"]
    plain = trl.rollout(trl.group_rows(group.plain, group.sessions), 0)["env_reward"]
    assert rewards == plain
    scores = prepare(group.forked).scores
    assert scores == prepare(group.plain).scores == group.rewards
    assert sorted(one for one in rewards if one is not None) == sorted(scores.values())


@given(GROUPS)
def test_no_form_refuses_a_group_with_failures(group: RandomGroup) -> None:
    kept, whys = kept_in_place(group.forked)
    assert [bool(1 in row.loss_mask) for row in kept] == [why is None for why in whys]
    assert whys == reasons(
        group.forked, CreditRules(scored=any(row.reward is not None for row in group.forked))
    )
    assert len(to_rollout(group.forked)["uid"]) == len(group.forked)


@given(GROUPS)
def test_the_main_row_is_found_and_one_row_of_it_is_whole(group: RandomGroup) -> None:
    sessions: dict[str, list[Any]] = {}
    for row in group.forked:
        sessions.setdefault(row.session_id, []).append(row)
    for session, rows in sessions.items():
        (main,) = [row for row in rows if row.main]
        whole = alone(rows)
        assert (whole.trajectory_id, whole.response_ids) == (main.trajectory_id, main.response_ids)
        if session in group.main_turns:
            assert set(main.turn_ids) & set(group.main_turns[session])
        for turn, end in zip(whole.turn_ids, whole.turn_ends, strict=True):
            assert list(whole.loss_mask[end - 3 : end]) == [1, 1, 1], turn


def test_trls_own_config_says_what_fits_and_what_becomes_of_truncated_episodes() -> None:
    class Args:
        max_completion_length = 2
        mask_truncated_completions = True

    rules = trl.rules_of(Args)
    assert rules.truncated == "mask"
    assert rules.lengths is not None
    assert rules.lengths.limits()["response_tokens"] == 2
    long = trl.group_rows(random_group(2, sessions=1, fails=0.0).forked, 1, rules=rules)
    assert long[0].why in (LeftOut.TOO_LONG, LeftOut.TRUNCATED)
    made = trl.rollout(long, 0)
    assert (len(made["completion_ids"][0]), made["env_mask"], made["env_reward"]) == (1, [[0]], [None])
    assert trl.rules_of(object()).lengths is None


def test_trls_log_says_why_rows_are_masked() -> None:
    told: dict[str, float] = {}
    trl.env_reward(
        ["a"] * 4, [1.0, None, None, None], log_metric=told.__setitem__,
        sandgate_masked=[None, "too_long", "failure", "failure"],
    )  # fmt: skip
    assert told["rollout/masked"] == 0.75
    assert (told["rollout/masked/failure"], told["rollout/masked/too_long"]) == (0.5, 0.25)
    assert told["rollout/masked/truncated"] == 0.0


@pytest.mark.parametrize("seed", range(5))
def test_the_same_seed_makes_the_same_group(seed: int) -> None:
    pairs = zip_longest(random_group(seed).forked, random_group(seed).forked)
    assert all(one == other for one, other in pairs)
