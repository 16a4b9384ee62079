"""What a plan's actions come to, wherever agents run: one table of tests, each on every back end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import Unavailable, Unsupported
from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.job import Task
from sandgate.contract.session import DROPPED, SessionOutcome, SessionState, agents_task, task_of
from sandgate.operator.driver.session_spec import session_spec
from sandgate.operator.observed.events import GroupBegun
from sandgate.operator.plan.actions import (
    AbortSession,
    Action,
    CloseGroup,
    DeleteJob,
    Forget,
    HoldRemote,
    KillAttempt,
    KillVerifier,
    LookSession,
    OpenRemote,
    OpenSession,
    Provide,
    Provided,
    Ref,
    SampleState,
    SealSession,
    StartAttempt,
    StartVerifier,
    Stop,
    StopAttempt,
    StopVerifier,
    WriteSession,
)
from sandgate.operator.plan.outcome import failure
from tests.operator.benches import BENCHES, TASK, Bench, Nobody, Pods, Processes, Simulated
from tests.operator.plans import spec

REF = Ref("shop", "a", 0, 0)
LATE = Stop(FailureReason.SESSION_TIMEOUT, "too long")


@pytest.fixture(params=BENCHES)
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    async with BENCHES[request.param](tmp_path) as made:
        yield made


def opens(bench: Bench) -> OpenSession:
    return OpenSession(REF, bench.home)


async def agent_at_work(bench: Bench) -> None:
    await bench.act(opens(bench), StartAttempt(REF))
    await bench.agent_runs(REF)
    assert bench.seen.sandbox is not None
    assert bench.seen.sandbox.exit is None


def once(call: str) -> Callable[[str], None]:
    """The first call of that kind comes to nothing."""
    left = [call]

    def happens(name: str) -> None:
        if name in left:
            left.remove(name)
            raise Unavailable(f"{name}: nothing answered")

    return happens


def after_the_first(call: str) -> Callable[[str], None]:
    """The second call of that kind comes to nothing."""
    seen: list[str] = []

    def happens(name: str) -> None:
        seen.append(name)
        if name == call and seen.count(call) == 2:
            raise Unavailable(f"{name}: nothing answered")

    return happens


async def test_a_session_is_opened_once_though_asked_twice(bench: Bench) -> None:
    await bench.act(opens(bench), opens(bench))
    assert bench.gateway.calls["create"] == 1
    assert list(bench.gateway.sessions) == [REF.name]
    assert bench.state.observed.placed[REF.name] == bench.home


async def test_what_is_sealed_waits_for_its_commit_only_where_an_object_is_to_say_it(bench: Bench) -> None:
    await bench.act(opens(bench), SealSession(REF, SessionOutcome()))
    assert (bench.driver.plan_session(REF.name) == [Forget(REF)]) is not isinstance(bench, Pods)


@pytest.mark.parametrize("when", ["fail", "lose"])
async def test_a_failed_call_is_repeated(bench: Bench, when: str) -> None:
    steps: dict[str, Action] = {"create": opens(bench), "finalize": SealSession(REF, SessionOutcome())}
    for call, action in steps.items():
        setattr(bench.gateway, when, once(call))
        with pytest.raises(Unavailable):
            await bench.act(action)
        await bench.act(action)
    assert list(bench.gateway.sessions) == [REF.name]
    assert bench.gateway.sessions[REF.name].state is SessionState.FINALIZED
    assert bench.state.observed.groups["a"].samples[0].state is SampleState.ENDED


async def test_siblings_stay_where_their_group_was_begun_though_its_first_call_failed(bench: Bench) -> None:
    bench.gateway.fail = once("create")
    with pytest.raises(Unavailable):
        await bench.act(opens(bench))
    await bench.act(OpenSession(Ref("shop", "a", 1, 0), "another"))
    assert list(bench.gateway.sessions) == [Ref("shop", "a", 1, 0).name]


async def test_a_session_is_not_opened_without_its_task(bench: Bench) -> None:
    del bench.state.tasks["a"]
    await bench.act(opens(bench))
    assert bench.gateway.sessions == {}
    assert bench.state.observed.sessions == {}
    bench.state.tasks["a"] = TASK
    await bench.act(opens(bench))
    assert bench.gateway.specs[REF.name].task == task_of("a", TASK.prompt, TASK.data, 0)


async def test_an_agent_finds_the_part_of_its_task_that_it_may_see(bench: Bench) -> None:
    await agent_at_work(bench)
    shown = {"uid": "a", "prompt": "seven kiwis", "data": {"public": {"shop": 7}}, "sample_index": 0}
    assert bench.task_seen(REF) == shown == agents_task(task_of("a", TASK.prompt, TASK.data, 0))


async def test_an_outcome_that_the_gateway_refuses_is_sealed_without_its_content(bench: Bench) -> None:
    bench.gateway.picky = True
    said = SessionOutcome(failure_reason=FailureReason.AGENT_EXIT, detail="exit code 1", reward=0.5)
    await bench.act(opens(bench), SealSession(REF, said))
    sealed = bench.gateway.outcomes[REF.name]
    assert (sealed.failure_reason, sealed.detail, sealed.reward) == (FailureReason.AGENT_EXIT, "", 0.5)
    assert sealed.reward_info == {DROPPED: "refused by the gateway: detail: is refused"}
    assert bench.state.observed.groups["a"].samples[0].reason is FailureReason.AGENT_EXIT


async def test_a_session_that_somebody_aborted_ends(bench: Bench) -> None:
    await bench.act(opens(bench))
    await bench.gateway.abort(REF.name)
    await bench.act(SealSession(REF, SessionOutcome()))
    assert bench.gateway.outcomes == {}
    assert bench.seen.summary is not None
    assert bench.seen.summary.state is SessionState.ABORTED
    assert REF.name not in bench.state.observed.placed


async def test_a_session_that_is_aborted_for_its_deleted_object_ends(bench: Bench) -> None:
    await bench.act(opens(bench), AbortSession(REF))
    assert bench.gateway.sessions[REF.name].state is SessionState.ABORTED
    assert bench.state.observed.groups["a"].samples[0].state is SampleState.ENDED


VANISHED: dict[str, Action] = {
    "when it is looked at": LookSession(REF),
    "when it is sealed": SealSession(REF, SessionOutcome()),
    "when it is aborted": AbortSession(REF),
}


@pytest.mark.parametrize("action", VANISHED.values(), ids=VANISHED)
async def test_a_session_that_its_gateway_does_not_know_is_gateway_lost(bench: Bench, action: Action) -> None:
    await bench.act(opens(bench))
    bench.gateway.sessions.clear()
    await bench.act(action)
    sample = bench.state.observed.groups["a"].samples[0]
    assert (sample.state, sample.reason) == (SampleState.ENDED, FailureReason.GATEWAY_LOST)


async def test_an_agent_that_does_not_heed_a_stop_is_killed(bench: Bench) -> None:
    await agent_at_work(bench)
    await bench.act(StopAttempt(REF, LATE), StopAttempt(REF, Stop(FailureReason.ABORTED)))
    assert bench.seen.stop == LATE, "the first reason stands"
    assert bench.seen.sandbox is not None
    assert bench.seen.sandbox.exit is None
    await bench.act(KillAttempt(REF))
    assert bench.seen.killed
    assert (await bench.ended("sandbox")).stop == LATE


async def test_a_verifier_is_started_stopped_and_killed(bench: Bench) -> None:
    await agent_at_work(bench)
    await bench.agent_fails(REF)
    await bench.act(StartVerifier(REF))
    await bench.verifier_runs(REF)
    await bench.act(StopVerifier(REF))
    assert bench.seen.verifier_stop_at is not None
    assert bench.seen.verifier is not None
    assert bench.seen.verifier.exit is None
    await bench.act(KillVerifier(REF))
    assert (await bench.ended("verifier")).verifier_killed


async def test_an_agent_that_failed_while_its_gateway_was_away_is_not_to_blame(bench: Bench) -> None:
    await agent_at_work(bench)
    now = bench.state.now()
    bench.was_away(now, now)
    await bench.agent_fails(REF)
    await bench.act(LookSession(REF))
    end = (await bench.ended("sandbox")).sandbox
    assert end is not None
    assert end.exit is not None
    assert failure(bench.state.job.spec, bench.seen, end.exit)[0] is FailureReason.GATEWAY_LOST


async def test_an_agent_that_failed_by_itself_is_to_blame(bench: Bench) -> None:
    await agent_at_work(bench)
    await bench.agent_fails(REF)
    await bench.act(LookSession(REF))
    end = (await bench.ended("sandbox")).sandbox
    assert end is not None
    assert end.exit is not None
    assert failure(bench.state.job.spec, bench.seen, end.exit)[0] is FailureReason.AGENT_EXIT


async def test_a_group_is_closed_and_its_session_forgotten(bench: Bench) -> None:
    await bench.act(opens(bench), SealSession(REF, SessionOutcome()), CloseGroup("a", bench.home))
    assert bench.gateway.closed == {"a"}
    assert "a" not in bench.state.observed.groups
    await bench.act(Forget(REF))
    assert bench.state.observed.sessions == {}
    assert bench.state.opened == {}
    assert bench.forgotten == ["key"]


async def test_a_group_that_its_gateway_never_heard_of_is_closed(bench: Bench) -> None:
    bench.state.observe(GroupBegun("a", bench.home))
    await bench.act(CloseGroup("a", bench.home))
    assert "a" in bench.state.observed.settled


FAILED = SessionOutcome(failure_reason=FailureReason.NODE_LOST)
CUT_SHORT = {
    "at once": ("", ""),
    "the seal is not heard": ("fail", "finalize"),
    "the close is not": ("fail", "close_group"),
    "the answer to the creation is lost": ("lose", "create"),
}


@pytest.mark.parametrize(("when", "call"), CUT_SHORT.values(), ids=CUT_SHORT)
async def test_a_group_whose_gateway_lost_its_journal_is_told_as_lost(
    bench: Bench, when: str, call: str
) -> None:
    """A trainer that waits for its task is given the session as an empty lease."""
    await bench.act(opens(bench), SealSession(REF, FAILED))
    bench.gateway.sessions.clear()
    if when:
        setattr(bench.gateway, when, after_the_first(call) if call == "close_group" else once(call))
        with pytest.raises(Unavailable):
            await bench.act(CloseGroup("a", bench.home))
        assert "a" not in bench.state.observed.settled
    await bench.act(CloseGroup("a", bench.home))
    assert "a" in bench.state.observed.settled
    assert (bench.gateway.closed, list(bench.gateway.sessions), bench.state.lost) == ({"a"}, [REF.name], {})
    said = bench.gateway.sessions[REF.name]
    assert (said.state, said.failure_reason, said.failure_class) == (
        SessionState.FINALIZED,
        "GatewayLost",
        "infra",
    )
    assert (said.job, said.uid) == ("shop", "a")


async def test_a_group_that_was_trained_on_and_retired_is_not_told_as_lost(bench: Bench) -> None:
    await bench.act(opens(bench), SealSession(REF, FAILED))
    bench.gateway.retired = dict(bench.gateway.sessions)
    bench.gateway.sessions.clear()
    await bench.act(CloseGroup("a", bench.home))
    assert "a" in bench.state.observed.settled
    assert bench.gateway.sessions == {}


# -- what is not the same everywhere ----------------------------------------------------------------------------------

CLUSTER_ONLY: list[Action] = [
    OpenRemote(REF, "g0"),
    HoldRemote(REF, "why", final=True),
    WriteSession(REF),
    Provide(Provided.RUNNING),
    DeleteJob(),
]


@pytest.mark.parametrize("action", CLUSTER_ONLY, ids=lambda one: type(one).__name__)
async def test_what_only_a_cluster_can_do_is_refused_without_one(action: Action) -> None:
    with pytest.raises(Unsupported, match=f"{type(action).__name__}: there are no objects without a cluster"):
        await Simulated().act(action)


async def test_a_stop_that_did_not_get_through_is_planned_again() -> None:
    bench = Simulated()
    await agent_at_work(bench)
    bench.world.failed_calls = 2.0
    with pytest.raises(Unavailable):
        await bench.act(StopAttempt(REF, LATE))
    assert bench.driver.plan_session(REF.name)[0] == StopAttempt(REF, LATE)
    bench.world.failed_calls = 0.0
    await bench.act(StopAttempt(REF, LATE))
    assert StopAttempt(REF, LATE) not in bench.driver.plan_session(REF.name)


async def test_what_an_agent_that_ended_well_lived_through_is_not_asked_for() -> None:
    bench = Simulated()
    await agent_at_work(bench)
    bench.was_away(0.0, bench.state.now())
    bench.world.end_agent(REF.name, "ok")
    await bench.act(LookSession(REF))
    assert bench.seen.outages == ()


async def test_a_gateway_that_is_away_begins_nothing() -> None:
    bench = Pods()
    bench.job.at.monitors.clear()
    with pytest.raises(Unavailable, match="is not known"):
        await bench.act(opens(bench))
    assert bench.state.observed.groups == {}
    assert bench.kube.named("Secret") == []


async def test_who_follows_a_job_is_told_how_sessions_stand_before_the_store_is_and_once_they_are_over() -> (
    None
):
    bench, told = Simulated(), list[object]()

    class Follower(Nobody):
        def stands(self, gateway: str, said: Any) -> None:
            known = bench.seen.summary
            told.append((gateway, said.state, None if known is None else known.state))

        def sealed(self, seen: Any, said: Any, outcome: Any) -> None:
            told.append((seen.ref, said.state, outcome.reward))

    bench.driver.watcher = Follower()
    await bench.act(opens(bench), LookSession(REF), SealSession(REF, SessionOutcome(reward=0.5)))
    assert told == [
        ("g0", SessionState.OPEN, None),
        ("g0", SessionState.FINALIZED, SessionState.OPEN),
        (REF, SessionState.FINALIZED, 0.5),
    ]


LARGE: dict[str, tuple[int | None, int, bool]] = {
    "a record holds a task of any size where sandboxes fetch it from there": (None, 100_000, True),
    "a task that fits is in the record": (65_536, 100, True),
    "a task that is too large is left out where sandboxes have it anyway": (65_536, 100_000, False),
}


@pytest.mark.parametrize(("most", "size", "kept"), LARGE.values(), ids=LARGE)
def test_what_a_record_holds_of_its_task(most: int | None, size: int, kept: bool) -> None:
    task = Task(uid="a", prompt="x" * size)
    made: Any = session_spec(spec(), REF, task, metadata={"manifest": "m"}, task_chars_max=most)
    assert made.task == (task_of("a", task.prompt, None, 0) if kept else None)
    assert (made.session_id, made.metadata) == (REF.name, {"manifest": "m"})


@pytest.mark.parametrize("where", ["processes", "pods"])
async def test_an_agent_is_started_once_though_asked_twice(where: str, tmp_path: Path) -> None:
    async with BENCHES[where](tmp_path) as bench:
        await agent_at_work(bench)
        before = bench.running()
        await bench.act(StartAttempt(REF))
        assert bench.running() == before
        assert len(before) == 1
        assert bench.gateway.calls["create"] == 1


async def test_processes_and_their_folder_are_gone_when_a_session_is_forgotten(tmp_path: Path) -> None:
    async with BENCHES["processes"](tmp_path) as bench:
        assert isinstance(bench, Processes)
        await agent_at_work(bench)
        await bench.act(KillAttempt(REF))
        await bench.ended("sandbox")
        assert list((tmp_path / "run").iterdir())
        await bench.act(Forget(REF))
        assert list((tmp_path / "run").iterdir()) == []
        assert bench.sandboxes.running == []
        assert bench.sandboxes.handles == {}
