"""The Postgres journal behind a pooler, and before a server that is silent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import uuid
from collections.abc import Iterator

import psycopg
import pytest

from sandgate.contract.errors import Conflict, JournalUnavailable
from sandgate.gateway.journal import postgres_connection
from sandgate.gateway.journal.postgres import PostgresStore
from sandgate.gateway.journal.records import TurnCommitted
from tests.gateway.journal.samples import turn
from tests.support import postgres
from tests.support.pgbouncer import pooler

LOCKERS = "SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND granted"


@pytest.fixture
def server() -> Iterator[postgres.Server]:
    with postgres.server() as found:
        yield found


@pytest.fixture
def name() -> str:
    return f"gateway-{uuid.uuid4()}"


def stored(store: PostgresStore) -> list[str]:
    return [record.turn for _, _, record in store.scan() if isinstance(record, TurnCommitted)]


async def test_behind_a_pooler_in_session_mode_it_works_and_has_one_writer(
    server: postgres.Server, name: str
) -> None:
    with pooler(server, "session") as dsn:
        async with await PostgresStore.open(dsn, name) as store:
            for number in range(8):  # more often than a statement is sent before psycopg prepares it
                await store.append("s", turn(f"t{number}"))
            with pytest.raises(Conflict):
                await PostgresStore.open(dsn, name)
        async with await PostgresStore.open(dsn, name) as store:
            assert len(stored(store)) == 8


POOLS: dict[str, dict[str, object]] = {
    "that takes the session which was used last": {},
    "that takes each session in turn": {"server_round_robin": 1},
}


@pytest.mark.parametrize("settings", POOLS.values(), ids=POOLS)
async def test_a_pooler_in_transaction_mode_is_refused_at_the_start(
    server: postgres.Server, name: str, settings: dict[str, object]
) -> None:
    """Its locks would be anybody's, and stay when the gateway is gone."""
    with pooler(server, "transaction", **settings) as dsn, contextlib.ExitStack() as others:
        idle = [others.enter_context(psycopg.connect(dsn)) for _ in range(3)]
        for other in idle:
            other.execute("SELECT 1")
        for other in idle:
            other.rollback()
        for _ in range(2):  # not a Conflict with what the first left
            with pytest.raises(JournalUnavailable, match="pooler in transaction mode"):
                await PostgresStore.open(dsn, name)
        assert server.sql(LOCKERS) == []


async def test_a_write_whose_lock_is_another_sessions_is_refused(server: postgres.Server, name: str) -> None:
    """As where a pooler's mode was changed meanwhile."""
    async with await PostgresStore.open(server.dsn, name) as store:
        await store.append("s", turn("a"))
        writer = store._writer
        with contextlib.closing(postgres_connection.connect(server.dsn)) as other:
            mine, writer.db = writer.db, other
            with pytest.raises(JournalUnavailable, match="pooler in transaction mode"):
                await store.append("s", turn("b"))
            writer.db = mine
        assert stored(store) == ["a"]


async def test_a_server_that_does_not_answer_is_given_up_and_told(
    server: postgres.Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its disk hangs, or it is gone behind a pooler that lives on: turns waited for ever at a healthy gateway."""
    monkeypatch.setattr(postgres_connection, "SILENT_S", 1.0)
    async with await PostgresStore.open(server.dsn, name) as store:
        await store.append("s", turn("a"))
        ((frozen,),) = server.sql(LOCKERS)
        os.kill(frozen, signal.SIGSTOP)
        try:
            async with asyncio.timeout(20):
                with pytest.raises(JournalUnavailable):
                    await store.append("s", turn("b"))
            assert not store.status().healthy
        finally:
            os.kill(frozen, signal.SIGCONT)

        async def written() -> None:
            while True:
                with contextlib.suppress(JournalUnavailable):
                    return await store.append("s", turn("c"))
                await asyncio.to_thread(server.sql, "SELECT pg_sleep(0.2)")

        async with asyncio.timeout(20):
            await written()
        assert stored(store) == ["a", "c"]
