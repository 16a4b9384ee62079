"""A clock that jumps under a run, as when its machine sleeps, costs no session its time."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.session import SessionState, SessionSummary
from sandgate.operator.driver.state import DriverState
from sandgate.operator.local.attendance import Seen
from sandgate.operator.local.clock import STEP_S, RunClock
from sandgate.operator.local.job import Note, SessionEnded
from sandgate.operator.local.journals import Journals
from sandgate.operator.local.supervise import Supervised
from sandgate.operator.local.trainers import Trainers
from sandgate.operator.observed import events
from sandgate.operator.observed.events import ClockStepped
from sandgate.operator.observed.fold import apply
from sandgate.operator.observed.job import JOB_KEY, Observed
from sandgate.operator.plan.actions import (
    Action,
    Exit,
    Outage,
    Ref,
    Running,
    SessionObserved,
    SideCars,
    StartAttempt,
    Stop,
    StopAttempt,
    WakeAt,
)
from sandgate.operator.plan.job import plan_job
from sandgate.operator.plan.outcome import failure
from sandgate.operator.plan.session import FORCE_S, plan_session
from sandgate.sandbox.process import Guard
from tests.operator.benches import Processes
from tests.operator.plans import ref, spec, want
from tests.operator.rig import job, rig
from tests.operator.test_job_driver import opens

HOURS_S = 7200.0
REF = Ref("shop", "a", 0, 0)


class Clocks:
    """Both, as a test sets them."""

    def __init__(self) -> None:
        self.wall, self.steady = 1000.0, 5.0
        self.steps: list[float] = []

    def clock(self) -> RunClock:
        made = RunClock(lambda: self.wall, lambda: self.steady)
        made.stepped = self.steps.append
        return made

    def pass_(self, wall: float, steady: float) -> None:
        self.wall, self.steady = self.wall + wall, self.steady + steady


JUMPS: dict[str, tuple[float, float, list[float]]] = {
    "time passes": (60.0, 60.0, []),
    "the machine slept": (60.0 + HOURS_S, 60.0, [HOURS_S]),
    "it was set back": (-HOURS_S, 0.0, [-HOURS_S]),
    "it was slewed": (60.5, 60.0, []),
    "it stood still for a step": (0.0, STEP_S, [-STEP_S]),
}


@pytest.mark.parametrize(("wall", "steady", "steps"), JUMPS.values(), ids=JUMPS)
def test_a_clock_says_what_it_was_stepped_by_once(wall: float, steady: float, steps: list[float]) -> None:
    clocks = Clocks()
    clock = clocks.clock()
    assert clock() == clocks.wall
    clocks.pass_(wall, steady)
    assert [clock(), clock()] == [clocks.wall] * 2
    assert clocks.steps == steps


def test_a_process_that_is_held_up_between_its_clocks_was_not_stepped() -> None:
    reads, clocks = iter([5.0, 5.0, 5.0, 9.0, 9.0, 9.0]), Clocks()
    clock = RunClock(lambda: clocks.wall, lambda: next(reads))
    clock.stepped = clocks.steps.append
    clocks.wall += 4.0
    assert clock() == clocks.wall
    assert clocks.steps == []


# -- what is remembered moves along ------------------------------------------------------------------------------------

AT = 1_000_000.0


def summary(**said: float) -> SessionSummary:
    return SessionSummary(session_id=ref().name, state=SessionState.OPEN, turns=2, **said)  # type: ignore[arg-type]


RUNS = Running(AT, AT + 1, placed_at=AT)
ENDED = replace(RUNS, exit=Exit(AT + 5, 0))
SESSIONS: dict[str, SessionObserved] = {
    "it was opened": SessionObserved(ref=ref(), opened_at=AT),
    "it starts": SessionObserved(ref=ref(), opened_at=AT, sandbox=Running(AT)),
    "it runs": SessionObserved(ref=ref(), opened_at=AT, sandbox=RUNS),
    "it is stopped": SessionObserved(
        ref=ref(), opened_at=AT, sandbox=RUNS, stop=Stop(FailureReason.STRAGGLER), stop_at=AT + 3
    ),
    "it ended": SessionObserved(ref=ref(), opened_at=AT, sandbox=ENDED),
    "it ended and was looked at": SessionObserved(ref=ref(), opened_at=AT, sandbox=ENDED, looked_at=AT + 6),
    "it is judged": SessionObserved(
        ref=ref(), opened_at=AT, sandbox=ENDED, looked_at=AT + 6, verifier=Running(AT + 6, AT + 7)
    ),
    "its side-cars are stopped": SessionObserved(
        ref=ref(), opened_at=AT, sandbox=replace(ENDED, side_cars=SideCars.RUN), looked_at=AT + 6,
        side_cars_stop_at=AT + 6,
    ),
    "its verifier is stopped": SessionObserved(
        ref=ref(), opened_at=AT, sandbox=ENDED, looked_at=AT + 6, verifier=Running(AT + 6, AT + 7),
        verifier_stop_at=AT + 8,
    ),
    "its gateway was away": SessionObserved(
        ref=ref(), opened_at=AT, sandbox=replace(RUNS, exit=Exit(AT + 5, 1)), looked_at=AT + 6,
        outages=(Outage(AT + 3, AT + 4, FailureReason.GATEWAY_LOST),),
    ),
    "it got over an outage": SessionObserved(
        ref=ref(), opened_at=AT, sandbox=replace(RUNS, exit=Exit(AT + 5, 1)), looked_at=AT + 6,
        outages=(Outage(AT + 2, AT + 3, FailureReason.ENGINE_LOST),), summary=summary(turned_at=AT + 4),
    ),
    "it died of its gateway's restart": SessionObserved(
        ref=ref(), opened_at=AT, sandbox=replace(RUNS, exit=Exit(AT + 5, 1)), looked_at=AT + 6,
        summary=summary(turned_at=AT + 3, restarted_at=AT + 4),
    ),
    "it waited for its gateway, and was stopped": SessionObserved(
        ref=ref(), opened_at=AT, sandbox=replace(RUNS, exit=Exit(AT + 100, None, signal=9)), looked_at=AT + 101,
        stop=Stop(FailureReason.SESSION_TIMEOUT), stop_at=AT + 99,
        summary=summary(restarted_at=AT + 4, asked_again_at=AT + 60),
    ),
}  # fmt: skip
JUDGED = spec(reward={"source": "verifier", "verifier": {"container": {"command": ["judge"]}}})


def at_old(plan: list[Action], by: float) -> list[Action]:
    return [WakeAt(one.at - by) if isinstance(one, WakeAt) else one for one in plan]


@pytest.mark.parametrize("by", [HOURS_S, -HOURS_S])
@pytest.mark.parametrize("later", [7.0, 50.0, 101.0, 7.0 + FORCE_S, 300.0, 700.0])
@pytest.mark.parametrize("session", SESSIONS.values(), ids=SESSIONS)
def test_a_session_is_planned_as_if_the_clock_had_not_jumped(
    session: SessionObserved, later: float, by: float
) -> None:
    seen = apply(Observed(want=want()), events.GroupBegun("a", "g"))
    seen = replace(seen, sessions=seen.sessions.set(session.ref.name, replace(session, wake_at=AT + 20)))
    moved = apply(seen, ClockStepped(by, AT + 7 + by)).sessions[session.ref.name]
    assert moved.wake_at is None
    assert at_old(plan_session(JUDGED, moved, AT + later + by), by) == plan_session(
        JUDGED, session, AT + later
    )
    if session.sandbox is not None and session.sandbox.exit is not None and moved.sandbox is not None:
        assert moved.sandbox.exit is not None
        assert failure(JUDGED, moved, moved.sandbox.exit) == failure(JUDGED, session, session.sandbox.exit)


@pytest.mark.parametrize("later", [1.0, 40.0, 90.0, 400.0])
def test_a_job_is_planned_as_if_the_clock_had_not_jumped(later: float) -> None:
    """Its deadline, its trainer's silence, its stragglers, its retries."""
    asked = want(activeDeadlineSeconds=300, trainer={"heartbeatSeconds": 60}, groupSize=2,
                 group={"quorum": 1, "stragglerSeconds": 30, "retry": {"infra": 3}})  # fmt: skip
    seen = Observed(want=asked, started_at=AT, heard_at=AT, since=AT)
    for event in (
        events.GatewayChanged("g", ready=True),
        events.GroupBegun("a", "g"),
        events.SessionOpened(ref(), "g", AT),
        events.SessionOpened(ref(sample=1), "g", AT),
        events.SessionVanished(ref(), AT + 2),
    ):
        seen = apply(seen, event)
    moved = apply(replace(seen, wake_at=AT + 3), ClockStepped(HOURS_S, AT + 3 + HOURS_S))
    assert set(moved.changed) == {JOB_KEY, *seen.sessions}
    before = plan_job(asked, seen.job(), AT + later)
    after = at_old(list(plan_job(asked, moved.job(), AT + later + HOURS_S)), HOURS_S)
    assert [type(one) for one in after] == [type(one) for one in before]
    assert [one for one in after if isinstance(one, WakeAt | StopAttempt)] == [
        one for one in before if isinstance(one, WakeAt | StopAttempt)
    ]


OPENED = SessionObserved(ref=ref(), opened_at=AT, sandbox=RUNS)
SAID: dict[str, tuple[list[tuple[float, float]], float, float]] = {
    "before a sleep": ([(100.0, 7200.0)], 50.0, 50.0 + 7200.0),
    "after a sleep": ([(100.0, 7200.0)], 101.0 + 7200.0, 101.0 + 7200.0),
    "after a sleep, before that was noticed": ([(100.0, 7200.0)], 99.5 + 7200.0, 99.5 + 7200.0),
    "before a small step": ([(100.0, 4.0)], 50.0, 54.0),
    "right before the clock was set back": ([(4000.0, -3600.0)], 3999.0, 399.0),
    "long before the clock was set back": ([(4000.0, -3600.0)], 60.0, 60.0 - 3600.0),
    "after the clock was set back": ([(4000.0, -3600.0)], 405.0, 405.0),
    "in answer to a question from before it": ([(4000.0, -3600.0)], 410.0 + 200.0, 410.0 + 200.0),
    "before two steps": ([(100.0, 7200.0), (8000.0, 3600.0)], 50.0, 50.0 + 7200.0 + 3600.0),
    "between two steps": ([(100.0, 7200.0), (8000.0, 3600.0)], 7500.0, 7500.0 + 3600.0),
    "before one that was set right": ([(100.0, 7200.0), (8000.0, -7200.0)], 50.0, 50.0),
    "after it was set back a little, and slept then": ([(100.0, -3.0), (200.0, 60.0)], 300.0, 300.0),
    "after it was set back by an hour, and slept then": (
        [(4000.0, -3600.0), (1000.0, 7200.0)],
        8300.0,
        8300.0,
    ),
    "while the clock was ahead": ([(100.0, 7200.0), (8000.0, -7200.0)], 7500.0, 300.0),
}
"""Case -> steps (what the old clock said then, by how much), when the last turn was, and when that is now: seconds
after AT. The gateway is asked 10 s after the last step."""


@pytest.mark.parametrize(("steps", "turned", "now"), SAID.values(), ids=SAID)
def test_what_a_gateway_tells_is_put_by_the_present_clock(
    steps: list[tuple[float, float]], turned: float, now: float
) -> None:
    seen = apply(Observed(want=want()), events.GroupBegun("a", "g"))
    seen = replace(seen, sessions=seen.sessions.set(OPENED.ref.name, OPENED))
    for old, by in steps:
        seen = apply(seen, ClockStepped(by, AT + old + by))
    asked = seen.steps[-1].at + 10
    told = summary(turned_at=AT + turned, restarted_at=AT + turned)
    said = apply(seen, events.SessionReported(told, asked)).sessions[OPENED.ref.name].summary
    assert said is not None
    assert (said.turned_at, said.restarted_at, said.asked_again_at) == (AT + now, AT + now, None)


@pytest.mark.parametrize("by", [HOURS_S, -HOURS_S])
@pytest.mark.parametrize("later", [0.0, 0.4, 0.9, 1.5, 3.0], ids="after {} of the step".format)
def test_what_was_told_before_a_step_stays_where_it_was_when_it_is_told_again(
    by: float, later: float
) -> None:
    seen = apply(Observed(want=want()), events.GroupBegun("a", "g"))
    seen = replace(seen, sessions=seen.sessions.set(OPENED.ref.name, OPENED))
    told = summary(turned_at=AT + 40, restarted_at=AT + 30, asked_again_at=AT + 35)
    before = apply(seen, events.SessionReported(told, AT + 50))
    stepped = apply(before, ClockStepped(by, AT + 60 + by))
    again = apply(stepped, events.SessionReported(told, AT + 60 + by + later * HOURS_S))
    assert again.sessions[OPENED.ref.name].summary == stepped.sessions[OPENED.ref.name].summary
    assert apply(before, events.SessionReported(told, AT + 55)).sessions[OPENED.ref.name].summary == told


# -- and so do real processes ------------------------------------------------------------------------------------------


async def test_an_agent_whose_machine_slept_has_as_much_time_as_before(tmp_path: Path) -> None:
    guard = Guard()
    bench = Processes(tmp_path, guard)
    asleep = 0.0
    clock = RunClock(lambda: time.time() + asleep)
    clock.stepped = lambda by: bench.state.observe(ClockStepped(by, clock()))
    bench.state.now = clock
    try:
        await bench.act(opens(bench), StartAttempt(REF))
        await bench.agent_runs(REF)
        asleep = HOURS_S
        assert not [one for one in bench.driver.plan_session(REF.name) if isinstance(one, StopAttempt)]
        began = bench.seen.sandbox
        assert began is not None
        assert began.started_at is not None
        assert began.started_at > time.time() + HOURS_S - 60
        os.kill(bench.sandboxes.agents[REF.name].pid, signal.SIGUSR1)
        ended = (await bench.ended("sandbox")).sandbox
        assert ended is not None
        assert (ended.asked_at, ended.started_at) == (began.asked_at, began.started_at)
    finally:
        await bench.close()
        guard.close()


async def test_a_run_on_a_machine_that_sleeps_scores_what_its_agents_did(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    true, asleep, told = time.time, [0.0], asyncio.Event()
    monkeypatch.setattr(time, "time", lambda: true() + asleep[0])
    async with rig(tmp_path) as it:
        gate = it.script.gate("seven")

        def on_event(event: Any) -> None:
            if isinstance(event, Note) and "slept" in event.text:
                told.set()

        it.on_event = on_event
        run = asyncio.create_task(it.run(job("a seven kiwis", limits={"sessionSeconds": 900})))
        await gate.reached.wait()
        asleep[0] = HOURS_S
        await told.wait()
        gate.open.set()
        assert (await run).complete
    assert [one.failure_reason for one in it.of(SessionEnded)] == [None]
    assert [one.text for one in it.of(Note) if "slept" in one.text] == [
        "the clock went ahead by 7200 s (this machine slept, or it was set): it is no session's time"
    ]


def test_a_trainer_was_not_silent_while_the_machine_slept() -> None:
    now = [AT]
    state = DriverState(
        job=job("a x"), observed=Observed(want=want()), changed=lambda key: None, now=lambda: now[0]
    )
    never: Callable[..., Any] = lambda *_: None  # noqa: E731
    trainers = Trainers(state.job, never, {}, state, never)  # type: ignore[arg-type]
    assert trainers._heard(AT) == AT
    trainers.seen = replace(trainers.seen, heard_at=AT, progress_at=AT)
    trainers.stepped(HOURS_S)
    assert (trainers.seen.heard_at, trainers.seen.progress_at) == (AT + HOURS_S, AT + HOURS_S)
    assert trainers._heard(AT) == AT + HOURS_S, "gateways have not heard of it since"
    assert trainers._heard(AT + HOURS_S + 1) == AT + HOURS_S + 1


@pytest.mark.parametrize("by", [HOURS_S, -HOURS_S])
def test_a_dead_trainer_may_come_back_for_as_long_as_if_the_clock_had_not_jumped(by: float) -> None:
    state = DriverState(
        job=job("a x"), observed=Observed(want=want()), changed=lambda key: None, now=lambda: AT
    )
    never: Callable[..., Any] = lambda *_: None  # noqa: E731
    trainers = Trainers(state.job, never, {}, state, never)  # type: ignore[arg-type]
    dead, left = [("7-x", Seen(held=False, seen_at=AT))], trainers.patience.heartbeat_seconds

    def back_by() -> float:
        return trainers.seen.back_by(trainers.patience)

    trainers.seen = replace(trainers.seen, trainers=trainers._dated(dead))
    assert back_by() == AT + left
    trainers.stepped(by)
    assert back_by() == AT + by + left
    trainers.seen = replace(trainers.seen, trainers=trainers._dated(dead))
    assert back_by() == AT + by + left, "its file still says when it died"
    another = [("7-x", Seen(held=False, seen_at=AT + by + 9))]
    trainers.seen = replace(trainers.seen, trainers=trainers._dated(another))
    assert back_by() == AT + by + 9 + left, "it gave a sign of life since"


def test_an_outage_of_a_gateway_is_as_long_ago_as_before() -> None:
    never: Callable[..., Any] = lambda *_, **__: None  # noqa: E731
    process = Supervised("g", never, never, on_restart=never)  # type: ignore[arg-type]
    process.stepped(HOURS_S)
    assert (process.ended_at, process.back_at) == (None, None)
    process.ended_at, process.back_at = AT, AT + 3
    process.stepped(HOURS_S)
    assert (process.ended_at, process.back_at) == (AT + HOURS_S, AT + HOURS_S + 3)


def test_a_full_journal_is_one_outage_whatever_the_clock_does(tmp_path: Path) -> None:
    now = [AT]
    seen = apply(Observed(want=want()), events.GroupBegun("a", "g"))
    seen = apply(seen, events.SessionOpened(ref(), "g", AT))
    state = DriverState(job=job("a x"), observed=seen, changed=lambda key: None, now=lambda: now[0])
    journals = Journals(state, tmp_path, lambda told: None)
    journals.heard("g", {"journal": {"healthy": False, "detail": "disk full"}})
    now[0] += HOURS_S + 5
    state.observe(ClockStepped(HOURS_S, now[0]))
    journals.stepped(HOURS_S)
    journals.heard("g", {"journal": {"healthy": True, "detail": ""}})
    assert state.observed.sessions[ref().name].outages == (
        Outage(AT + HOURS_S, AT + HOURS_S + 5, FailureReason.GATEWAY_LOST),
    )
