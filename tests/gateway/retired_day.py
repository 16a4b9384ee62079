"""A day of load on a journal that is retired: who tells Sandgate what to do, and what was done to whom.

    python -m tests.gateway.retired_day PATH

plays it in a process of its own, so that memory is the journal's alone, and prints what was measured.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import sqlite3
import sys
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandgate.gateway.journal.records import RETIRED, Sealed
from sandgate.gateway.journal.sqlite import SqliteStore
from sandgate.gateway.service.sessions import Sessions
from tests.gateway.journal.samples import turn

STEP_S, ROUNDS, WARM, RESTART_EVERY = 600.0, 144, 40, 48
SAMPLES, GROUPS, TURNS, TOKENS = 3, 4, 2, 3_000
TTL_S = 2.5 * STEP_S
KEPT = 2
"""Groups that the trainer never acknowledges."""


@dataclass
class Group:
    """What the test did to it: nothing here is the gateway's word."""

    number: int
    sessions: set[str] = field(default_factory=set)
    counting: set[str] = field(default_factory=set)
    open: set[str] = field(default_factory=set)
    acked: set[str] = field(default_factory=set)
    whole: bool = False
    changed_at: float = 0.0

    def gone(self, retired_at: float) -> bool:
        """Whether it was over for long enough when something was retired last."""
        over = self.whole and not self.open and self.acked >= self.counting
        return over and self.changed_at < retired_at - STEP_S


class Day:
    def __init__(self, path: Path) -> None:
        self.path, self.now, self.retired_at = path, 1_000_000.0, 0.0
        self.groups: dict[str, Group] = {}
        self.gone: set[str] = set()
        """Sessions that are to be lines."""
        self.held: dict[str, tuple[str, int]] = {}
        """Lease -> its group, and the round in which it is acknowledged."""
        self.given_back: set[int] = set()
        self.lost: set[int] = set()
        """Groups whose first trainer died: its lease expires, and another gets them."""
        self.leased = 0
        self.sessions: Sessions

    async def start(self) -> None:
        store = await SqliteStore.open(self.path, room=1 << 20)
        self.sessions = Sessions(store, lambda: self.now, limit=100_000)
        self.sessions.replay()

    async def sample(self, uid: str, sample: int, attempt: int = 0, end: str = "good") -> None:
        """A session from its first turn to its end, if it has one."""
        group, name = self.groups[uid], f"{uid}-{sample}-{attempt}"
        spec = {
            "job": "j",
            "uid": uid,
            "sample_index": sample,
            "attempt": attempt,
            "group_size": SAMPLES,
            "task": {"prompt": "p" * 500},
        }
        session, created = await self.sessions.open(name, spec)
        group.sessions.add(name)
        group.open.add(name)
        if created:
            for number in range(TURNS):
                parent = f"{name}t{number - 1}" if number else None
                await self.sessions.record(session, turn(f"{name}t{number}", tokens=TOKENS, parent=parent))
        if end != "open":
            await self.end(uid, name, end)

    async def end(self, uid: str, name: str, end: str = "good") -> None:
        group = self.groups[uid]
        failure = None if end in ("good", "aborted") else end
        sealed = Sealed(at=self.now, aborted=end == "aborted", failure_class=failure, detail="why " * 50)
        await self.sessions.record(self.sessions.get(name), sealed)
        group.open.discard(name)
        group.changed_at = self.now
        if end in ("good", "policy"):
            group.counting.add(name)
            group.whole = group.whole or len(group.counting) == SAMPLES

    async def run(self, number: int) -> None:
        """A group of one of eight fates."""
        uid, fate = f"q{number:06}", number % 8
        self.groups[uid] = Group(number)
        ends = {3: "infra", 4: "aborted", 5: "policy", 6: "open", 7: "infra"}
        await asyncio.gather(
            self.sample(uid, 0, end=ends.get(fate, "good")), self.sample(uid, 1), self.sample(uid, 2)
        )
        if fate in (3, 4):
            await self.sample(uid, 0, attempt=1)
        if fate == 7:  # its driver gives up on the first sample
            await self.sessions.settle(self.sessions.book.close("j", uid, self.now))
            self.groups[uid].whole = True

    async def train(self, round_: int) -> None:
        book = self.sessions.book
        while (record := book.lease(f"l{self.leased}", self.now, ttl_s=TTL_S)) is not None:
            self.leased += 1
            await self.sessions.settle(record)
            uid = record.sessions[0].partition("-")[0]
            number = self.groups[uid].number
            assert set(record.sessions) == self.groups[uid].counting - self.groups[uid].acked
            if number < KEPT:
                self.held[record.lease] = (uid, ROUNDS + 1)
            elif number % 11 == 5 and number not in self.given_back:
                self.given_back.add(number)
                self.held[record.lease] = (uid, -1)
            elif number % 17 == 3 and number not in self.lost:
                self.lost.add(number)
            else:
                self.held[record.lease] = (uid, round_ + (4 if number % 13 == 7 else 0))
        for lease, (uid, due) in list(self.held.items()):
            if due < 0:
                await self.sessions.settle(book.nack(lease, self.now))
            elif due <= round_:
                await self.sessions.settle(book.ack(lease, self.now))
                self.groups[uid].acked |= self.groups[uid].counting
                self.groups[uid].changed_at = self.now
            else:
                await self.sessions.settle(book.renew(lease, self.now, ttl_s=TTL_S))
                continue
            del self.held[lease]

    async def round(self, round_: int) -> None:
        self.now += STEP_S
        late = [
            (uid, name)
            for uid, one in self.groups.items()
            if one.number < (round_ - 3) * GROUPS
            for name in one.open
        ]
        await asyncio.gather(*(self.end(uid, name) for uid, name in late))
        first = round_ * GROUPS
        await asyncio.gather(*(self.run(number) for number in range(first, first + GROUPS)))
        await self.train(round_)
        self.retired_at = self.now
        await self.sessions.retire(STEP_S)
        for uid in [uid for uid, one in self.groups.items() if one.gone(self.retired_at)]:
            self.gone |= self.groups.pop(uid).sessions

    def check(self) -> None:
        """By the file itself: every acknowledged group is gone, and no other; nor a part of one."""
        with closing(sqlite3.connect(f"{self.path.as_uri()}?mode=ro", uri=True)) as db:
            rows = dict(
                db.execute("SELECT session, count(*) FROM records WHERE session <> '' GROUP BY session")
            )
        there = {name for one in self.groups.values() for name in one.sessions}
        assert {name.removeprefix(RETIRED) for name in rows if name.startswith(RETIRED)} == self.gone
        assert {name for name in rows if not name.startswith("~")} == there
        running = {name for one in self.groups.values() for name in one.open}
        assert {name: rows[name] for name in there} == {
            name: 1 + TURNS + (name not in running) for name in there
        }
        assert set(self.sessions.live) == set(self.sessions.book.members) == there

    def volume(self) -> int:
        names = (self.path, Path(f"{self.path}-wal"))
        return sum(name.stat().st_blocks * 512 for name in names if name.exists())


def resident() -> int:
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def play(path: Path) -> dict[str, Any]:
    """Every round is checked against the file. Measured now and then, after a while: lines, volume, objects, memory."""
    day = Day(path)
    await day.start()
    measured: list[tuple[int, int, int, int]] = []
    for round_ in range(ROUNDS):
        await day.round(round_)
        day.check()
        if round_ % RESTART_EVERY == RESTART_EVERY - 1:
            await day.sessions.store.aclose()
            await day.start()
            day.check()
        if round_ >= WARM and round_ % 8 == 0:
            gc.collect()
            measured.append((len(day.gone), day.volume(), len(gc.get_objects()), resident()))
    told = {
        "measured": measured,
        "gone": len(day.gone),
        "leases": len(day.sessions.book.leases),
        "ends": len(day.sessions.book.ends),
        "log": sum(1 for _ in day.sessions.store.scan("")),
        "given_back": len(day.given_back),
        "lost": len(day.lost),
    }
    await day.sessions.store.aclose()
    return told


if __name__ == "__main__":
    print(json.dumps(asyncio.run(play(Path(sys.argv[1])))))
