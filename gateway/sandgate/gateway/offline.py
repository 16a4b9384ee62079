"""Reads the sessions of a run, over or going on, from the journals in its --out directory, without a gateway.

Reads only, takes no lock and never repairs, so it may look while a gateway writes. What a session is, is the gateway's
own fold of its records.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from sandgate.contract.errors import CorruptRecord, NotFound, SandgateError
from sandgate.contract.trajectory import Json
from sandgate.gateway.journal.records import RETIRED, Record, Retired
from sandgate.gateway.journal.rows import read
from sandgate.gateway.journal.sqlite import APPLICATION_ID, SELECT
from sandgate.gateway.service.retired import session_of
from sandgate.gateway.service.session import Session
from sandgate.gateway.service.session_tree import trajectories_from, tree_view
from sandgate.gateway.tokens.api import Codec
from sandgate.gateway.tokens.load import load_codec
from sandgate.gateway.trajectories.leases import LeaseBook
from sandgate.gateway.trajectories.linearize import Facts

MAGIC = b"SQLite format 3\0"
CONFIGS = "run/gateway-*.json"
"""Where a local run leaves its gateways' settings."""
DEPTH_MAX = 3
"""Folders below --out in which a journal may lie."""


def journals(out: Path) -> list[Path]:
    """Journal files in and below `out`, in name order. Raises NotFound if there is none."""
    if not out.is_dir():
        raise NotFound(f"{out}: no such directory")
    levels = ("/".join(["*"] * depth) for depth in range(1, DEPTH_MAX + 1))
    paths = sorted(path for level in levels for path in out.glob(level) if _is_journal(path))
    if not paths:
        raise NotFound(f"{out}: no journal in it; is it the --out directory of a run?")
    return paths


def sessions(out: Path, job: str = "") -> Iterator[dict[str, Json]]:
    """The summary of every session, in id order (see GET /v1/sessions). Raises NotFound, CorruptRecord, NewerRecord."""
    for summary, _ in opened(out, job):
        yield summary


def opened(out: Path, job: str = "") -> Iterator[tuple[dict[str, Json], dict[str, Json]]]:
    """(summary, what it was created with) of every session. Raises as `sessions`."""
    for path in journals(out):
        with _opened(path) as db:
            for session_id in _ids(db):
                session = _fold(db, session_id)
                if not job or session.spec.get("job") == job:
                    yield session.summary(), session.spec


def tree(out: Path, session_id: str, *, text: bool = True, tokenizer: str = "") -> dict[str, Json]:
    """As GET /v1/sessions/{id}/tree gives it. With `text` its spans carry text too, decoded by the model folder
    `tokenizer`, or by the one that the run used if that is still there.

    Raises NotFound, Gone (it was retired), CorruptRecord, NewerRecord, BadManifest (the tokenizer).
    """
    for path in journals(out):
        with _opened(path) as db:
            session = _fold(db, session_id)
        if session.opened_at:
            session.refuse_if_retired()
            return tree_view(session, _codec(out, tokenizer) if text else None)
    raise NotFound(f"no session {session_id!r} in {out}")


def named(out: Path, beginning: str, limit: int) -> list[str]:
    """Ids of sessions that begin like that, in order, at most `limit`. Raises NotFound, CorruptRecord."""
    sessions: set[str] = set()
    for path in journals(out):
        with _opened(path) as db:
            rows = db.execute(
                "SELECT DISTINCT session FROM records WHERE session >= ? AND session < ? AND session <> ''"
                " AND session NOT GLOB '~*' ORDER BY session LIMIT ?",
                (beginning, f"{beginning}{chr(sys.maxunicode)}", limit),
            )
            sessions.update(session for (session,) in rows)
            first = RETIRED + beginning
            rows = db.execute(
                "SELECT DISTINCT session FROM records WHERE session >= ? AND session < ? ORDER BY session LIMIT ?",
                (first, f"{first}{chr(sys.maxunicode)}", limit),
            )
            sessions.update(session.removeprefix(RETIRED) for (session,) in rows)
    return sorted(sessions)[:limit]


def counting(out: Path) -> dict[str, str]:
    """Session -> its group's task (itself, if it has none): those that count in whole groups, so that a trainer gets
    their rows, or got them. Raises NotFound, CorruptRecord, NewerRecord."""
    book = LeaseBook()
    for path in journals(out):
        with _opened(path) as db:
            for row in db.execute(f"{SELECT} ORDER BY seq"):
                _, session, record = read(row)
                book.fold(session, record)
    return {
        member.session: group.key.uid or member.session
        for group in book.groups.values()
        if group.whole()
        for member in group.counting()
    }


def rows_of(out: Path, session_id: str) -> int:
    """Trajectories that a sealed session gives. Raises NotFound, CorruptRecord, NewerRecord."""
    for path in journals(out):
        with _opened(path) as db:
            records = list(_records(db, session_id))
        if records:
            return len(trajectories_from(session_id, records, Facts()))
    raise NotFound(f"no session {session_id!r} in {out}")


def _codec(out: Path, tokenizer: str) -> Codec | None:
    if tokenizer:
        return load_codec(tokenizer)
    try:
        return load_codec(used_tokenizer(out))
    except SandgateError:  # moved since: ids are what there is
        return None


def used_tokenizer(out: Path) -> str:
    """The model folder that the run's first gateway was told of; empty if that is not known any more."""
    for path in sorted(out.glob(CONFIGS)):
        try:
            return str(json.loads(path.read_text("utf-8"))["model"]["tokenizer"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
    return ""


def _is_journal(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            return False
    with _opened(path) as db:
        (application,) = db.execute("PRAGMA application_id").fetchone()
    return bool(application == APPLICATION_ID)


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            yield db
    except sqlite3.DatabaseError as error:
        raise CorruptRecord(f"{path}: {error}") from error


def _ids(db: sqlite3.Connection) -> list[str]:
    rows = db.execute("SELECT DISTINCT session FROM records WHERE session <> ''")
    names = {session.removeprefix(RETIRED) for (session,) in rows}
    return sorted(name for name in names if not name.startswith("~"))


def _fold(db: sqlite3.Connection, session_id: str) -> Session:
    """A session nothing is known of is one that was never opened; of a retired one there is its line."""
    session = Session(session_id)
    for record in _records(db, session_id):
        session.apply(record)
    if not session.opened_at:
        for line in _records(db, RETIRED + session_id):
            if isinstance(line, Retired):
                return session_of(session_id, line)
    return session


def _records(db: sqlite3.Connection, session_id: str) -> Iterator[Record]:
    for row in db.execute(f"{SELECT} WHERE session = ? ORDER BY seq", (session_id,)):
        yield read(row)[2]
