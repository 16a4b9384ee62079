"""Datums of the real Tinker SDK, beside those that tinker_cookbook makes of its own trajectories."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tinker  # type: ignore[import-not-found]
from tinker_cookbook.completers import TokensWithLogprobs  # type: ignore[import-not-found]
from tinker_cookbook.rl import data_processing, types  # type: ignore[import-not-found]

from sandgate.contract.errors import InvalidBody
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.credit import lone_samples
from sandgate.trainer.credit.counters import RowCounters
from sandgate.trainer.credit.group_advantages import prepare
from sandgate.trainer.credit.sink import SinkGroup
from sandgate.trainer.tinker import TinkerSink, to_data
from tests.gateway.trajectories.forest import T
from tests.trainer.groups import random_group, session, trained

SEEDS = range(60)


def arrays(datum: Any) -> dict[str, Any]:
    return {name: value.to_numpy() for name, value in datum.loss_fn_inputs.items()}


def tokens(datum: Any) -> list[int]:
    """The whole row."""
    inputs = datum.model_input.to_ints()
    targets = arrays(datum)["target_tokens"].tolist()
    assert inputs[1:] == targets[:-1]
    return [*inputs, targets[-1]]


@pytest.mark.parametrize("seed", SEEDS)
def test_every_token_of_the_main_role_is_taught_once_with_its_logprob_and_its_sessions_advantage(
    seed: int,
) -> None:
    group, counters = random_group(seed, fails=(0.0, 0.3, 0.7, 1.0)[seed % 4]), RowCounters()
    credited = prepare(group.forked, scale=False)
    data = to_data([group.forked], mask=True, counters=counters)
    assert len(data) == len(credited.taught) == counters.taught
    assert counters.taught + sum(counters.left_out.values()) == len(group.forked)
    found: dict[str, Counter[str]] = {}
    for datum, row in zip(data, credited.taught, strict=True):
        ids, told = tokens(datum), arrays(datum)
        mask = [0, *told["mask"].astype(int).tolist()]
        found.setdefault(row.trajectory.session_id, Counter()).update(trained(ids, mask))
        bits = np.array(mask[1:], bool)
        np.testing.assert_array_equal(told["advantages"][bits], np.float32(row.advantage))
        assert not told["advantages"][~bits].any()
        sampled = np.array(row.trajectory.response_logprobs, np.float32)[
            np.array(row.trajectory.loss_mask, bool)
        ]
        np.testing.assert_array_equal(told["logprobs"][bits], sampled)
        assert not told["logprobs"][~bits].any()
    assert set(found) == set(group.rewards)
    for name, turns in group.main_turns.items():
        assert all(found[name][turn] == 1 for turn in turns)
        assert max(found[name].values()) == 1


def theirs(row: Trajectory) -> Any:
    """The same session in the cookbook's own words: what was seen before each turn, and what was sampled."""
    ids, before = row.prompt_ids + row.response_ids, len(row.prompt_ids)
    steps = []
    for end in row.turn_ends:
        mask = row.loss_mask[:end].tolist()
        start = end - (mask[::-1].index(0) if 0 in mask else end)
        seen = tinker.ModelInput.from_ints(ids[: before + start].tolist())
        said = TokensWithLogprobs(
            tokens=row.response_ids[start:end].tolist(),
            maybe_logprobs=row.response_logprobs[start:end].tolist(),
        )
        steps.append(types.Transition(ob=seen, ac=said, reward=0.0, episode_done=end == row.turn_ends[-1]))
    return types.Trajectory(transitions=steps, final_ob=tinker.ModelInput.empty())


def test_the_cookbook_makes_the_same_datums_of_the_same_sessions() -> None:
    ends = [(1.0, None, None), (0.25, None, None), (0.0, None, None)]
    turns = [T("a", role="main"), T("b", "a", role="main"), T("c", "b", role="main")]
    rows = [row for number, end in enumerate(ends) for row in session(number, turns[: number + 1], end)]
    group = types.TrajectoryGroup([theirs(row) for row in rows], [end[0] for end in ends], [{}] * len(ends))
    (advantages,) = data_processing.compute_advantages([group])
    mine = to_data([rows], mask=True)
    for row, datum, advantage in zip(rows, mine, advantages, strict=True):
        (other,) = data_processing.trajectory_to_data(theirs(row), float(advantage))
        assert tokens(datum) == tokens(other)
        assert arrays(datum).keys() == arrays(other).keys()
        for name, values in arrays(other).items():
            np.testing.assert_allclose(arrays(datum)[name], values, rtol=1e-6, atol=1e-6, err_msg=name)


def test_without_the_mask_it_is_what_the_service_takes() -> None:
    (datum,) = to_data([session(0, [T("a", role="main")], (1.0, None, None))])
    assert {name: value.dtype for name, value in datum.loss_fn_inputs.items()} == {
        "target_tokens": "int64", "logprobs": "float32", "advantages": "float32",
    }  # fmt: skip


def test_images_are_refused() -> None:
    rows = [replace(row, multimodal=b"x") for row in session(0, [T("a", role="main")], (1.0, None, None))]
    with pytest.raises(InvalidBody, match="session s0: rows with images"):
        to_data([rows])


def test_a_batch_of_groups_of_one_sample_is_told(caplog: pytest.LogCaptureFixture) -> None:
    lone_samples._say.cache_clear()
    one, other = (session(at, [T("a", role="main")], (1.0 - at, None, None)) for at in range(2))
    assert len(to_data([one, [*one, *other]])) == 3
    assert not caplog.records
    TinkerSink().batch([SinkGroup("q1", one, 8)])
    assert not caplog.records, "its others were lost"
    to_data([one, one])
    assert "each of its groups is one sample" in caplog.text
