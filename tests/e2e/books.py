"""The three books of a run that must agree: what agents were told, what gateways committed, what the engine sampled."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandgate.gateway import offline
from sandgate.gateway.journal.records import Intent, Record, TurnCommitted
from sandgate.gateway.journal.reply import Reply
from sandgate.gateway.journal.rows import read
from sandgate.gateway.journal.sqlite import SELECT
from tests.support.recorder import Chat, Generation


def records(out: Path) -> Iterator[tuple[str, Record]]:
    """(session, record) of a run's journals, in the order in which they were written."""
    for path in offline.journals(out):
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as db:
            for row in db.execute(f"{SELECT} WHERE session != '' ORDER BY seq"):
                _, session, record = read(row)
                yield session, record


@dataclass
class Session:
    """One attempt, in all three."""

    committed: list[TurnCommitted] = field(default_factory=list)
    lost: list[Intent] = field(default_factory=list)
    """Generations that were begun and never committed; another one took their place."""
    unanswered: list[Intent] = field(default_factory=list)
    """Of these no one was, for their request."""
    told: list[Chat] = field(default_factory=list)

    def check(self) -> None:
        """Nothing told is lost or changed, nothing was told as two turns, nothing was committed that nobody heard."""
        assert self.unanswered == []
        by_request: dict[bytes, set[str]] = {}
        for chat in self.told:
            by_request.setdefault(chat.raw, set()).add(chat.turn)
        assert all(len(turns) == 1 for turns in by_request.values()), "one request, one turn"
        heard = list(dict.fromkeys(chat.turn for chat in self.told))
        assert heard == [one.turn for one in self.committed]
        replies = {one.turn: one for one in self.committed}
        for chat in self.told:
            assert says(chat.told) == words(replies[chat.turn].reply)
            assert chat.told["usage"]["completion_tokens"] == len(replies[chat.turn].ids) // 4


def says(told: Any) -> tuple[str, list[tuple[str, str]]]:
    """(text, tool calls) of a chat completion."""
    message = told["choices"][0]["message"]
    calls = [
        (one["function"]["name"], one["function"]["arguments"]) for one in message.get("tool_calls") or ()
    ]
    return message.get("content") or "", calls


def words(reply: Reply) -> tuple[str, list[tuple[str, str]]]:
    """The same of what was committed."""
    return reply.text, [(one.name, one.arguments) for one in reply.tool_calls]


def sessions(out: Path, chats: list[Chat]) -> dict[str, Session]:
    """By id. Checks on the way that no committed turn was begun a second time."""
    found: dict[str, Session] = {}
    begun: dict[tuple[str, bytes], list[Intent]] = {}
    done: set[tuple[str, bytes]] = set()
    for name, record in records(out):
        session = found.setdefault(name, Session())
        if isinstance(record, Intent):
            assert (name, record.digest) not in done, "a committed turn was sampled again"
            begun.setdefault((name, record.digest), []).append(record)
        elif isinstance(record, TurnCommitted):
            turn = record.turn
            cut = [intent for intent in begun[name, record.digest] if intent.turn != turn]
            assert record.resampled == bool(cut), "what a kill cut short is sampled anew, and flagged"
            done.add((name, record.digest))
            session.committed.append(record)
            session.lost += cut
    for (name, digest), intents in begun.items():
        if (name, digest) not in done:
            found[name].unanswered += intents
    for chat in chats:
        if chat.passed_on:
            assert chat.status == 200
            found[chat.session].told.append(chat)
    return found


def unknown(found: dict[str, Session], generations: list[Generation]) -> list[Generation]:
    """What the engine was asked and no journal knows of."""
    known = {one.turn for session in found.values() for one in session.committed}
    known |= {one.turn for session in found.values() for one in session.lost}
    return [one for one in generations if one.turn not in known]
