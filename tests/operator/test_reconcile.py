"""The queue: one key at a time, nothing lost, failures again later, wake-ups in order."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from sandgate.contract.errors import Unavailable
from sandgate.contract.status import RolloutJobStatus
from sandgate.operator.cluster.job_controller import JobController
from sandgate.operator.driver import reconcile
from sandgate.operator.driver.reconcile import Reconciler
from sandgate.operator.observed.job import JOB_KEY
from sandgate.operator.plan.actions import (
    Action,
    CloseGroup,
    OpenSession,
    Provide,
    Provided,
    Ref,
    Stop,
    StopAttempt,
    WakeAt,
    WriteStatus,
)
from sandgate.operator.settings import Settings
from tests.operator.fake_kube import FakeKube

DO = CloseGroup("a", "g")


class Bench:
    """Plans from a list per key; what was carried out, in order."""

    def __init__(self, plan: Callable[[str], list[Action]] | None = None) -> None:
        self.plans: dict[str, list[list[Action]]] = {}
        self.done: list[tuple[str, Action]] = []
        self.woken: list[str] = []
        self.working: set[str] = set()
        self.hold: dict[str, asyncio.Event] = {}
        self.began, self.moved = asyncio.Event(), asyncio.Event()
        self.fails: list[BaseException] = []
        self.reconciler = Reconciler(plan or self.plan, self.carry_out, woke=self.woke)

    def plan(self, key: str) -> list[Action]:
        left = self.plans.get(key, [])
        return left.pop(0) if left else []

    async def carry_out(self, key: str, action: Action) -> None:
        together = isinstance(action, reconcile.ALIKE)
        assert together or key not in self.working, "two workers on one key"
        self.working.add(key)
        self.began.set()
        try:
            if key in self.hold:
                await self.hold[key].wait()
            else:
                await asyncio.sleep(0)
            if self.fails:
                raise self.fails.pop(0)
            self.done.append((key, action))
        finally:
            self.working.discard(key)
            self.moved.set()

    @asynccontextmanager
    async def running(self, workers: int = 3) -> AsyncIterator[asyncio.Task[None]]:
        task = asyncio.ensure_future(self.reconciler.run(workers))
        yield task
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def idle(self) -> None:
        """Everything that needs no time has happened."""
        for _ in range(100):
            await asyncio.sleep(0)
        assert self.reconciler.idle

    async def until(self, condition: Callable[[], object]) -> None:
        """Looked at again after each action and wake-up."""
        async with asyncio.timeout(5):
            while not condition():
                self.moved.clear()
                await self.moved.wait()

    def woke(self, key: str) -> None:
        self.woken.append(key)
        self.moved.set()


async def test_many_touches_are_one_plan() -> None:
    bench = Bench()
    bench.plans = {"a": [[DO], [DO], [DO]]}
    for _ in range(5):
        bench.reconciler.touch("a")
    async with bench.running():
        await bench.idle()
    assert bench.done == [("a", DO)]


async def test_a_key_touched_while_it_is_worked_on_is_planned_again_after() -> None:
    bench = Bench()
    bench.plans = {"a": [[DO], [WakeAt(9e9)]]}
    bench.hold["a"] = asyncio.Event()
    bench.reconciler.touch("a")
    async with bench.running():
        await bench.began.wait()
        bench.reconciler.touch("a")
        bench.reconciler.touch("a")
        await asyncio.sleep(0)
        assert bench.done == []
        bench.hold["a"].set()
        await bench.idle()
    assert bench.done == [("a", DO), ("a", WakeAt(9e9))]


async def test_other_keys_do_not_wait_for_a_slow_one() -> None:
    bench = Bench()
    bench.plans = {"slow": [[DO]], "b": [[DO]], "c": [[DO]]}
    bench.hold["slow"] = asyncio.Event()
    async with bench.running():
        bench.reconciler.touch("slow")
        await bench.began.wait()
        bench.reconciler.touch("b")
        bench.reconciler.touch("c")
        await bench.until(lambda: len(bench.done) == 2)
        assert {key for key, _ in bench.done} == {"b", "c"}


async def test_what_fails_for_a_moment_is_planned_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconcile, "BACKOFF_S", 0.001)
    bench = Bench(lambda key: [DO] if not bench.done else [])
    bench.fails = [Unavailable("away", retry_after=0.0), ConnectionResetError(), TimeoutError()]
    bench.reconciler.touch("a")
    async with bench.running():
        await bench.until(lambda: bench.done)
    assert bench.done == [("a", DO)]
    assert bench.fails == []


async def test_a_worker_outlives_an_action_whose_connection_somebody_else_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One by itself, and one of several that are carried out together."""
    monkeypatch.setattr(reconcile, "BACKOFF_S", 0.001)
    bench = Bench()
    bench.plans = {"alone": [[DO], [DO]], "together": [opening(0, 1), opening(0, 1)]}
    async with bench.running(workers=1):
        for key in ("alone", "together"):
            bench.done.clear()
            bench.fails = [asyncio.CancelledError()]
            bench.reconciler.touch(key)
            await bench.until(lambda: bench.done and not bench.plans[key])  # noqa: B023


async def test_a_mistake_ends_the_run() -> None:
    bench = Bench()
    bench.plans = {"a": [[DO]]}
    bench.fails = [KeyError("a bug")]
    bench.reconciler.touch("a")
    with pytest.raises(KeyError, match="a bug"):
        await bench.reconciler.run(2)


def test_pauses_grow_and_are_bounded() -> None:
    reconciler = Reconciler(lambda key: [], Bench().carry_out)
    pauses = [reconciler._backoff("a") for _ in range(12)]
    assert 0.2 <= pauses[0] <= 0.25
    assert all(later >= earlier * 1.5 for earlier, later in pairwise(pauses[:6]))
    assert pauses[-1] <= reconcile.BACKOFF_S_MAX * 1.25
    reconciler.forget("a")
    assert reconciler._backoff("a") <= 0.25


async def test_keys_are_woken_when_their_time_has_come() -> None:
    bench = Bench()
    bench.plans = {"a": [[DO]], "b": [[DO]]}
    now = 100.0
    bench.reconciler.now = lambda: now
    async with bench.running():
        bench.reconciler.wake_at("b", 102.0)
        bench.reconciler.wake_at("a", 101.0)
        await asyncio.sleep(0)
        assert bench.done == []
        now = 101.5
        bench.reconciler._earlier.set()
        await asyncio.sleep(0)
        await bench.idle()
        await bench.until(lambda: bench.done)
        assert bench.woken == ["a"]
        assert bench.done == [("a", DO)]


async def test_a_real_clock_wakes_too() -> None:
    bench = Bench()
    bench.plans = {"a": [[DO]]}
    async with bench.running():
        bench.reconciler.wake_at("a", bench.reconciler.now() + 0.02)
        await bench.until(lambda: bench.done)
    assert bench.woken == ["a"]


async def test_a_later_wake_up_replaces_an_earlier_one_and_a_forgotten_one_never_comes() -> None:
    bench = Bench()
    now = 100.0
    bench.reconciler.now = lambda: now
    bench.reconciler.wake_at("a", 101.0)
    bench.reconciler.wake_at("a", 105.0)
    bench.reconciler.wake_at("b", 101.0)
    bench.reconciler.forget("b")
    now = 103.0
    async with bench.running():
        for _ in range(5):
            await asyncio.sleep(0)
        assert bench.woken == []
        now = 106.0
        bench.reconciler._earlier.set()
        for _ in range(5):
            await asyncio.sleep(0)
        assert bench.woken == ["a"]


async def test_wake_ups_of_what_is_gone_are_not_kept_for_hours() -> None:
    reconciler = Bench().reconciler
    for n in range(10):
        reconciler.wake_at(f"stays-{n}", 90_000.0 - n)
    for n in range(5_000):
        reconciler.wake_at(f"goes-{n}", 80_000.0 + n)
        reconciler.wake_at("stays-0", 85_000.0 + n)
        reconciler.forget(f"goes-{n}")
    assert len(reconciler._heap) <= 2 * len(reconciler._due) + reconcile.SPARE + 2
    assert set(reconciler._due) == {f"stays-{n}" for n in range(10)}
    assert {(at, key) for key, at in reconciler._due.items()} <= set(reconciler._heap)
    assert reconciler._heap[0] == min(reconciler._heap)


async def test_a_wake_up_in_a_plan_is_kept_and_told() -> None:
    bench = Bench()
    bench.plans = {"a": [[WakeAt(bench.reconciler.now() - 1)]]}
    bench.reconciler.touch("a")
    async with bench.running():
        await bench.until(lambda: bench.woken)
    assert bench.woken == ["a"]


def opening(*samples: int) -> list[Action]:
    return [OpenSession(Ref("job", "task", sample, 0), "g") for sample in samples]


class Width:
    """How many actions are carried out at once, and in which order they ended."""

    def __init__(self) -> None:
        self.now, self.most = 0, 0
        self.ended: list[Action] = []
        self.refused: dict[Action, BaseException] = {}

    async def carry_out(self, key: str, action: Action) -> None:
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(0)
        self.now -= 1
        self.ended.append(action)
        if action in self.refused:
            raise self.refused[action]

    async def once(
        self, plan: list[Action], retried: tuple[type[Exception], ...] = reconcile.RETRIED
    ) -> None:
        """Carried out as one plan."""
        left = [plan]
        reconciler = Reconciler(lambda key: left.pop() if left else [], self.carry_out, retried=retried)
        reconciler.touch("a")
        task = asyncio.ensure_future(reconciler.run(1))
        for _ in range(100):
            await asyncio.sleep(0)
        task.cancel()
        (ended,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(ended, Exception):
            raise ended


async def test_sessions_are_opened_together_and_what_follows_waits_for_all() -> None:
    width = Width()
    plan = [DO, *opening(*range(reconcile.TOGETHER + 3)), DO, WakeAt(9e9)]
    await width.once(plan)
    assert width.most == reconcile.TOGETHER
    assert width.ended == plan


def stopping(*samples: int) -> list[Action]:
    return [StopAttempt(Ref("job", "task", sample, 0), Stop(None)) for sample in samples]


TELL, MAKE, WAKE = WriteStatus(RolloutJobStatus()), Provide(Provided.RUNNING), WakeAt(9e9)
MANY = range(reconcile.TOGETHER + 1)
JOB = [TELL, *stopping(*MANY), DO, MAKE, *opening(*MANY), WAKE]
"""One of each kind that a job's plan has, sessions by more than one batch."""
FAILS: dict[str, tuple[Action, list[Action]]] = {
    "a status that is not written stops nobody from being stopped": (TELL, []),
    "a group that is not closed does not keep gateways from being made": (DO, []),
    "gateways that are not made keep nothing waiting but new sessions": (MAKE, opening(*MANY)),
    "one stop of many keeps no other from being tried, of later batches neither": (stopping(0)[0], []),
    "of sessions, those of later batches wait, and nothing else": (opening(0)[0], opening(MANY[-1])),
    "the last of a plan has nothing after it": (WAKE, []),
}


@pytest.mark.parametrize(("failing", "left"), FAILS.values(), ids=FAILS)
@pytest.mark.parametrize("error", [Unavailable("away"), TimeoutError(), asyncio.CancelledError()], ids=str)
async def test_what_fails_of_a_plan_holds_up_no_more_than_it_must(
    failing: Action, left: list[Action], error: BaseException
) -> None:
    width = Width()
    width.refused = {failing: error}
    await width.once(JOB)
    assert width.ended == [one for one in JOB if one not in left]


async def test_a_plan_of_which_anything_failed_is_made_again_after_a_pause_that_grows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reconcile, "BACKOFF_S", 0.001)
    bench = Bench()
    bench.plans = {"a": [[MAKE], [MAKE, WAKE], []]}
    bench.fails = [Unavailable("away"), Unavailable("away")]
    bench.reconciler.touch("a")
    async with bench.running():
        await bench.until(lambda: bench.done)
        assert bench.done == [("a", WAKE)]
        assert bench.reconciler._failures["a"] == 2


async def test_a_mistake_is_told_rather_than_what_passes_by_itself(caplog: pytest.LogCaptureFixture) -> None:
    width = Width()
    width.refused = {TELL: Unavailable("away"), MAKE: KeyError("a bug")}
    await width.once(JOB, retried=(Exception,))
    (said,) = [one for one in caplog.records if one.name == reconcile.log.name]
    assert "a bug" in said.getMessage()
    assert "1 more" in said.getMessage()
    assert said.exc_info is not None


async def test_of_those_together_a_mistake_is_worse_than_what_passes() -> None:
    width = Width()
    plan = opening(0, 1, 2)
    width.refused = {plan[0]: Unavailable("away"), plan[2]: KeyError("a bug")}
    with pytest.raises(KeyError, match="a bug"):
        await width.once(plan)


class Stalls:
    """Jobs whose keys are `job/key`: a call of a job in `stalled` does not come back until it is let go."""

    def __init__(self, *stalled: str) -> None:
        self.stalled, self.gate = set(stalled), asyncio.Event()
        self.held: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        """Job -> the most of its keys that were worked on at once."""
        self.done: list[str] = []
        self.time = 1000.0
        self.reconciler = Reconciler(
            lambda key: [DO],
            self.carry_out,
            now=lambda: self.time,
            share_of=lambda key: key.partition("/")[0],
        )

    async def carry_out(self, key: str, action: Action) -> None:
        job = key.partition("/")[0]
        self.held[job] += 1
        self.most[job] = max(self.most[job], self.held[job])
        try:
            if job in self.stalled:
                await self.gate.wait()
        finally:
            self.held[job] -= 1
        self.done.append(key)

    def touch(self, job: str, keys: int) -> None:
        for number in range(keys):
            self.reconciler.touch(f"{job}/{number}")

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        task = asyncio.ensure_future(self.reconciler.run())
        await self.turns()
        yield
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def turns(self, number: int = 10) -> None:
        """Of the loop: no time passes."""
        for _ in range(number):
            await asyncio.sleep(0)


@pytest.mark.parametrize("jobs", [1, 2, 10, 50])
async def test_jobs_whose_gateways_do_not_answer_keep_no_other_waiting(jobs: int) -> None:
    """Each with a thousand sessions to be sealed."""
    names = [f"a{number}" for number in range(jobs)]
    bench = Stalls(*names)
    for name in names:
        bench.touch(name, 1000)
    async with bench.running():
        for turn in range(3):
            bench.reconciler.touch("b/job")
            await bench.turns()
            assert bench.done == ["b/job"] * (turn + 1)
        assert sum(bench.held.values()) < reconcile.WORKERS_ALL
        assert min(bench.held[name] for name in names) > 0, "they share what there is"


async def test_a_job_alone_is_worked_on_as_widely_as_ever() -> None:
    """Eight gateways, each with eight calls at once."""
    bench = Stalls("big")
    bench.touch("big", 1000)
    async with bench.running():
        assert bench.held["big"] == reconcile.WORKERS == 64
        bench.gate.set()
        await bench.turns(2000)
    assert sorted(bench.done) == sorted(f"big/{number}" for number in range(1000))
    assert bench.most["big"] == reconcile.WORKERS


async def test_keys_of_a_job_are_worked_on_in_the_order_in_which_they_came() -> None:
    bench = Stalls("a")
    bench.touch("a", 500)
    async with bench.running():
        bench.gate.set()
        await bench.turns(2000)
    assert bench.done == [f"a/{number}" for number in range(500)]


async def test_what_waits_behind_its_own_job_is_no_queue_that_is_stuck() -> None:
    """Liveness would end the operator for it. A worker that never comes back is."""
    bench = Stalls("a")
    bench.touch("a", 1000)
    async with bench.running():
        for _ in range(5):
            bench.time += 60.0
            bench.gate.set()
            await bench.turns(3)
            bench.gate.clear()
            await bench.turns(3)
            assert bench.reconciler.length > 100
            assert bench.reconciler.oldest_s < 1.0, "some of them ended just now"
        bench.time += 300.0
        assert bench.reconciler.oldest_s >= 300.0, "none did for long"


async def test_a_key_that_nobody_works_on_counts_as_waiting() -> None:
    bench = Stalls()
    bench.touch("a", 1)
    bench.time += 7.0
    assert bench.reconciler.oldest_s == 7.0
    async with bench.running():
        assert (bench.reconciler.oldest_s, bench.done) == (0.0, ["a/0"])
        assert bench.reconciler._shares == {}, "what rests costs nothing"


def test_in_a_cluster_a_share_is_a_job_with_all_its_sessions() -> None:
    hub = JobController(FakeKube(lambda: 0.0), Settings())
    assert {hub.reconciler.share_of(f"uid-1/{key}") for key in (JOB_KEY, "shop-a-0-0")} == {"uid-1"}
    assert hub.reconciler.share_of("uid-2/job") == "uid-2"
