"""What was acknowledged is forgotten, and nothing else: in memory, in the journal, after a restart."""

from __future__ import annotations

import itertools

import pytest

from sandgate.contract.errors import NotFound
from sandgate.gateway.journal.memory import MemoryDisk, MemoryStore
from sandgate.gateway.journal.records import Sealed
from sandgate.gateway.service.sessions import Sessions


class World:
    """Sessions over a disk that survives them."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.now = 1_000.0
        self.leases = itertools.count()

    async def start(self) -> Sessions:
        sessions = Sessions(await MemoryStore.open(self.disk), lambda: self.now)
        sessions.replay()
        return sessions

    async def ended(self, sessions: Sessions, uid: str) -> str:
        session, _ = await sessions.open(f"s-{uid}", {"job": "j", "uid": uid, "group_size": 1})
        await sessions.record(session, Sealed(at=self.now))
        return session.session_id

    async def acked(self, sessions: Sessions) -> None:
        record = sessions.book.lease(f"l{next(self.leases)}", self.now, ttl_s=60.0)
        assert record is not None
        await sessions.settle(record)
        await sessions.settle(sessions.book.ack(record.lease, self.now))


async def test_only_what_is_acknowledged_and_old_enough_goes() -> None:
    world = World()
    sessions = await world.start()
    first = await world.ended(sessions, "first")
    await world.acked(sessions)
    waiting = await world.ended(sessions, "waiting")
    await sessions.set_version(7)

    assert await sessions.retire(60.0) == 0, "too young"
    world.now += 61.0
    assert await sessions.retire(60.0) == 1
    with pytest.raises(NotFound):
        sessions.get(first)
    assert sessions.get(waiting).ended

    await sessions.store.aclose()
    again = await world.start()
    assert set(again.live) == {waiting}
    assert again.process.version == 7
    await world.acked(again)
    assert again.book.lease("none-left", world.now, ttl_s=60.0) is None


async def test_the_log_of_leases_stays_short() -> None:
    world = World()
    sessions = await world.start()
    for number in range(50):
        await world.ended(sessions, f"t{number}")
        await world.acked(sessions)
    world.now += 1.0
    assert await sessions.retire(0.5) == 50
    assert [type(record).__name__ for _, _, record in sessions.store.scan("")] == ["PolicyVersion"]
