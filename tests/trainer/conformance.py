"""The conformance suite of RolloutSinks: random trees through a sink, read back as its framework trains them.

From the standard library alone: it runs in each trainer's own environment (adapters/, areal/, trl/), and over a sink
without any package in test_conformance.py. A sink's `Reading` says what its framework does with a batch; the suite
knows no framework.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from math import isclose, isfinite
from statistics import fmean
from typing import Any, Literal

from sandgate.contract.errors import InvalidBody
from sandgate.contract.trajectory import Trajectory, main_row
from sandgate.trainer.credit.counters import RowCounters
from sandgate.trainer.credit.group_advantages import prepare
from sandgate.trainer.credit.reasons import TRUNCATIONS, Truncated
from sandgate.trainer.credit.sink import RolloutSink, SinkGroup
from tests.trainer.made_group import RandomGroup

SEEDS = range(48)
FAILS = (0.0, 0.3, 0.7, 1.0)
MARK = 100_000
"""A prompt's first id is this and the session's number: a row says whose it is, whatever the framework keeps."""
SAMPLED = 500
"""Of a turn's ids those from here on were sampled (forest.T)."""


@dataclass(frozen=True, slots=True)
class Taught:
    """One row as the framework trains it."""

    ids: list[int]
    """Prompt and response, without padding."""
    mask: list[int]
    """For each of them."""
    logprobs: list[float]
    versions: list[int] | None = None
    """None: the framework has no place for them."""
    score: float | None = None
    """The session's; None: the framework takes none of this row."""

    @property
    def session(self) -> str | None:
        """None: a row in place of a session that left none."""
        return f"s{self.ids[0] - MARK}" if self.ids[0] >= MARK else None


@dataclass(frozen=True, slots=True)
class Reading:
    """What the suite must know of a sink."""

    sink: Callable[[Truncated], RolloutSink[Any]]
    """One that scores, or masks, episodes that a limit ended."""
    read: Callable[[Any], Sequence[Taught]]
    """All rows of the batch of one group, with the framework's own functions where it has any."""
    rows: Literal["all", "path"] = "all"
    """Every row of a session that teaches; or one, with all that was sampled on its path."""
    score: Literal["reward", "advantage"] = "reward"
    """What `Taught.score` is: of the session, to whose group the framework makes the mean; or `prepare`'s, unscaled or
    scaled."""
    scale: bool = False
    scores_later: bool = False
    """Where nobody scored anything in the whole batch, the framework does, and what did not fail is trained."""


@cache
def groups() -> list[RandomGroup]:
    """Of SEEDS. Needs what the gateway's extra installs."""
    from tests.trainer.groups import random_group

    return [random_group(seed, fails=FAILS[seed % len(FAILS)]) for seed in SEEDS]


def check(reading: Reading, given: Sequence[RandomGroup] | None = None) -> None:
    """Raises AssertionError naming the group's seed. `given`: `groups()`, where that cannot run here."""
    for seed, group in enumerate(groups() if given is None else given):
        for truncated in ("score", "mask"):
            _check(reading, _marked(group), seed, truncated)
    rows = [row for group in (groups() if given is None else given) for row in group.plain]
    _refuses(reading, next(row for row in rows if row.reward and len(row.response_ids) == 3))
    batch = reading.sink("score").batch([SinkGroup("q1", [], 2)])
    assert not any(sum(row.mask) for row in reading.read(batch)), "nothing is trained of a group without rows"


UNFIT: dict[str, dict[str, Any]] = {
    "a reward that is no number": {"reward": float("nan")},
    "an infinite reward": {"reward": float("inf")},
    "a logprob that is no number": {"response_logprobs": array("f", [float("nan")] * 3)},
    "no prompt": {"prompt_ids": array("i")},
    "a mask of 2": {"loss_mask": array("b", [2, 1, 1])},
    "images": {"multimodal": b"x"},
}
"""What no gateway writes, or what is not carried; of a row with three sampled tokens."""


def _refuses(reading: Reading, row: Trajectory) -> None:
    cases = {name: [replace(row, **changes)] for name, changes in UNFIT.items()}
    cases["rows of two tasks"] = [row, replace(row, uid="q2", session_id="other", sample_index=1)]
    for name, rows in cases.items():
        try:
            reading.sink("score").batch([SinkGroup("q1", rows, 2)])
        except InvalidBody:
            continue
        raise AssertionError(f"it is not refused: {name}")


def _marked(group: RandomGroup) -> RandomGroup:
    """Each session has a prompt and logprobs of its own."""
    return replace(
        group, forked=[_own(row) for row in group.forked], plain=[_own(row) for row in group.plain]
    )


def _own(row: Trajectory) -> Trajectory:
    number = row.sample_index
    sampled = zip(row.response_logprobs, row.loss_mask, strict=True)
    return replace(
        row,
        prompt_ids=array("i", [MARK + number]) + row.prompt_ids,
        response_logprobs=array("f", [one - number if bit else 0.0 for one, bit in sampled]),
    )


def _check(reading: Reading, group: RandomGroup, seed: int, truncated: Truncated) -> None:
    said = f"seed {seed}, truncated {truncated}"
    counters = RowCounters()
    given = SinkGroup("q1", group.forked, group.sessions)
    taught = reading.read(reading.sink(truncated).batch([given], counters))
    sessions: dict[str, list[Trajectory]] = {}
    for one in group.forked:
        sessions.setdefault(one.session_id, []).append(one)
    counts = {
        name
        for name in _ended(reading, group, sessions)
        if truncated == "score" or main_row(sessions[name]).failure_reason not in TRUNCATIONS
    }
    found: dict[str, Counter[int]] = {}
    for row in taught:
        _row(row, sessions, f"{said}, {row.session}")
        if row.session is not None:
            bits = zip(row.ids, row.mask, strict=True)
            found.setdefault(row.session, Counter()).update(token for token, bit in bits if bit)
    trained = {name for name, ids in found.items() if ids}
    assert trained == counts, f"{said}: {trained} are trained, {counts} count"
    for name in counts:
        _session(reading, name, sessions[name], group.main_turns.get(name, []), found[name], said)
    _scores(reading, taught, group, counts, truncated, said)
    live = sum(1 in row.mask for row in taught)
    assert counters.taught == live, f"{said}: {counters.taught} rows are counted as taught, {live} teach"
    assert sum(counters.left_out.values()) >= group.sessions - len(counts), f"{said}: some are not counted"


def _ended(reading: Reading, group: RandomGroup, sessions: dict[str, list[Trajectory]]) -> list[str]:
    """The sessions that count, if limits do."""
    if reading.scores_later and all(row.reward is None for row in group.forked):
        return [name for name, rows in sessions.items() if main_row(rows).failure_class is None]
    return list(group.rewards)


def _row(row: Taught, sessions: dict[str, list[Trajectory]], said: str) -> None:
    """Whole, all numbers, and of each trained token what its engine said."""
    assert len(row.ids) == len(row.mask) == len(row.logprobs), f"{said}: columns of different lengths"
    assert all(map(isfinite, row.logprobs)), f"{said}: a logprob is no number"
    assert row.score is None or isfinite(row.score), f"{said}: a score is no number"
    if row.session is None:
        assert not any(row.mask), f"{said}: a row of no session is trained"
        return
    own = sessions[row.session]
    assert any(row.ids == [*one.prompt_ids, *one.response_ids] for one in own), (
        f"{said}: no row of the session"
    )
    truth = _truth(own)
    for at, (one, bit) in enumerate(zip(row.ids, row.mask, strict=True)):
        if bit:
            assert one in truth, f"{said}: {one} at {at} is trained, and was not sampled"
            logprob, version = truth[one]
            assert row.logprobs[at] == logprob, f"{said}: logprob at {at}"
            assert row.versions is None or row.versions[at] == version, f"{said}: version at {at}"


def _truth(rows: Sequence[Trajectory]) -> dict[int, tuple[float, int]]:
    """Id -> logprob and version, of what was sampled; in a session an id is of one token."""
    found = {}
    for row in rows:
        columns = zip(row.response_ids, row.loss_mask, row.response_logprobs, row.versions, strict=True)
        found.update({one: (logprob, version) for one, bit, logprob, version in columns if bit})
    return found


def _session(
    reading: Reading,
    name: str,
    rows: Sequence[Trajectory],
    main: Sequence[str],
    found: Counter[int],
    said: str,
) -> None:
    """What is to be trained is, and once."""
    assert max(found.values()) == 1, f"{said}, {name}: a token is trained twice"
    if reading.rows == "path":
        ids = main_row(rows).response_ids
        wanted = {one for one in ids if one % 1000 >= SAMPLED}
        assert set(found) == wanted, f"{said}, {name}: the main path is not what is trained"
        return
    turns = {"abcdefghij"[one // 1000 - 1] for one in found}
    assert set(main) <= turns, f"{said}, {name}: turns of the main role are not trained: {set(main) - turns}"
    wanted = {
        one
        for row in rows
        if row.role in ("main", "subagent")
        for one, bit in zip(row.response_ids, row.loss_mask, strict=True)
        if bit
    }
    assert set(found) == wanted, f"{said}, {name}: what is trained is not the rows of taught roles"


def _scores(
    reading: Reading,
    taught: Sequence[Taught],
    group: RandomGroup,
    counts: set[str],
    truncated: Truncated,
    said: str,
) -> None:
    """Each session's is its own, and those that do not count move nothing."""
    if reading.score == "advantage":
        scores = prepare(group.plain, scale=reading.scale, truncated=truncated)
        wanted = {row.trajectory.session_id: row.advantage for row in scores.rows}
    else:
        wanted = dict(group.rewards)
    live, every = [], []
    for row in taught:
        if row.score is None:
            continue
        every.append(row.score)
        if row.session in counts and (1 in row.mask or reading.rows == "path"):
            live.append(row.score)
            own = wanted[row.session]
            assert isclose(row.score, own, abs_tol=1e-5), f"{said}, {row.session}: {row.score}, not {own}"
    if live and reading.score == "reward":
        assert isclose(fmean(every), fmean(live), abs_tol=1e-5), f"{said}: what does not count moves the mean"


# -- What the suite must find: each breaks what a right adapter made --------------------------------------------------


def _shifted(rows: Sequence[Taught]) -> list[Taught]:
    """The mask is one token late."""
    return [replace(row, mask=[0, *row.mask[:-1]]) for row in rows]


def _logprobs_shifted(rows: Sequence[Taught]) -> list[Taught]:
    """Logprobs are one token early, as a model's outputs are."""
    return [replace(row, logprobs=[*row.logprobs[1:], 0.0]) for row in rows]


def _one_turn_dropped(rows: Sequence[Taught]) -> list[Taught]:
    """What branches share is trained in none of them."""
    return [replace(row, mask=_without_first_turn(row)) for row in rows]


def _without_first_turn(row: Taught) -> list[int]:
    turns = [one // 1000 for one, bit in zip(row.ids, row.mask, strict=True) if bit]
    if len(set(turns)) < 2:
        return row.mask
    return [bit if one // 1000 != turns[0] else 0 for one, bit in zip(row.ids, row.mask, strict=True)]


def _failure_trained(rows: Sequence[Taught]) -> list[Taught]:
    """A crash is scored 0.0, and taught."""
    return [
        row
        if any(row.mask)
        else replace(row, score=0.0, mask=[int(one < MARK and one % 1000 >= SAMPLED) for one in row.ids])
        for row in rows
    ]


def _failure_scored(rows: Sequence[Taught]) -> list[Taught]:
    """It teaches nothing of its own, but is part of the mean."""
    return [row if any(row.mask) else replace(row, score=-3.0) for row in rows]


def _nan(rows: Sequence[Taught]) -> list[Taught]:
    """A number is none."""
    return [replace(row, logprobs=[float("nan"), *row.logprobs[1:]]) for row in rows]


def _cut(rows: Sequence[Taught]) -> list[Taught]:
    """The last token of a row is lost."""
    return [
        replace(row, ids=row.ids[:-1], mask=row.mask[:-1], logprobs=row.logprobs[:-1])
        if len(row.ids) > 3
        else row
        for row in rows
    ]


def _versions_oldest(rows: Sequence[Taught]) -> list[Taught]:
    """Every token has the row's oldest version."""
    return [
        row if row.versions is None else replace(row, versions=[min(row.versions, default=0)] * len(row.ids))
        for row in rows
    ]


Mutant = Callable[[Sequence[Taught]], list[Taught]]


def mutants(reading: Reading, *, places: bool = True, versions: bool = True) -> dict[str, Mutant]:
    """Those that can be seen in this sink. `places`: it keeps rows that do not teach. `versions`: it has some."""
    found: dict[str, Mutant] = {
        "the mask is shifted": _shifted,
        "logprobs are shifted": _logprobs_shifted,
        "a fork's shared turn is dropped": _one_turn_dropped,
        "a logprob is NaN": _nan,
        "a row is cut": _cut,
    }
    if places:
        found["a failure is trained"] = _failure_trained
        if reading.score == "reward":
            found["a failure is part of the mean"] = _failure_scored
    if versions:
        found["versions are the oldest"] = _versions_oldest
    return found


def check_mutants(reading: Reading, given: Sequence[RandomGroup] | None = None, **which: bool) -> None:
    """The suite holds for the sink, and for no mutant of it."""
    check(reading, given)
    for name, mutant in mutants(reading, **which).items():

        def broken(batch: Any, change: Mutant = mutant) -> list[Taught]:
            return change(reading.read(batch))

        with _refused(name):
            check(replace(reading, read=broken), given)


@contextmanager
def _refused(name: str) -> Iterator[None]:
    """pytest.raises, where there is no pytest."""
    try:
        yield
    except AssertionError:
        return
    raise AssertionError(f"the suite does not see it: {name}")
