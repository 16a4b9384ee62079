"""What happened, as seen from outside of the gateway: what agents were told, what engines sampled, what is on disk."""

from __future__ import annotations

import zlib
from array import array
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from sandgate.contract.trajectory import Floats, Ids
from sandgate.gateway.journal.records import Record

LINES_KEPT = 600
"""Of the log that a failing seed prints."""
NEVER = float("inf")


@dataclass(slots=True, eq=False)
class Piece:
    """One request to an engine, and what it sampled before its end."""

    turn: str
    request_id: str
    prompt: Ids
    told: int
    """The policy version that the gateway believes in, from its cache salt."""
    started: float
    life: int
    ids: Ids = field(default_factory=lambda: array("i"))
    logprobs: Floats = field(default_factory=lambda: array("f"))
    versions: Ids = field(default_factory=lambda: array("i"))
    """Of the weights that really sampled each id."""
    reported: bool = False
    """The versions were told in full to the gateway."""
    bare: bool = False
    """Some of it was sampled by an engine that had restarted."""
    ended: float = NEVER
    """When it was finished, aborted or lost."""
    answered: bool = False
    """It ended by itself (stop, length), and not by an abort."""


@dataclass(slots=True, eq=False)
class Group:
    """The generations of one call: n turns that were announced by one append of intents."""

    session: str
    digest: bytes
    turns: tuple[str, ...]
    life: int
    begun: float
    over: float = NEVER
    """When it was clear that it will never be committed."""
    cut: bool = False
    """It is over as a turn that its agent cut: decided as it left the engine, and written behind that."""
    durable: float = NEVER


@dataclass(slots=True, eq=False)
class Asked:
    """One HTTP request for an answer."""

    session: str
    ask: str
    n: int
    at: float
    retry: bool
    """It said so, in a header."""
    left: float = NEVER
    """When the client was done with the connection."""
    arrived: float = NEVER
    """When the gateway had read all of it."""
    answered: bool = False
    """The gateway let go of an answer to its last byte, and that was no error."""
    missed: float = NEVER
    """When the gateway knew that the connection was gone, before it could answer."""


@dataclass(slots=True, eq=False)
class Told:
    """An answer that reached a client to its end."""

    asked: Asked
    turn: str
    choices: tuple[Any, ...]
    """Normalised: (text, reasoning, calls, finish, logprobs) by index, or what was not told as None."""
    sent: float
    """When the gateway let go of the bytes that ended it."""
    heard: float
    accepted: bool
    """The client read it to the last byte; else it saw the end of the turn, and then the connection broke."""

    @property
    def ask(self) -> str:
        return self.asked.ask

    @property
    def session(self) -> str:
        return self.asked.session


@dataclass(slots=True)
class History:
    """Grows only. Times are virtual seconds."""

    pieces: list[Piece] = field(default_factory=list)
    groups: list[Group] = field(default_factory=list)
    told: list[Told] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)
    durable: dict[str, float] = field(default_factory=dict)
    """Turn -> when it was durable for the first time."""
    ever: list[tuple[str, Record]] = field(default_factory=list)
    """(session, record), all that was ever durable, in order."""
    retired: set[str] = field(default_factory=set)
    """Sessions whose records the gateway had deleted; the empty one is the log of leases, which it rewrites."""
    finalizing: dict[str, float] = field(default_factory=dict)
    """Session -> when its driver first asked for its end."""
    aborted: set[str] = field(default_factory=set)
    """Sessions whose driver was told that they are aborted."""
    finalized: set[str] = field(default_factory=set)
    ended: dict[str, float] = field(default_factory=dict)
    """Session -> when its driver first heard that it is over."""
    rows: list[tuple[str, list[dict[str, Any]]]] = field(default_factory=list)
    """(session, its trajectories), each time they were told."""
    leases: list[tuple[str, float, float, tuple[str, ...]]] = field(default_factory=list)
    """(lease, told at, until, sessions) as answered."""
    given_back: dict[str, float] = field(default_factory=dict)
    """Lease -> when it was first asked to be acked or nacked."""
    acked: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Lease -> its sessions, where the trainer was told that its ack counts."""
    rewarded: set[str] = field(default_factory=set)
    """Sessions for which a reward was taken before their end."""
    end: float = NEVER
    rewards: dict[str, float] = field(default_factory=dict)
    """Session -> the final reward that its driver gave and was told to have been taken."""
    versions: dict[int, float] = field(default_factory=dict)
    """Policy version -> when the trainer heard that the gateway knows it."""
    pushed: list[tuple[tuple[str, ...], int]] = field(default_factory=list)
    """(uids, len(ever) when it was heard) of each batch of tasks that was told to be queued."""
    taken: list[tuple[int, str, Any, int]] = field(default_factory=list)
    """(number, uid, data, len(ever) when it was heard) of each task that the operator was given."""
    forgotten: list[tuple[int, int]] = field(default_factory=list)
    """(number, len(ever) when it was heard): tasks up to it were told to be forgotten."""
    pauses: list[tuple[float, float]] = field(default_factory=list)
    """(heard that new turns are held, asked to let them go), of one life of the gateway each."""
    wrong: list[str] = field(default_factory=list)
    """What was seen to be wrong at once."""
    counts: dict[str, int] = field(default_factory=dict)
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=LINES_KEPT))
    digest: int = 0
    """Of all lines ever."""

    def told_rows(self, session: str, rows: list[dict[str, Any]]) -> None:
        """Trajectories as they were told. What they say of the engine's version is what is known of it at that moment:
        nothing, while it is down."""
        self.rows.append((session, [{**row, "engine": ""} for row in rows]))

    def say(self, at: float, line: str) -> None:
        """One line of the compact log; its first word is counted."""
        word = line.partition(" ")[0]
        self.counts[word] = self.counts.get(word, 0) + 1
        self.lines.append(f"{at:10.4f} {line}")
        self.digest = zlib.crc32(f"{at:.6f}{line}".encode(), self.digest)
