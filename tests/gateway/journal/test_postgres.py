"""What only the Postgres journal promises: one writer per name, the truth after a lost connection or a dead server."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import tracemalloc
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from sandgate.contract.errors import BadManifest, Conflict, JournalUnavailable, NewerRecord
from sandgate.gateway import app
from sandgate.gateway.journal import postgres as pg
from sandgate.gateway.journal import postgres_connection, rows
from sandgate.gateway.journal.postgres import PostgresStore
from sandgate.gateway.journal.records import TurnCommitted
from tests.gateway.journal.places import Clock
from tests.gateway.journal.samples import turn
from tests.support import postgres
from tests.support.gateway import config_in, gateway
from tests.support.waiting import until


@pytest.fixture
def name() -> str:
    return f"gateway-{uuid.uuid4()}"


def stored(store: PostgresStore) -> list[str]:
    return [record.turn for _, _, record in store.scan() if isinstance(record, TurnCommitted)]


# -- many gateways, one database ------------------------------------------------------------------------------------


async def test_journals_of_other_names_are_not_seen(postgres_server: postgres.Server) -> None:
    opened = [PostgresStore.open(postgres_server.dsn, f"{uuid.uuid4()}") for _ in range(4)]
    stores = await asyncio.gather(*opened)  # the tables are made by one of them
    for number, store in enumerate(stores):
        await store.append("s", turn(f"t{number}"))
        await store.append("", turn(f"u{number}"))
    await stores[0].retire(["s"])
    await stores[1].replace("", turn("v"))
    found = [stored(store) for store in stores]
    for store in stores:
        await store.aclose()
    assert found == [["u0"], ["t1", "v"], ["t2", "u2"], ["t3", "u3"]]


async def test_a_start_stops_no_other_gateways_writes(postgres_server: postgres.Server, name: str) -> None:
    """Though something (a sweep of deleted jobs, a vacuum) holds the tables as writers do."""
    async with await PostgresStore.open(postgres_server.dsn, name) as store:
        with psycopg.connect(postgres_server.dsn) as db:
            db.execute("LOCK TABLE sandgate_records IN ROW EXCLUSIVE MODE")
            async with (
                asyncio.timeout(20),
                await PostgresStore.open(postgres_server.dsn, name + "-1") as other,
            ):
                await other.append("s", turn("a"))
                await store.append("s", turn("b"))


async def test_a_user_that_owns_no_table_opens_and_writes(mortal: postgres.Server, name: str) -> None:
    """Vault gives a new one now and then; and who owns them may no longer make others."""
    for user in ("first", "second"):
        mortal.sql(f"CREATE ROLE {user} LOGIN")
        mortal.sql(f"GRANT USAGE ON SCHEMA public TO {user}")
    mortal.sql("GRANT CREATE ON SCHEMA public TO first")
    users = [mortal.dsn.replace("postgres@", f"{user}@") for user in ("first", "second")]
    async with await PostgresStore.open(users[0], name):
        pass
    mortal.sql("GRANT SELECT, INSERT, UPDATE, DELETE ON sandgate_journals, sandgate_records TO second")
    mortal.sql("REVOKE CREATE ON SCHEMA public FROM first")
    for dsn in users:
        async with await PostgresStore.open(dsn, name) as store:
            await store.append("s", turn("a"))
    assert len(mortal.sql("SELECT seq FROM sandgate_records")) == 2


async def test_large_records_are_not_held_all_at_once(postgres_server: postgres.Server, name: str) -> None:
    """Not at the start, and not by a scan; and one that is larger than a page is read all the same."""
    tokens, count = pg.SCAN_BYTES // 8, 8
    async with await PostgresStore.open(postgres_server.dsn, name) as store:
        for number in range(count):
            await store.append("s", turn(f"t{number}", tokens=tokens))
    tracemalloc.start()
    try:
        async with await PostgresStore.open(postgres_server.dsn, name) as store:
            assert sum(1 for _ in store.scan("s")) == count
            _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < count * pg.SCAN_BYTES // 2


async def test_many_callers_share_few_transactions(postgres_server: postgres.Server, name: str) -> None:
    async with await PostgresStore.open(postgres_server.dsn, name) as store:
        await asyncio.gather(*(store.append(f"s{number}", turn(f"t{number}")) for number in range(500)))
        assert store.transactions < 50
        assert len(stored(store)) == 500


async def test_a_newer_journal_is_refused(postgres_server: postgres.Server, name: str) -> None:
    async with await PostgresStore.open(postgres_server.dsn, name):
        pass
    postgres_server.sql("UPDATE sandgate_journals SET schema = 2 WHERE name = %s", name)
    with pytest.raises(NewerRecord):
        await PostgresStore.open(postgres_server.dsn, name)


# -- one writer -----------------------------------------------------------------------------------------------------

HOLDERS = """
SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted AND objsubid = 1
AND (classid::bigint << 32 | objid::bigint) = hashtextextended('sandgate journal ' || %s, 0)
"""


def end_session(server: postgres.Server, name: str) -> None:
    """The writer's, as an administrator would; returns when its lock is free."""
    for (pid,) in server.sql(HOLDERS, name):
        server.sql("SELECT pg_terminate_backend(%s, 5000)", pid)
    assert server.sql(HOLDERS, name) == []


async def test_an_idle_session_that_was_ended_is_made_anew(
    postgres_server: postgres.Server, name: str
) -> None:
    async with await PostgresStore.open(postgres_server.dsn, name) as store:
        await store.append("s", turn("a"))
        end_session(postgres_server, name)
        await store.append("s", turn("b"))
        assert store.status().healthy
        assert stored(store) == ["a", "b"]
        assert len(postgres_server.sql(HOLDERS, name)) == 1, "with the lock"


async def test_who_was_replaced_while_its_session_was_gone_never_writes_again(
    postgres_server: postgres.Server, name: str
) -> None:
    clock = Clock()
    old = await PostgresStore.open(postgres_server.dsn, name, now=clock)
    await old.append("s", turn("a"))
    end_session(postgres_server, name)
    async with await PostgresStore.open(postgres_server.dsn, name) as new:
        with pytest.raises(JournalUnavailable, match="another process has the journal"):
            await old.append("s", turn("lost"))
        await new.append("s", turn("b"))
    for _ in range(2):
        clock.seconds += rows.RETRY_S
        with pytest.raises(JournalUnavailable, match="another process took over"):
            await old.append("s", turn("lost"))
        assert not old.status().healthy
    assert stored(old) == ["a", "b"]
    await old.aclose()


async def test_a_lock_alone_is_not_trusted(postgres_server: postgres.Server, name: str) -> None:
    """Whoever got the journal another way (a pooler that mixes sessions) has counted the epoch up."""
    async with await PostgresStore.open(postgres_server.dsn, name) as store:
        await store.append("s", turn("a"))
        postgres_server.sql("UPDATE sandgate_journals SET epoch = epoch + 1 WHERE name = %s", name)
        with pytest.raises(JournalUnavailable, match="another process took over"):
            await store.append("s", turn("b"))
        assert stored(store) == ["a"]


# -- a connection that breaks in a commit ---------------------------------------------------------------------------


class Wire:
    """Between a gateway and its server: cuts the connection that sends the next COMMIT, before or after the server has
    it; then it connects nobody until it is healed."""

    def __init__(self, server: postgres.Server) -> None:
        self.server = server
        self.cut = ""
        self.down = False
        self.was_cut = asyncio.Event()
        self.tasks: set[asyncio.Task[Any]] = set()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.down:
            writer.transport.abort()
            return
        if (mine := asyncio.current_task()) is not None:
            self.tasks.add(mine)
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        back = asyncio.ensure_future(self._copy(up_reader, writer))
        self.tasks.add(back)
        try:
            while chunk := await reader.read(1 << 16):
                if self.cut and b"COMMIT\0" in chunk:
                    await self._end(chunk, back, up_reader, up_writer)
                    break
                up_writer.write(chunk)
        except ConnectionError:
            pass
        finally:
            writer.transport.abort()
            up_writer.transport.abort()

    async def _end(
        self,
        commit: bytes,
        back: asyncio.Task[None],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        when, self.cut, self.down = self.cut, "", True
        back.cancel()
        await asyncio.gather(back, return_exceptions=True)
        if when == "after":
            writer.write(commit)
            await reader.read(1)  # the server says that it has committed; nobody is told
        self.was_cut.set()

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while chunk := await reader.read(1 << 16):
                writer.write(chunk)
        writer.transport.abort()


@asynccontextmanager
async def wired(server: postgres.Server) -> AsyncIterator[tuple[Wire, str]]:
    wire = Wire(server)
    listening = await asyncio.start_server(wire.connected, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    try:
        yield wire, server.dsn.replace(str(server.port), str(port))
    finally:
        listening.close()
        for task in wire.tasks:
            task.cancel()
        await asyncio.gather(*wire.tasks, return_exceptions=True)
        await listening.wait_closed()
        await asyncio.sleep(0)  # aborted transports close their sockets in the loop's next turn


@pytest.mark.parametrize("when", ["before", "after"])
async def test_a_commit_cut_short_is_told_as_what_it_became(
    postgres_server: postgres.Server, name: str, when: str
) -> None:
    clock = Clock()
    async with wired(postgres_server) as (wire, dsn):
        store = await PostgresStore.open(dsn, name, now=clock)
        await store.append("s", turn("a"))
        wire.cut = when
        writing = asyncio.ensure_future(store.append("s", turn("b")))
        async with asyncio.timeout(20):
            await wire.was_cut.wait()

        async def unhealthy() -> bool:
            return not store.status().healthy

        await until(unhealthy, what="new turns are refused while it is not known")
        assert not writing.done(), "nobody is told a guess"
        wire.down = False
        if when == "after":
            await writing
        else:
            with pytest.raises(JournalUnavailable):
                await writing
        clock.seconds += rows.RETRY_S
        await store.append("s", turn("c"))
        found = await asyncio.to_thread(stored, store)  # the wire is served by this loop
        assert found == (["a", "b", "c"] if when == "after" else ["a", "c"])
        assert store.status().records == len(found)
        await store.aclose()


async def test_a_process_that_ends_does_not_wait_for_the_database(
    postgres_server: postgres.Server, name: str
) -> None:
    async with wired(postgres_server) as (wire, dsn):
        store = await PostgresStore.open(dsn, name)
        wire.cut = "before"
        writing = asyncio.ensure_future(store.append("s", turn("a")))
        async with asyncio.timeout(20):
            await wire.was_cut.wait()
            await store.aclose()
        with pytest.raises(JournalUnavailable, match="not known whether"):
            await writing


# -- a server that dies ---------------------------------------------------------------------------------------------

RECOVERY_S = 60.0
"""Of a killed server: its end, its recovery, and the pause before the journal tries again."""


@pytest.fixture
def mortal() -> Iterator[postgres.Server]:
    with postgres.server() as found:
        yield found


async def test_a_server_that_crashes_loses_nothing_that_was_told(mortal: postgres.Server, name: str) -> None:
    told: list[str] = []
    enough_told = asyncio.Event()
    async with await PostgresStore.open(mortal.dsn, name) as store:

        async def healthy() -> bool:
            return store.status().healthy

        async def talk() -> None:
            for number in itertools.count():
                if enough_told.is_set():
                    return
                try:
                    await store.append("s", turn(f"t{number}"))
                except JournalUnavailable:
                    await until(healthy, what="the journal takes writes again", within_s=RECOVERY_S)
                else:
                    told.append(f"t{number}")

        async def goes_on() -> None:
            enough = len(told) + 20

            async def more() -> bool:
                return len(told) > enough

            await until(more, what="turns are told", within_s=RECOVERY_S)

        talking = asyncio.ensure_future(talk())
        for _ in range(3):
            await goes_on()
            await asyncio.to_thread(mortal.crash)
            await asyncio.to_thread(mortal.start)
        await goes_on()
        enough_told.set()
        await talking
        found = stored(store)
        assert [one for one in found if one in set(told)] == told, "in order, each once"
        assert len(found) - len(told) <= 1, "but for the one that was under way"
    async with await PostgresStore.open(mortal.dsn, name) as store:
        assert stored(store) == found


async def test_a_server_that_was_restarted_fails_no_read(mortal: postgres.Server, name: str) -> None:
    """All connections that readers had left idle ended with it."""
    async with await PostgresStore.open(mortal.dsn, name) as store:
        await store.append("s", turn("a"))
        scans = [store.scan() for _ in range(3)]
        for scan in scans:
            next(scan)  # each has a connection
        for scan in scans:
            assert list(scan) == []
        assert len(store._readers) == 3
        await asyncio.to_thread(mortal.crash)
        await asyncio.to_thread(mortal.start)
        assert list(store.scan_named("~")) == []
        assert stored(store) == ["a"]
        assert len(store._readers) == 1, "the others are dropped at once"


async def test_a_server_that_is_not_there_is_a_reason_to_come_back_later(
    mortal: postgres.Server, name: str
) -> None:
    mortal.crash()
    with pytest.raises(JournalUnavailable, match="refused"):
        await PostgresStore.open(mortal.dsn, name)


# -- standbys -------------------------------------------------------------------------------------------------------


@pytest.fixture
def standby(mortal: postgres.Server) -> Iterator[postgres.Server]:
    with postgres.server(of=mortal) as found:
        yield found


def both(first: postgres.Server, second: postgres.Server, asks: str = "") -> str:
    """A DSN of two hosts; the first that will do is taken."""
    return f"postgresql://postgres@127.0.0.1:{first.port},127.0.0.1:{second.port}/postgres{asks}"


async def caught_up(primary: postgres.Server) -> None:
    """Returns when its standby has all that it has."""
    asked = "SELECT replay_lsn >= pg_current_wal_insert_lsn() FROM pg_stat_replication"

    async def all_there() -> bool:
        return primary.sql(asked) == [(True,)]

    await until(all_there, what="the standby has everything")


ASKED: dict[str, tuple[str, bool]] = {
    "with a DSN that asks for nothing it reads at the primary": ("", True),
    "with one that takes any server it is told to come back": ("?target_session_attrs=any", False),
}


@pytest.mark.parametrize(("asks", "reads"), ASKED.values(), ids=ASKED)
async def test_a_reader_takes_no_answer_of_a_standby_that_lags(
    mortal: postgres.Server, standby: postgres.Server, name: str, asks: str, reads: bool
) -> None:
    async with await PostgresStore.open(mortal.dsn, name):
        pass
    await caught_up(mortal)
    standby.crash()
    async with await PostgresStore.open(both(standby, mortal, asks), name) as store:
        standby.start()
        standby.sql("SELECT pg_wal_replay_pause()")
        await store.append("s", turn("a"))
        await store.append("~s", turn("b"))
        if reads:
            assert stored(store) == ["a", "b"]
            assert len(list(store.scan_named("~"))) == 1
            return
        for scan in (store.scan(), store.scan("s"), store.scan_named("~")):
            with pytest.raises(JournalUnavailable, match="lacks commits that were told: a standby that lags"):
                list(scan)
        standby.sql("SELECT pg_wal_replay_resume()")

        async def all_there() -> bool:
            with contextlib.suppress(JournalUnavailable):
                return stored(store) == ["a", "b"]
            return False

        await until(all_there, what="it has them now")


async def test_a_failover_that_lost_commits_is_told_as_that(
    mortal: postgres.Server, standby: postgres.Server, name: str
) -> None:
    clock = Clock()
    async with await PostgresStore.open(both(mortal, standby), name, now=clock) as store:
        await store.append("s", turn("a"))
        await caught_up(mortal)
        standby.crash()
        await store.append("s", turn("b"))
        mortal.crash()
        standby.start()
        standby.promote()
        for _ in range(2):
            with pytest.raises(JournalUnavailable, match=r"lost commits that were told \(a failover\?\)"):
                await store.append("s", turn("c"))
            clock.seconds += rows.RETRY_S
        with pytest.raises(JournalUnavailable, match="a failover that lost them"):
            stored(store)
    async with await PostgresStore.open(both(mortal, standby), name) as store:
        await store.append("s", turn("d"))
        assert stored(store) == ["a", "d"], "a new process begins with what is left"


async def test_a_database_that_was_read_only_for_a_while_is_written_to_again(
    mortal: postgres.Server, name: str
) -> None:
    clock = Clock()
    read_only = "ALTER DATABASE postgres SET default_transaction_read_only = "
    for asks in ("", "?target_session_attrs=any"):
        async with await PostgresStore.open(mortal.dsn + asks, name, now=clock) as store:
            mortal.sql(read_only + "on")
            end_session(mortal, name)
            with pytest.raises(JournalUnavailable, match="read-only"):
                await store.append("s", turn("a"))
            with psycopg.connect(mortal.dsn, autocommit=True) as db:
                db.execute("SET default_transaction_read_only = off")
                db.execute(read_only + "off")
            clock.seconds += rows.RETRY_S
            await store.append("s", turn("b"))
    mortal.sql("ALTER DATABASE postgres RESET default_transaction_read_only")


def wait_for_standby(server: postgres.Server, named: str) -> None:
    server.sql(f"ALTER SYSTEM SET synchronous_standby_names = '{named}'")
    server.sql("SELECT pg_reload_conf()")


WAITING = "SELECT pid FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
ENDS: dict[str, tuple[int, bool]] = {
    "the time is over": (500, False),
    "somebody ends the wait": (60_000, True),
}


@pytest.mark.parametrize(("limit_ms", "cancelled"), ENDS.values(), ids=ENDS)
async def test_a_commit_that_no_standby_confirms_is_in_doubt_and_told_once_one_does(
    mortal: postgres.Server, name: str, limit_ms: int, cancelled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_connection, "STATEMENT_MS", limit_ms)
    async with await PostgresStore.open(mortal.dsn, name) as store:
        wait_for_standby(mortal, "gone")
        writing = asyncio.ensure_future(store.append("s", turn("a")))

        async def waits() -> bool:
            nonlocal writing
            if writing.done():  # before the server had read its settings
                writing = asyncio.ensure_future(store.append("s", turn("a")))
            return bool(mortal.sql(WAITING))

        await until(waits, what="a commit waits for the standby")
        if cancelled:
            mortal.sql(f"SELECT pg_cancel_backend(pid) FROM ({WAITING}) AS waiting")

        async def in_doubt() -> bool:
            return store.status().detail.startswith("not known whether a commit was made")

        await until(in_doubt, what="the health says it")
        assert not writing.done(), "nobody is told a guess"
        wait_for_standby(mortal, "")
        async with asyncio.timeout(20):
            await writing
        assert set(stored(store)) == {"a"}


# -- the gateway on it ----------------------------------------------------------------------------------------------


async def test_sessions_go_on_in_another_pod_of_the_same_name(
    postgres_server: postgres.Server, name: str
) -> None:
    """No volume has to follow."""
    async with (
        await PostgresStore.open(postgres_server.dsn, name) as store,
        gateway(["one"], store=store) as g,
    ):
        first = await g.session(session_id="s1", uid="q")
        await first.ask("hi")
        with pytest.raises(Conflict, match="in use by another process"):
            await PostgresStore.open(postgres_server.dsn, name)
    async with (
        await PostgresStore.open(postgres_server.dsn, name) as store,
        gateway(["two"], store=store) as g,
    ):
        again = await g.admin.post("/v1/sessions", json={"session_id": "s1", "uid": "q"})
        agent = g.agent(again.json())
        await agent.ask("hi", {"role": "assistant", "content": "one"}, "and?")
        (row,) = await g.finalize(agent)
        assert len(row["turn_ids"]) == 2
        assert row["fork_reason"] == ""


async def test_the_settings_choose_it(postgres_server: postgres.Server, name: str, tmp_path: Path) -> None:
    config = config_in(tmp_path, journal=postgres_server.dsn, name=name)
    store = await app._open_journal(config)
    assert isinstance(store, PostgresStore)
    await store.aclose()
    secret = f"postgresql://me:{quote('pa ss')}@127.0.0.1:9/db"
    with pytest.raises(JournalUnavailable) as caught:
        await app._open_journal(config_in(tmp_path, journal=secret, name=name))
    assert "pa ss" not in str(caught.value)
    assert "pa%20ss" not in str(caught.value)


async def test_without_the_extra_it_says_which_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden: Any = None
    monkeypatch.setitem(__import__("sys").modules, "sandgate.gateway.journal.postgres", hidden)
    with pytest.raises(BadManifest, match="gateway-postgres") as caught:
        await app._open_journal(config_in(tmp_path, journal="postgresql://x/y", name="n"))
    assert caught.value.field == "journal"


async def test_lines_of_retired_sessions_are_found_by_an_index_whatever_the_collation(
    postgres_server: postgres.Server, name: str
) -> None:
    async with await PostgresStore.open(postgres_server.dsn, name) as store:
        await store.append("s", turn("a"))
    with psycopg.connect(postgres_server.dsn) as db:
        db.execute("SET enable_seqscan = off")
        db.execute("SET enable_sort = off")
        plan = db.execute(
            f"EXPLAIN {pg.PAGE_NAMED}", (name, "~retired/", 0, rows.beyond("~retired/"), 128)
        ).fetchall()
    told = "\n".join(line for (line,) in plan)
    assert "sandgate_records_by_name" in told, told
    assert "Sort" not in told, told
