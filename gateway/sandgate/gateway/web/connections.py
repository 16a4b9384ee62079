"""Who is connected: so many in all, so many with one key; whoever shows none makes room first."""

from __future__ import annotations

import resource
from dataclasses import dataclass, field
from typing import Protocol

from sandgate.contract.errors import Overloaded

SPARE = 32
"""Connections without a key that are let in when all places are taken: probes, and whoever is about to show one. They
are cut by those that come later, not by those that hold places."""
FILES = 128
"""Descriptors that are nobody's connection: the journal, its threads, listening, the log."""
RETRY_S = 1.0
"""When a client may come again: a request ends in about that time."""


class Guest(Protocol):
    """A connection."""

    def busy(self) -> bool:
        """A request of its is being worked on."""
        ...

    def cut(self) -> None:
        """End it now; what it may still be told is lost."""
        ...


@dataclass(slots=True)
class Crowd:
    """All connections of a process. One that showed a good key holds a place in its name; the oldest idle ones lose
    theirs where there are too many, busy ones never."""

    most: int
    most_of_one: int
    """With one agent's key."""
    strangers: dict[Guest, None] = field(default_factory=dict)
    """Have shown no key, oldest first."""
    names: dict[Guest, str] = field(default_factory=dict)
    """Whose key each of the others showed last, oldest first."""
    of: dict[str, dict[Guest, None]] = field(default_factory=dict)

    def enter(self, guest: Guest) -> None:
        """A new one is always let in."""
        if len(self.strangers) + len(self.names) >= self.most:
            if len(self.strangers) >= SPARE:
                self._cut(next(iter(self.strangers)))
            elif (idle := _idle(self.names)) is not None:
                self._cut(idle)
        self.strangers[guest] = None

    def show(self, guest: Guest, name: str, *, bounded: bool) -> None:
        """It showed a good key of this name. Raises Overloaded: there is no place in that name (if it is `bounded`), or
        none at all."""
        if self.names.get(guest) == name:
            return
        mine = self.of.get(name, {})
        if bounded and len(mine) >= self.most_of_one:
            self._make_room(mine, f"{len(mine)} connections with this key are busy")
        if guest not in self.names and len(self.names) >= self.most:
            self._make_room(self.names, f"{len(self.names)} connections are busy")
        self.leave(guest)
        self.names[guest] = name
        self.of.setdefault(name, {})[guest] = None

    def leave(self, guest: Guest) -> None:
        """It ended."""
        self.strangers.pop(guest, None)
        name = self.names.pop(guest, None)
        if name is not None and (mine := self.of.get(name)) is not None:
            mine.pop(guest, None)
            if not mine:
                del self.of[name]

    def _make_room(self, among: dict[Guest, None] | dict[Guest, str], why: str) -> None:
        idle = _idle(among)
        if idle is None:
            raise Overloaded(why, retry_after=RETRY_S)
        self._cut(idle)

    def _cut(self, guest: Guest) -> None:
        self.leave(guest)
        guest.cut()


def _idle(among: dict[Guest, None] | dict[Guest, str]) -> Guest | None:
    return next((guest for guest in among if not guest.busy()), None)


def places(wanted: int, generations: int) -> int:
    """Connections that this process has descriptors for, beside those to its engines; the limit of descriptors is
    raised as far as it may be. At least half of them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + SPARE + generations + FILES
    if soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return min(wanted, max(soft // 2 - SPARE, soft - SPARE - generations - FILES))
