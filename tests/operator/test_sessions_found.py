"""What gateways hold when an operator starts: it is taken in part by part, as if one by one, and others have turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.contract.control_api import TaskPage
from sandgate.contract.job import Metadata, RolloutJob, Task
from sandgate.contract.manifest_decoder import decode
from sandgate.contract.names import API_VERSION
from sandgate.contract.session import SessionState, SessionSummary
from sandgate.operator.cluster import engine_discovery, resync
from sandgate.operator.cluster.job import ClusterJob
from sandgate.operator.driver.state import DriverState, Renewal
from sandgate.operator.observed import events, fold
from sandgate.operator.observed.fold import apply
from sandgate.operator.observed.job import Observed
from sandgate.operator.observed.remotes import METADATA
from sandgate.operator.observed.restarts import recalled, regained
from sandgate.operator.plan.actions import Ref, SessionObserved
from tests.operator.cluster_rig import SETTINGS, manifest
from tests.operator.plans import ref, want
from tests.operator.pod_lives import GATEWAY, Life, Lives, Monitor
from tests.support.gateway import SECRET, eventually

WANT = want(groupSize=2, tasks={"queue": {}})
GATEWAYS = ("g0", "g1")
SESSIONS = st.lists(
    st.tuples(
        st.sampled_from(GATEWAYS),
        st.builds(
            SessionSummary,
            session_id=st.just(""),
            state=st.sampled_from([SessionState.FINALIZED] * 4 + [SessionState.ABORTED, SessionState.OPEN]),
            job=st.just("shop"),
            uid=st.sampled_from("abcd"),
            sample_index=st.integers(0, 1),
            attempt=st.integers(0, 2),
            turns=st.integers(0, 1),
            committed=st.booleans(),
            failure_reason=st.sampled_from([None, None, None, "Evicted", "Straggler", "AgentExit"]),
            failure_detail=st.sampled_from(["", "why"]),
            metadata=st.sampled_from([{}, {}, METADATA]),
        ),
    ),
    max_size=24,
)
AGAIN = st.frozensets(st.tuples(st.sampled_from("abcd"), st.integers(0, 1)), max_size=2)


def _recall(at: Ref, said: SessionSummary) -> SessionObserved | None:
    if said.state.ended and said.committed:
        return None
    return SessionObserved(ref=at, opened_at=said.created_at, summary=said, remote=bool(at.called))


def _named(said: SessionSummary) -> SessionSummary:
    uid = f"elsewhere-{said.uid}" if said.metadata else said.uid
    name = f"r-{uid}-{said.sample_index}-{said.attempt}" if said.metadata else ""
    return replace(said, uid=uid, session_id=name or ref(said.uid, said.sample_index, said.attempt).name)


def _one_by_one(seen: Observed, event: events.SessionsFound) -> Observed:
    seen = replace(seen, changed=(), now_settled=())
    for one in event.sessions:
        take = fold._recalled_remote if one.ref.called else fold._recalled
        seen = take(seen, event.gateway, one)
    for uid in list(seen.groups):
        seen = replace(seen, groups=seen.groups.set(uid, regained(seen.groups[uid], event.again)))
        seen = fold._settle(seen, (uid,))
    return seen


@given(listed=SESSIONS, again=AGAIN, size=st.integers(1, 3))
def test_a_listing_in_one_event_or_in_parts_or_one_by_one_is_the_same(
    listed: list[tuple[str, SessionSummary]], again: frozenset[tuple[str, int]], size: int
) -> None:
    start = apply(Observed(want=WANT), events.TasksAdded(("a", "b")))
    at_once, in_parts, one_by_one = start, start, start
    changed: list[set[str]] = [set(), set(), set()]
    settled: list[list[str]] = [[], [], []]
    homes: dict[str, str] = {}
    for gateway, said in listed:  # a task is at one gateway
        homes.setdefault(_named(said).uid, gateway)
    for gateway in GATEWAYS:
        mine = {
            one.session_id: one for one in (_named(said) for _, said in listed) if homes[one.uid] == gateway
        }
        found = events.SessionsFound(gateway, recalled(WANT, mine.values(), _recall), again)
        at_once, one_by_one = apply(at_once, found), _one_by_one(one_by_one, found)
        changed[0] |= set(at_once.changed)
        changed[2] |= set(one_by_one.changed)
        settled[0] += at_once.now_settled
        settled[2] += one_by_one.now_settled
        tasks: dict[str, list[SessionSummary]] = {}
        for one in mine.values():
            tasks.setdefault(one.uid, []).append(one)
        those = list(tasks.values())
        for first in range(0, len(those), size):
            part = recalled(WANT, [one for each in those[first : first + size] for one in each], _recall)
            in_parts = apply(in_parts, events.SessionsFound(gateway, part, again))
            changed[1] |= set(in_parts.changed)
            settled[1] += in_parts.now_settled
    assert at_once == one_by_one
    assert _unordered(in_parts) == _unordered(one_by_one), "in parts"
    assert (list(at_once.groups), settled[0]) == (list(one_by_one.groups), settled[2]), "in the same order"
    assert sorted(settled[1]) == sorted(settled[2])
    assert changed[0] - {"job"} == changed[1] - {"job"} == changed[2] - {"job"}


def _unordered(seen: Observed) -> Observed:
    """Causes are told in the order in which they were seen, and tasks come in another one."""
    causes = tuple(sorted(seen.tally.fruitless.causes))
    return replace(seen, tally=replace(seen.tally, fruitless=replace(seen.tally.fruitless, causes=causes)))


@given(sizes=st.lists(st.integers(1, 900), max_size=20))
def test_parts_are_small_and_hold_whole_tasks(sizes: list[int]) -> None:
    tasks = [
        [
            SessionSummary(session_id=f"{uid}-{n}", state=SessionState.FINALIZED, uid=str(uid))
            for n in range(size)
        ]
        for uid, size in enumerate(sizes)
    ]
    found = list(resync.parts(tasks))
    assert [one for part in found for one in part] == [one for those in tasks for one in those]
    uids = [{one.uid for one in part} for part in found]
    assert sum(map(len, uids)) == len(sizes), "no task is in two of them"
    assert all(len(part) < resync.PART + 900 for part in found)


def _state(seen: Observed) -> DriverState:
    job = RolloutJob(
        api_version=API_VERSION, kind=RolloutJob.KIND, metadata=Metadata(name="shop"), spec=WANT.spec
    )
    return DriverState(job=job, observed=seen, changed=lambda key: None, now=lambda: 9.0)


def test_what_is_observed_while_a_record_is_made_anew_is_in_both() -> None:
    state = _state(Observed(want=WANT))
    with state.renewed(Observed(want=WANT)) as made:
        state.observe(events.SessionOpened(ref("a"), "g0", 5.0))
        assert ref("a").name in state.observed.sessions
        assert ref("a").name not in made.seen.sessions
        made.take(events.SessionOpened(ref("b"), "g0", 5.0))
        assert ref("b").name not in state.observed.sessions
    assert set(state.observed.sessions) == {ref("a").name, ref("b").name}
    state.observe(events.SessionCommitted(ref("a").name))
    assert made.news == [events.SessionOpened(ref("a"), "g0", 5.0)], "after that it is over"


def test_a_record_that_cannot_be_made_leaves_the_one_before() -> None:
    state = _state(before := Observed(want=WANT, begun=7))
    with pytest.raises(OSError, match="no"), state.renewed(Observed(want=WANT)):
        raise OSError("no")
    assert state.observed is before


async def test_an_operator_that_starts_beside_thousands_of_finished_groups_lets_others_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups = 3_000
    lives = Lives(Life(reward={"source": "exitCode"}))
    body = await lives.kube.create(manifest("x", tasks={"queue": {}}, groupSize=1))
    job = decode(RolloutJob, body, ignore_unknown=True)
    mine = [ref(f"task-{n}") for n in range(groups)]
    lives.gateway.sessions.update({one.name: _ended(one) for one in mine})
    taken = [0]
    monkeypatch.setattr(resync, "recalled", _counted(taken))
    spinner = asyncio.ensure_future(_turns(taken))
    operator = _operator(lives, job)
    await operator.intake.arrived(operator.at.monitors[GATEWAY], list(lives.gateway.sessions.values()))
    spinner.cancel()
    assert (len(operator.observed.settled), operator.observed.loaded) == (groups, True)
    assert operator.observed.job().committed == groups
    assert (sum(taken), max(taken) <= resync.PART) == (groups, True)
    await operator.stop()


class _Queue:
    """Of a gateway that was told the last task. All but these were done long ago."""

    def __init__(self, real: Any, fresh: tuple[str, ...]) -> None:
        self.real, self.fresh = real, fresh

    def __getattr__(self, name: str) -> Any:
        return getattr(self.real, name)

    async def sessions(self, *, job: str) -> AsyncIterator[SessionSummary]:
        for one in list(self.real.sessions.values()):
            yield one

    async def tasks(self, after: int = 0) -> TaskPage:
        tasks = [(at, Task(uid=uid, prompt="x")) for at, uid in enumerate(self.fresh, 1) if at > after]
        return TaskPage(len(self.fresh), True, tuple(tasks))


async def test_tasks_that_nobody_began_are_not_over_because_the_store_is_built_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_discovery, "TASKS_S", 0.0)  # it looks in every turn of the loop
    lives = Lives(Life(reward={"source": "exitCode"}))
    body = await lives.kube.create(manifest("x", tasks={"queue": {}}, groupSize=1))
    mine = [ref(f"task-{n}") for n in range(3 * resync.PART)]
    lives.gateway.sessions.update({one.name: _ended(one) for one in mine})
    operator = _operator(lives, decode(RolloutJob, body, ignore_unknown=True))
    monitor: Any = operator.at.monitors[GATEWAY]
    monitor.client = _Queue(lives.gateway, ("fresh-1", "fresh-2"))
    await operator.intake.arrived(monitor, list(lives.gateway.sessions.values()))
    await eventually(lambda: not operator.observed.more, "the trainer's last word was heard")
    over = list[bool]()
    replaced = operator.at.renewed

    @contextmanager
    def looked_at(seen: Observed) -> Iterator[Renewal]:
        with replaced(seen) as made:
            yield made
        over.append(not operator.observed.more)

    monkeypatch.setattr(type(operator.at), "renewed", lambda self, seen: looked_at(seen))
    async with operator.intake.lock:
        await operator.intake._load_with(monitor)
    assert over == [False], "its tasks are asked for anew"
    await eventually(lambda: not operator.observed.more, "and known again")
    assert sorted(operator.observed.fresh) == ["fresh-1", "fresh-2"]
    await operator.stop()


def _ended(one: Ref) -> SessionSummary:
    return SessionSummary(
        session_id=one.name,
        state=SessionState.FINALIZED,
        job="shop",
        uid=one.uid,
        turns=2,
        reward=1.0,
        committed=True,
        retired=True,
    )


def _counted(taken: list[int]) -> Any:
    """Counts what is recalled, turn by turn of the loop."""

    def counting(*args: Any) -> Any:
        found = recalled(*args)
        taken[-1] += len(found)
        return found

    return counting


async def _turns(taken: list[int]) -> None:
    while True:
        taken.append(0)
        await asyncio.sleep(0)


def _operator(lives: Lives, job: RolloutJob) -> ClusterJob:
    one = ClusterJob(
        lives.kube,
        SETTINGS,
        job,
        None,
        touch=lambda key: None,
        forget=lambda key: None,
        connect=lambda *_: lives.gateway,  # type: ignore[arg-type]
        now=lambda: lives.now,
    )
    one.at.signed(SECRET)
    monitor: Any = Monitor(lives.gateway)
    one.at.monitors[GATEWAY] = monitor
    return one
