"""A connection to a journal's database, which no silence holds up and no pooler shares with others.

psycopg waits for ever for a server that is frozen, or gone behind a pooler that lives on. A pooler in transaction mode
gives each transaction another session of the server: the lock would be somebody else's.
"""

from __future__ import annotations

import contextlib
import secrets
import select
import time
from collections.abc import Generator
from typing import Any

import psycopg  # type: ignore[import-not-found, unused-ignore]  # an extra of its own

CONNECT_S = 10
"""Seconds for a new connection, TLS and login included."""
STATEMENT_MS = 60_000
"""Milliseconds after which a write that waits for a lock fails, and a COMMIT (which the server's own limit does not end
while it waits for a standby) is in doubt."""
SILENT_S = 90.0
"""Seconds without a byte of an answer after which a connection is given up: longer than the server lets any statement
run."""
UNCONFIRMED = "the database did not answer a COMMIT in time (a synchronous standby that is gone?)"
SILENT = "the database has not answered for {:g} s (it is frozen, or not in reach of the pooler in between?)"
POOLED = (
    "the DSN leads to a pooler in transaction mode, where no lock is kept: connect to the server, or to a pooler in"
    " session mode"
)
POOL_ROUNDS = 3
"""How often a pooler is looked for: others that use it may come in between."""
MARK = "SELECT set_config('sandgate.session', %s, false)"
MARKED = "SELECT current_setting('sandgate.session', true)"
SETTINGS = (
    "SET synchronous_commit = on",  # whatever the server's default: durable means durable
    "SET client_encoding = 'UTF8'",
    "SET client_min_messages = warning",  # one in a COMMIT says that no standby confirmed it
    "SET tcp_keepalives_idle = 15",  # a dead gateway's session, and with it its lock, is gone after 30 s
    "SET tcp_keepalives_interval = 5",
    "SET tcp_keepalives_count = 3",
    "SET tcp_user_timeout = 30000",  # and where an answer was under way, for which keepalives are not sent
)


class _Heard(psycopg.Connection):  # type: ignore[misc, unused-ignore]
    """A connection that is closed once the server has been silent for SILENT_S in the middle of a statement."""

    def wait(self, gen: Any, *args: Any, **settings: Any) -> Any:
        return super().wait(self._heard(gen), *args, **settings)

    def _heard(self, gen: Any) -> Generator[Any, Any, Any]:
        """`gen`, which psycopg resumes each 100 ms, with nothing where nothing came."""
        heard = time.monotonic()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                now = time.monotonic()
                if ready:
                    heard = now
                elif now - heard > SILENT_S:
                    self.close()
                    raise psycopg.OperationalError(SILENT.format(SILENT_S))
                wanted = gen.send(ready)
        except StopIteration as end:
            return end.value


def connect(dsn: str, *, autocommit: bool = False) -> Any:
    """A connection. Settings in the DSN win over those made here. Raises psycopg.Error."""
    given = psycopg.conninfo.conninfo_to_dict(dsn)
    ours: dict[str, Any] = {
        "application_name": "sandgate gateway",
        "connect_timeout": CONNECT_S,
        "keepalives_idle": 15,
        "keepalives_interval": 5,
        "keepalives_count": 3,
        "tcp_user_timeout": 30_000,
        "target_session_attrs": "read-write",  # of several hosts the one that takes writes
    }
    db = _Heard.connect(psycopg.conninfo.make_conninfo("", **(ours | given)), autocommit=True)
    try:
        for setting in SETTINGS:
            db.execute(setting)
        db.execute(f"SET statement_timeout = {STATEMENT_MS}")
        db.autocommit = autocommit
    except BaseException:
        db.close()
        raise
    return db


def check_unshared(db: Any, dsn: str) -> None:
    """Raises psycopg.Error if what is set in the session of `db` (no transaction is open, nor is one after it) is lost
    with the transaction, or is another connection's, too: a pooler gives them one session of the server."""
    mine = secrets.token_hex()
    db.execute(MARK, (mine,))
    commit(db)
    with contextlib.closing(connect(dsn, autocommit=True)) as other:
        for _ in range(POOL_ROUNDS):
            (found,) = db.execute(MARKED).fetchone()
            commit(db)
            (theirs,) = other.execute(MARKED).fetchone()
            if found != mine or theirs == mine:
                raise psycopg.OperationalError(POOLED)


def commit(db: Any) -> None:
    """Ends the transaction. Raises psycopg.Error; the outcome is open if the connection is closed then: it was lost,
    the answer did not come in STATEMENT_MS, or it came with a warning, as where no standby confirmed it."""
    warnings: list[str] = []

    def notice(told: Any) -> None:
        warnings.append(told.message_primary or "")

    db.add_notice_handler(notice)
    try:
        failures = _answers(db, b"COMMIT", time.monotonic() + STATEMENT_MS / 1000)
    finally:
        db.remove_notice_handler(notice)
    if warnings:
        db.close()
    if failures := failures + warnings:
        raise psycopg.OperationalError(failures[0])


def _answers(db: Any, statement: bytes, until: float) -> list[str]:
    """Does a statement; what failed, if anything. psycopg itself would wait for ever."""
    wire, failures = db.pgconn, list[str]()
    wire.send_query(statement)
    while True:
        while (sending := wire.flush()) or wire.is_busy():
            polled = select.poll()
            polled.register(wire.socket, select.POLLIN | (select.POLLOUT if sending else 0))
            if not polled.poll(max(0.0, until - time.monotonic()) * 1000):
                db.close()
                raise psycopg.OperationalError(UNCONFIRMED)
            wire.consume_input()
        if (result := wire.get_result()) is None:
            return failures
        if result.status != psycopg.pq.ExecStatus.COMMAND_OK:
            told = result.error_field(psycopg.pq.DiagnosticField.MESSAGE_PRIMARY) or result.error_message
            failures.append(told.decode(errors="replace"))
