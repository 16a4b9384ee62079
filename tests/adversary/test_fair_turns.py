"""However much work a session brings, others' is done between: by order, not by time."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.contract.trajectory import Trajectory
from sandgate.gateway.fairness import FairQueue
from sandgate.gateway.session import Session
from sandgate.gateway.sessions import Sessions
from sandgate.gateway.trajectories.linearize import Facts
from sandgate.gateway.workers import FairPool
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
