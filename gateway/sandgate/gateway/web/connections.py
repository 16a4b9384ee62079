"""Limits on connections: in all, and per key. Connections that have shown no key are cut first."""

from __future__ import annotations

import resource
from dataclasses import dataclass, field
from typing import Protocol

from sandgate.contract import descriptors
from sandgate.contract.errors import Overloaded

SPARE = 32
"""Connections without a key that are let in when all places are taken: probes, and clients about to show one. A later
connection cuts them; one that holds a place does not."""
FILES = 128
"""Descriptors that are nobody's connection: the journal, its threads, listening, the log."""
RETRY_S = 1.0
"""Seconds until a refused client may come again: a request ends in about that time."""


class Connection(Protocol):
    """What this module asks of a connection."""

    def busy(self) -> bool:
        """Whether a request of this connection is being worked on."""
        ...

    def cut(self) -> None:
        """Ends the connection now; what it was still to be sent is lost."""
        ...


@dataclass(slots=True)
class ConnectionTable:
    """All connections of a process. A connection that showed a good key holds a place in that key's name. Where there
    are too many, the oldest idle connections lose their places; busy ones never do."""

    most: int
    most_of_one: int
    """Connections with one agent's key."""
    without_key: dict[Connection, None] = field(default_factory=dict)
    """Connections that have shown no key, oldest first."""
    names: dict[Connection, str] = field(default_factory=dict)
    """Each other connection, oldest first: the name of the key that it showed last."""
    of: dict[str, dict[Connection, None]] = field(default_factory=dict)

    def enter(self, connection: Connection) -> None:
        """Lets a new connection in, always; where there is no room, another is cut."""
        if len(self.without_key) + len(self.names) >= self.most:
            if len(self.without_key) >= SPARE:
                self._cut(next(iter(self.without_key)))
            elif (idle := _idle(self.names)) is not None:
                self._cut(idle)
        self.without_key[connection] = None

    def show(self, connection: Connection, name: str, *, bounded: bool) -> None:
        """The connection showed a good key of this name. Raises Overloaded where no place is left: in that name (if it
        is `bounded`), or at all."""
        if self.names.get(connection) == name:
            return
        mine = self.of.get(name, {})
        if bounded and len(mine) >= self.most_of_one:
            self._make_room(mine, f"{len(mine)} connections with this key are busy")
        if connection not in self.names and len(self.names) >= self.most:
            self._make_room(self.names, f"{len(self.names)} connections are busy")
        self.leave(connection)
        self.names[connection] = name
        self.of.setdefault(name, {})[connection] = None

    def leave(self, connection: Connection) -> None:
        """The connection ended."""
        self.without_key.pop(connection, None)
        name = self.names.pop(connection, None)
        if name is not None and (mine := self.of.get(name)) is not None:
            mine.pop(connection, None)
            if not mine:
                del self.of[name]

    def _make_room(self, among: dict[Connection, None] | dict[Connection, str], why: str) -> None:
        idle = _idle(among)
        if idle is None:
            raise Overloaded(why, retry_after=RETRY_S)
        self._cut(idle)

    def _cut(self, connection: Connection) -> None:
        self.leave(connection)
        connection.cut()


def _idle(among: dict[Connection, None] | dict[Connection, str]) -> Connection | None:
    return next((connection for connection in among if not connection.busy()), None)


def places(wanted: int, generations: int) -> int:
    """How many connections this process has descriptors for, beside those to its engines: at least half of the limit.
    Raises the limit of descriptors as far as it may."""
    soft = descriptors.raise_to(wanted + SPARE + generations + FILES)
    if soft == resource.RLIM_INFINITY:
        return wanted
    return min(wanted, max(soft // 2 - SPARE, soft - SPARE - generations - FILES))
