"""However much work a session brings, others' is done between: by order, not by time."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
from concurrent.futures import Future

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.contract.errors import Overloaded
from sandgate.contract.trajectory import Trajectory
from sandgate.gateway.service import fair_pool
from sandgate.gateway.service.core_time import core_s
from sandgate.gateway.service.fair_pool import WAITING_MAX, FairPool
from sandgate.gateway.service.fair_queue import DEBT_S, NAMES_MAX, REFILL, WASTE_S, FairQueue, Waste
from sandgate.gateway.service.session import Session
from sandgate.gateway.service.sessions import Sessions
from sandgate.gateway.trajectories.linearize import Facts
from tests.support.gateway import WITHIN_S, gateway

NAMES = st.lists(st.sampled_from("abc"), max_size=40)


@given(NAMES, st.integers(1, 3))
def test_nobody_waits_for_more_than_one_of_each_other(names: list[str], most: int) -> None:
    queue: FairQueue[int] = FairQueue(most)
    for at, name in enumerate(names):
        queue.put(name, at)
    taken: list[tuple[str, int]] = []
    while (found := queue.take()) is not None:
        taken.append(found)
        queue.done(found[0])
    assert sorted(item for _, item in taken) == list(range(len(names))), "all, once"
    for name in set(names):
        mine = [item for one, item in taken if one == name]
        assert mine == sorted(mine), "of one name in order"
        places = [at for at, (one, _) in enumerate(taken) if one == name]
        gaps = [later - earlier for earlier, later in zip([-1, *places], places, strict=False)]
        assert max(gaps) <= len(set(names))
    assert (queue.waiting, queue.running) == ({}, {})


@given(NAMES, st.integers(1, 3))
def test_nobody_has_more_running_than_he_may(names: list[str], most: int) -> None:
    queue: FairQueue[int] = FairQueue(most)
    for at, name in enumerate(names):
        queue.put(name, at)
    while queue.take() is not None:
        assert max(queue.running.values()) <= most
    for name in set(names):
        assert queue.running[name] == min(most, names.count(name))


def test_sixteen_heavy_ones_of_a_session_leave_a_worker_to_another() -> None:
    pool, go, ended = FairPool(2), threading.Event(), []

    def heavy(number: int) -> None:
        assert go.wait(WITHIN_S)
        ended.append(number)

    many: list[Future[None]] = [pool.put("greedy", heavy, number) for number in range(16)]
    assert pool.put("honest", lambda: "done").result(WITHIN_S) == "done"
    assert ended == [], "not one of them had to end for it"
    go.set()
    for one in many:
        one.result(WITHIN_S)
    assert ended == list(range(16))
    pool.shutdown()


async def test_exports_have_a_thread_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    inner = Sessions.trajectories

    def spied(self: Sessions, session: Session, facts: Facts) -> list[Trajectory]:
        seen.append(threading.current_thread().name)
        return inner(self, session, facts)

    monkeypatch.setattr(Sessions, "trajectories", spied)
    async with gateway(["one"]) as g:
        agent = await g.session()
        await agent.post("hi")
        assert len(await g.finalize(agent)) == 1
        assert (await g.admin.post("/v1/leases", json={})).status_code == 200
    assert [name.partition("_")[0] for name in seen] == ["export", "export"]


COSTS = st.lists(st.tuples(st.sampled_from("ab"), st.floats(0.0, 1.0), st.floats(0.0, 20.0)), max_size=60)


@given(COSTS)
def test_what_a_session_wastes_is_bounded_in_the_long_run(steps: list[tuple[str, float, float]]) -> None:
    waste, now, wasted = Waste(), 0.0, 0.0
    for name, cost, pause in steps:
        now += pause
        if name == "a":
            now += waste.wait_s("a", now)
            assert waste.wait_s("a", now) < 1e-6, "whoever waited is let in"
            waste.spend("a", cost, now)
            wasted += min(cost, DEBT_S)
        else:
            waste.spend("b", cost, now)
    assert wasted <= WASTE_S + DEBT_S + REFILL * now + 1e-6, "others' waste gives it nothing"
    assert waste.wait_s("a", now) <= DEBT_S / REFILL


@given(st.lists(st.integers(0, 200_000), max_size=200))
def test_whoever_sends_what_it_made_us_render_to_the_engine_never_waits(prompts: list[int]) -> None:
    waste = Waste()
    for tokens in prompts:  # without a pause, at twice what a token costs
        waste.spend("long", min(tokens, 40_000) * 2e-6, 0.0)
        waste.earn("long", min(tokens, 40_000), 0.0)
        assert waste.wait_s("long", 0.0) == 0.0


def test_prompts_are_no_credit_for_later() -> None:
    waste = Waste()
    waste.earn("a", 10**9, 0.0)
    waste.spend("a", WASTE_S + 0.1, 0.0)
    assert waste.wait_s("a", 0.0) == pytest.approx(0.1 / REFILL)


def test_sessions_that_owe_nothing_are_forgotten_first() -> None:
    waste = Waste()
    waste.spend("debtor", 10.0, 0.0)
    for number in range(NAMES_MAX + 10):
        waste.spend(f"s{number}", 0.001, 0.0)
        assert len(waste._left) <= NAMES_MAX
    assert waste.wait_s("debtor", 0.0) > 0


async def test_charged_work_of_a_session_is_done_one_after_the_other_and_then_waits() -> None:
    pool = FairPool(2)
    pool.spend("a", WASTE_S - 0.001)
    at_once, most, waited = 0, 0, []

    async def fair(name: str) -> None:
        waited.append(pool._wait_s(name))

    pool.fair = fair  # type: ignore[method-assign]

    def work() -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        end = time.thread_time() + 0.02
        while time.thread_time() < end:
            pass
        at_once -= 1

    await asyncio.gather(*(pool.of("a").admitted(work) for _ in range(3)))
    assert most == 1
    assert waited[0] == 0.0 < waited[1] < waited[2], "each is charged before the next is let in"
    await pool.of("b").admitted(work)
    assert waited[3] == 0.0
    pool.shutdown()


async def test_work_that_fails_is_charged_too() -> None:
    pool = FairPool(2)

    def fails() -> None:
        end = time.thread_time() + WASTE_S + 0.01
        while time.thread_time() < end:
            pass
        raise ValueError("for nothing")

    with pytest.raises(ValueError, match="for nothing"):
        await pool.of("a").charged(fails)
    assert pool._wait_s("a") > 0
    pool.shutdown()


async def test_work_that_is_the_models_is_charged_up_to_its_bound() -> None:
    pool = FairPool(2)

    def slow() -> None:
        end = time.thread_time() + WASTE_S + 0.01
        while time.thread_time() < end:
            pass

    await pool.of("a").charged_at_most(WASTE_S / 2, slow)
    assert pool._wait_s("a") == 0
    await pool.of("a").charged_at_most(WASTE_S, slow)
    assert pool._wait_s("a") > 0
    pool.shutdown()


def test_a_look_at_the_whole_heap_is_nobodys_work() -> None:
    """It comes in whatever thread makes the next object, and takes longer the more sessions there are."""
    heap = [[number] for number in range(500_000)]
    whole, mine = time.thread_time(), core_s()
    for _ in range(5):
        gc.collect()
    spent = time.thread_time() - whole
    assert core_s() - mine < spent / 10
    assert len(heap) == 500_000


async def test_of_many_that_wait_some_are_told_to_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_pool, "REFUSED_AFTER_S", 0.0)
    pool = FairPool(2)
    pool.spend("a", 10.0)
    waiting = [asyncio.create_task(pool.fair("a")) for _ in range(WAITING_MAX)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded) as told:
        await pool.fair("a")
    assert told.value.retry_after == pytest.approx(DEBT_S / REFILL, rel=0.01)
    await pool.fair("b")
    for one in waiting:
        one.cancel()
    await asyncio.wait(waiting)
    assert not pool._waiting
    pool.shutdown()


async def test_a_session_that_wastes_waits_at_the_door_and_others_do_not() -> None:
    """A schema of a hundred thousand elements, refused: 0.2 s of a core each. Then its next request waits."""
    async with gateway(["one"]) as g:
        greedy, other = await g.session(), await g.session()
        pool: FairPool = g.core.turns.pool
        tools = [{"type": "function", "function": {"name": "f", "parameters": {"enum": [[]] * 100_000}}}]
        for _ in range(8):
            if pool._wait_s(greedy.id) > 0:
                break
            await greedy.post("hi", tools=tools)
        assert pool._wait_s(greedy.id) > 0
        late = asyncio.create_task(greedy.post("hi"))
        assert (await other.post("hi")).status_code == 200
        assert not late.done()
        pool.let_in()
        assert (await late).status_code == 200


async def test_an_agent_that_tries_how_much_of_its_history_fits_does_not_wait() -> None:
    """Message by message, as libraries do it: each try is rendered and refused."""
    async with gateway(["one"]) as g:
        agent = await g.session()
        history = [f"message {number} " + "of some words " * 40 for number in range(40)]
        tries = 0
        while (await agent.post(*history)).status_code == 400:
            tries += 1
            history.pop(0)
            assert g.core.turns.pool._wait_s(agent.id) == 0.0
        assert tries > 10
