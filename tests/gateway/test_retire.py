"""What was acknowledged is retired, and nothing else: in memory, in the journal, after a restart; a line stays."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import Conflict, Gone, JournalUnavailable, NotFound
from sandgate.gateway import offline
from sandgate.gateway.journal.memory import MemoryDisk, MemoryStore
from sandgate.gateway.journal.records import RETIRED, Sealed, size
from sandgate.gateway.journal.sqlite import SqliteStore
from sandgate.gateway.service.sessions import Sessions
from sandgate.trainer.runs.sources import Live
from tests.support.gateway import Latch, admin_key, gateway, within

LOST = ("forks", "roles", "sampled_tokens", "turned_at")
"""Of a session's summary: what no driver that comes late needs."""


class World:
    """Sessions over a disk that survives them."""

    def __init__(self) -> None:
        self.disk = MemoryDisk()
        self.now = 1_000.0
        self.leases = itertools.count()

    def __call__(self) -> float:
        return self.now

    async def start(self) -> Sessions:
        sessions = Sessions(await MemoryStore.open(self.disk), self)
        sessions.replay()
        return sessions

    async def restarted(self, sessions: Sessions) -> Sessions:
        await sessions.store.aclose()
        return await self.start()

    async def ended(
        self,
        sessions: Sessions,
        uid: str,
        sample: int = 0,
        attempt: int = 0,
        *,
        size: int = 1,
        failure: str | None = None,
        detail: str = "",
        **spec: Any,
    ) -> str:
        spec |= {"job": "j", "uid": uid, "sample_index": sample, "attempt": attempt, "group_size": size}
        session, _ = await sessions.open(f"s-{uid[:40]}.{sample}.{attempt}", spec)
        reason = None if failure is None else "TurnLimit"
        await sessions.record(
            session,
            Sealed(at=self.now, failure_class=failure, failure_reason=reason, detail=detail, reward=0.5),
        )
        return session.session_id

    async def acked(self, sessions: Sessions) -> None:
        record = sessions.book.lease(f"l{next(self.leases)}", self.now, ttl_s=60.0)
        assert record is not None
        await sessions.settle(record)
        await sessions.settle(sessions.book.ack(record.lease, self.now))


@pytest.fixture
def world() -> World:
    return World()


async def test_only_what_is_acknowledged_and_old_enough_goes(world: World) -> None:
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

    again = await world.restarted(sessions)
    assert set(again.live) == {waiting}
    assert again.process.version == 7
    await world.acked(again)
    assert again.book.lease("none-left", world.now, ttl_s=60.0) is None


async def test_the_log_of_leases_stays_short(world: World) -> None:
    sessions = await world.start()
    for number in range(50):
        await world.ended(sessions, f"t{number}")
        await world.acked(sessions)
    world.now += 1.0
    await sessions.set_version(7)
    assert await sessions.retire(0.5) == 50
    assert [type(record).__name__ for _, _, record in sessions.store.scan("")] == ["PolicyVersion"]
    again = await world.restarted(sessions)
    assert (again.process.version, again.process.version_told) == (7, True)


async def test_a_log_without_a_version_is_not_given_one(world: World) -> None:
    sessions = await world.start()
    await world.ended(sessions, "t")
    await world.acked(sessions)
    world.now += 1.0
    assert await sessions.retire(0.5) == 1
    assert list(sessions.store.scan("")) == []
    again = await world.restarted(sessions)
    assert (again.process.version, again.process.version_told) == (0, False)


async def test_the_time_runs_from_the_acknowledgement_of_the_last_of_a_group(world: World) -> None:
    sessions = await world.start()
    early, late = [await world.ended(sessions, "q", sample, size=2) for sample in range(2)]
    record = sessions.book.lease("both", world.now, ttl_s=10_000.0)
    await sessions.settle(record)
    world.now += 1_000.0
    await sessions.settle(sessions.book.ack("both", world.now, [early]))
    world.now += 1_000.0
    await sessions.settle(sessions.book.ack("both", world.now, [late]))
    world.now += 59.0
    assert await sessions.retire(60.0) == 0
    again = await world.restarted(sessions)
    assert await again.retire(60.0) == 0, "a restart begins nothing anew, and forgets nothing"
    world.now += 2.0
    assert await again.retire(60.0) == 2


async def test_a_group_of_which_a_trainer_was_not_given_all_stays(world: World) -> None:
    """Not to a restart, and not to the compaction of the leases either."""
    sessions = await world.start()
    for number in range(2):
        await world.ended(sessions, "kept", number, size=2)
        await world.ended(sessions, f"gone{number}")
    record = sessions.book.lease("l", world.now, ttl_s=60.0, max_groups=9)
    await sessions.settle(record)
    await sessions.settle(sessions.book.ack("l", world.now, left_out={"s-kept.1.0", "of another lease"}))
    world.now += 1.0
    for retired in (2, 0, 0):
        assert await sessions.retire(0.5) == retired
        sessions = await world.restarted(sessions)
        assert set(sessions.live) == {"s-kept.0.0", "s-kept.1.0"}
        await sessions.settle(sessions.book.ack("l", world.now))
        await world.ended(sessions, f"later{world.now}")
        await world.acked(sessions)
        world.now += 1.0
        assert await sessions.retire(0.5) == 1, "and the leases are compacted"


async def test_attempts_that_never_counted_go_with_their_group(world: World) -> None:
    sessions = await world.start()
    failed = await world.ended(sessions, "q", failure="infra")
    assert await sessions.retire(0.0) == 0
    good = await world.ended(sessions, "q", attempt=1)
    await world.acked(sessions)
    world.now += 1.0
    assert await sessions.retire(0.5) == 2
    told = {
        one.session_id: (one.phase, sessions.committed(one)) for one in await sessions.page(None, "j", "", 9)
    }
    assert told == {failed: ("finalized", False), good: ("finalized", True)}


async def test_of_a_retired_session_its_end_is_told_for_ever(world: World) -> None:
    sessions = await world.start()
    name = await world.ended(sessions, "q", failure="policy", metadata={"remote": True, "note": "long" * 999})
    before = sessions.summary(sessions.get(name))
    await world.acked(sessions)
    world.now += 1.0
    await sessions.retire(0.5)
    kept = (
        *("job", "uid", "sample_index", "attempt", "group_size", "state", "turns", "tokens", "reward"),
        *("failure_class", "failure_reason", "failure_detail", "created_at", "changed_at"),
    )
    for life in (sessions, await world.restarted(sessions)):
        said = life.summary(await life.find(name))
        assert {field: said[field] for field in kept} == {field: before[field] for field in kept}
        assert (said["committed"], said["retired"], said["metadata"]) == (True, True, {"remote": True})
        assert (life.live, life.book.members, life.book.groups, life.book.leases) == ({}, {}, {}, {})


async def test_a_line_is_small(world: World) -> None:
    sessions = await world.start()
    for uid in ("math/algebra/000123", "u" * 256):
        await world.ended(
            sessions, uid, failure="policy", detail="x" * 1024, metadata={f"flag{n}": True for n in range(99)}
        )
        await world.acked(sessions)
        world.now += 1.0
        await sessions.retire(0.5)
    short, long = sorted(size(line) for _, _, line in sessions.store.scan_named(RETIRED))
    assert short < 350
    assert long < 600
    plain = await world.ended(sessions, "math/algebra/000124")
    await world.acked(sessions)
    world.now += 1.0
    await sessions.retire(0.5)
    ((_, _, line),) = sessions.store.scan(RETIRED + plain)
    assert size(line) < 200


async def test_a_session_created_again_after_it_was_retired_is_the_same_one(world: World) -> None:
    sessions = await world.start()
    name = await world.ended(sessions, "q")
    opened = sessions.get(name).opened_at
    await world.acked(sessions)
    world.now += 1.0
    await sessions.retire(0.5)
    session, created = await sessions.open(name, {"job": "j", "uid": "q", "group_size": 1})
    assert (created, session.ended, session.opened_at) == (False, True, opened)
    with pytest.raises(Conflict):
        await sessions.open(name, {"job": "j", "uid": "another"})
    assert (sessions.live, sessions.opening) == ({}, {})


async def test_pages_hold_the_living_and_the_retired_in_one_order(world: World) -> None:
    sessions = await world.start()
    for number in range(30):
        await world.ended(sessions, f"t{number:02}")
        if number % 3:
            await world.acked(sessions)
        else:
            sessions.book.lease(f"kept{number}", world.now, ttl_s=1e9)
    world.now += 1.0
    assert await sessions.retire(0.5) == 20
    names, after = [], ""
    while page := await sessions.page(None, "j", after, 7):
        names += [one.session_id for one in page]
        after = names[-1]
    assert names == [f"s-t{number:02}.0.0" for number in range(30)]
    assert await sessions.page("aborted", None, "", 7) == await sessions.page(None, "another", "", 7) == []


async def test_half_of_what_is_being_deleted_is_told_to_nobody(world: World) -> None:
    """A disk that is slow, and in the end says no."""
    latch = Latch()
    sessions = Sessions(MemoryStore(world.disk, gate=latch), lambda: world.now)
    name = await world.ended(sessions, "q")
    await world.acked(sessions)
    world.now += 1.0
    latch.shut()
    retiring = asyncio.ensure_future(sessions.retire(0.5))
    await within(latch.reached)
    with pytest.raises(Gone, match="delivered, acknowledged and retired"):
        sessions.restored(sessions.get(name))
    world.disk.fail_next = 1
    latch.open()
    with pytest.raises(JournalUnavailable):
        await retiring
    assert sessions.restored(sessions.get(name)).opened_at == 1_000.0


async def test_over_http_a_retired_session_says_where_its_data_went() -> None:
    clock = World()
    async with gateway(["told"], now=clock) as g:
        agent = await g.session(session_id="s1", job="shop", uid="q1")
        await agent.ask("hi")
        await g.finalize(agent, reward=1.0)
        lease = (await g.admin.post("/v1/leases", json={})).json()["lease_id"]
        assert (await g.admin.post(f"/v1/leases/{lease}/ack")).status_code == 200
        before = (await g.admin.get("/v1/sessions/s1")).json()
        clock.now += 601.0
        assert await g.core.sessions.retire(600.0) == 1
        after = (await g.admin.get("/v1/sessions/s1")).json()
        assert after == {**before, "retired": True, **{name: after[name] for name in LOST}}
        (listed,) = (await g.admin.get("/v1/sessions", params={"job": "shop"})).json()["sessions"]
        assert listed == after | {"complete_info": None}
        for path in ("trajectories", "tree", "task"):
            answer = await g.admin.get(f"/v1/sessions/s1/{path}")
            assert (answer.status_code, answer.json()["error"]["code"]) == (410, "SessionEnded"), path
            assert "delivered, acknowledged and retired" in answer.json()["error"]["message"]
        assert (await agent.post("hi")).status_code == 410
        assert (await g.admin.post("/v1/sessions/s1/finalize", json={"trajectories": False})).json() == {
            "session_id": "s1",
            "state": "finalized",
        }
        assert (await g.admin.post("/v1/sessions/s1/abort")).json()["state"] == "finalized"
        again = await g.admin.post("/v1/sessions", json={"session_id": "s1", "job": "shop", "uid": "q1"})
        assert (again.status_code, again.json()["api_key"]) == (200, agent.handle["api_key"])


async def test_over_http_late_requests_are_answered_and_change_nothing() -> None:
    clock = World()
    async with gateway(["told", "more", "and more"], now=clock) as g:
        agent = await g.session(session_id="s1", job="shop", uid="q1")
        await agent.ask("hi")
        await g.finalize(agent, reward=1.0)
        running = await g.session(session_id="s2", job="shop", uid="q2", group_size=2, sample_index=1)
        other = await g.session(session_id="s3", job="shop", uid="q2", group_size=2)
        await other.ask("hi")
        await g.finalize(other)
        lease = (await g.admin.post("/v1/leases", json={})).json()["lease_id"]
        assert (await g.admin.post(f"/v1/leases/{lease}/ack")).status_code == 200
        clock.now += 601.0
        assert await g.core.sessions.retire(600.0) == 1
        assert (await running.post("hi")).status_code == 200, "a group that is going on is whole"

        async def told(method: str, path: str, **body: Any) -> tuple[int, str]:
            answer = await g.admin.request(method, path, **body)
            return answer.status_code, answer.text

        for path in ("ack", "renew", "nack"):
            status, text = await told("POST", f"/v1/leases/{lease}/{path}", json={"ttl_s": 60.0})
            assert (status, "acknowledged, and is retired" in text) == (404, True), path
        for path in ("ack", "renew"):
            status, text = await told("POST", f"/v1/leases/{path}", json={"lease_ids": [lease]})
            assert (status, "NotFound" in text) == (200, True), text
        status, text = await told("POST", "/v1/leases", json={"lease_id": lease})
        assert (status, json.loads(text)["sessions"]) == (200, []), text
        assert (await told("POST", "/v1/sessions/s1/reward", json={"reward": 2.0}))[0] == 410
        assert (await told("POST", "/v1/sessions/s1/complete", json={}))[0] == 200
        assert (await told("POST", "/v1/sessions/s1/finalize", json={}))[0] == 410
        assert (await told("GET", "/v1/sessions/s1/wait"))[0] == 200
        assert (await told("GET", "/v1/sessions/s4"))[0] == 404
        listed = (await g.admin.get("/v1/sessions", params={"state": "open"})).json()["sessions"]
        assert [one["session_id"] for one in listed] == ["s2"]
        live = Live(g.origin, admin_key())
        rows = await asyncio.to_thread(lambda: list(live.trajectories("")))
        assert [row.session_id for row in rows] == ["s3"]
        seen = await asyncio.to_thread(lambda: list(live.sessions("")))
        assert [(one["session_id"], one["retired"]) for one in seen] == [
            ("s1", True),
            ("s2", False),
            ("s3", False),
        ]


async def test_a_journal_that_nobody_serves_tells_of_the_retired_too(tmp_path: Path, world: World) -> None:
    store = await SqliteStore.open(tmp_path / "journal.sqlite")
    sessions = Sessions(store, world)
    gone, stays = await world.ended(sessions, "a"), await world.ended(sessions, "b")
    record = sessions.book.lease("l", world.now, ttl_s=60.0)
    await sessions.settle(record)
    await sessions.settle(sessions.book.ack("l", world.now))
    world.now += 1.0
    assert await sessions.retire(0.5) == 1
    await store.aclose()
    told = {one["session_id"]: (one["state"], one["retired"]) for one in offline.sessions(tmp_path, "j")}
    assert told == {gone: ("finalized", True), stays: ("finalized", False)}
    assert offline.named(tmp_path, "s-", 9) == [gone, stays]
    with pytest.raises(Gone, match="retired"):
        offline.tree(tmp_path, gone)
    assert set(offline.counting(tmp_path)) == {stays}


async def test_a_process_that_dies_between_a_retirement_and_its_leases_compaction_knows_both(
    world: World,
) -> None:
    sessions = await world.start()
    gone = await world.ended(sessions, "gone")
    await world.acked(sessions)
    stays = await world.ended(sessions, "stays")
    world.now += 1.0
    (due,) = sessions.book.disposable(world.now - 0.5)
    await sessions._retire(due)  # and no more
    again = await world.restarted(sessions)
    assert set(again.live) == set(again.book.members) == {stays}
    assert again.book.leases == {}
    assert (await again.find(gone)).retired is not None
    await world.acked(again)
    assert await again.retire(-1.0) == 1


@pytest.mark.parametrize("compacted", [True, False], ids=["with its compaction", "that a kill cut short"])
async def test_a_lease_of_which_another_trainer_acknowledged_a_group_is_over_behind_a_retirement(
    world: World, compacted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its trainer was blocked for a quarter of an hour. Nothing but that lease says what it was given."""
    sessions = await world.start()
    theirs, rest = [await world.ended(sessions, uid) for uid in ("theirs", "rest")]
    await sessions.settle(sessions.book.lease("slow", world.now, ttl_s=60.0, max_groups=2))
    world.now += 61.0
    await world.acked(sessions)
    if compacted:
        assert await sessions.retire(-1.0) == 1
    else:
        monkeypatch.setattr(MemoryStore, "replace", lambda *_: asyncio.sleep(0))
        assert await sessions.retire(-1.0) == 1
    again = await world.restarted(sessions)
    assert theirs not in again.live
    for book in (sessions.book, again.book):
        with pytest.raises(Conflict, match="given back"):
            book.renew("slow", world.now, ttl_s=60.0)
        with pytest.raises(Conflict, match="given back"):
            book.ack("slow", world.now)
    found = again.book.lease("next", world.now, ttl_s=60.0)
    assert found is not None
    assert found.sessions == (rest,)
