"""Attendance: which trainers are attached to a local run, and how long the run waits for one."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from sandgate.contract.attach import TRAINERS
from sandgate.contract.job import TrainerSpec
from sandgate.sandbox.own import OwnFile

ACK_S = 30.0
"""How long a run that was told to stop waits for groups that trainers work on. What comes later is acknowledged when
the run goes on, and nothing is lost by it: leases stand in the journals."""


@dataclass(frozen=True, slots=True)
class Seen:
    """One trainer's file."""

    held: bool
    """It lives."""
    seen_at: float
    """Its last sign of life, unix seconds."""
    leases: tuple[str, ...] = ()
    """That it had, or was about to ask for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attendance:
    """Everything that a decision needs. Times are unix seconds."""

    trainers: Mapping[str, Seen] = field(default_factory=dict)
    heard_at: float | None = None
    """Of trainers that have no file here: they know a gateway and its key."""
    owed: int = 0
    """Groups that are ready, and not acknowledged."""
    leased: int = 0
    """Of these, on a lease."""
    progress_at: float = 0.0
    """When `owed` last changed."""

    @property
    def here(self) -> list[str]:
        """Trainers that live."""
        return [name for name, one in self.trainers.items() if one.held]

    def back_by(self, patience: TrainerSpec) -> float:
        """Until then a trainer that went without a word may come back; 0 if there was none."""
        times = [one.seen_at for one in self.trainers.values() if not one.held]
        times += [] if self.heard_at is None else [self.heard_at]
        return max(times) + patience.heartbeat_seconds if times else 0.0

    def expected(self, patience: TrainerSpec, now: float) -> bool:
        """A trainer is here, or may come back."""
        return bool(self.here) or now < self.back_by(patience)


def waits(seen: Attendance, patience: TrainerSpec, now: float, *, over_at: float, drained: bool) -> str:
    """What a run that has nothing left to run waits for, in words; empty: nothing. `over_at`: since when it waits.
    (pure)"""
    owed = f"{seen.owed} group{'' if seen.owed == 1 else 's'} not acknowledged"
    if drained:
        waiting = seen.here and seen.leased and now < over_at + ACK_S
        bound = (
            f"a trainer has {ACK_S:g} s to acknowledge what it works on; Ctrl-C again ends the run at once"
        )
        return bound if waiting else ""
    if seen.here:
        if now >= max(over_at, seen.progress_at) + patience.collect_seconds:
            return ""
        if seen.owed:
            return f"everything ended; the run waits for the trainer ({owed}), Ctrl-C ends it without"
        return "the trainer has all groups; the run ends when it leaves"
    if seen.owed and now < seen.back_by(patience):
        return (
            f"the trainer may come back within {patience.heartbeat_seconds} s ({owed}); Ctrl-C ends the run"
        )
    return ""


def look(folder: Path) -> Iterator[tuple[str, Seen]]:
    """The trainers' files. A file that goes meanwhile is of one that left."""
    for path in sorted(folder.glob("[!.]*")):
        with suppress(FileNotFoundError):
            yield path.name, _seen(path)


def awaited(out: Path) -> bool:
    """A trainer waits for the run of this folder, or works on its groups."""
    return any(seen.held for _, seen in look(out / TRAINERS))


def _seen(path: Path) -> Seen:
    look = OwnFile(path, os.O_RDONLY, briefly=True)
    try:
        try:
            fcntl.flock(look, fcntl.LOCK_SH | fcntl.LOCK_NB)
            held = False
        except BlockingIOError:
            held = True
        at = os.fstat(look.number).st_mtime
        with open(look.number, encoding="utf-8", errors="replace", closefd=False) as file:
            return Seen(held, at, tuple(file.read().split()))
    finally:
        look.release()
