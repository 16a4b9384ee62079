"""The disk and the journal on it: slow commits, failures, and what a kill leaves of what was under way."""

from __future__ import annotations

import asyncio
from random import Random
from typing import TYPE_CHECKING

from sandgate.contract.errors import JournalUnavailable
from sandgate.gateway.journal.commit_batch import CommitRequest
from sandgate.gateway.journal.memory import MemoryDisk, MemoryStore
from sandgate.gateway.journal.records import CUT, Intent, Record, TurnCommitted, decode
from sandgate.gateway.journal.rows import sound
from tests.simulation.history import Group
from tests.simulation.loop import LIFE

if TYPE_CHECKING:
    from tests.simulation.world import World

COMMIT_S = (0.0, 0.0, 0.001, 0.004, 0.03, 0.5)
"""What an fsync takes; the last on a disk that is busy."""


class SimDisk(MemoryDisk):
    """Says what became durable, and when."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world
        self._seen = 0
        """The newest row that the world was told of."""

    def carry_out(self, job: CommitRequest) -> None:
        super().carry_out(job)
        self._world.history.retired.update(job.forget)
        self.catch_up()

    def catch_up(self) -> None:
        """Tell the world of all rows that it does not know yet."""
        fresh = [row for row in self.rows if row[0] > self._seen and sound(row)]
        self._seen = self.seq
        for row in fresh:
            self._world.became_durable(row[1], decode(row[2]))

    def leave_behind(self, job: CommitRequest, *, torn: bool) -> None:
        """Written by a process that was killed while it did so."""
        super().carry_out(job)
        self._world.history.retired.update(job.forget)
        if torn and not job.lines:  # a real journal does both or neither
            self.tear()

    def sound_records(self) -> list[tuple[str, Record]]:
        """What a process that opens it now will find."""
        return [(row[1], decode(row[2])) for row in self.rows if sound(row)]


class SimStore(MemoryStore):
    """The journal of one life."""

    def __init__(self, world: World, disk: SimDisk, rng: Random) -> None:
        super().__init__(disk, gate=self._fsync, now=world.loop.time)
        self._world, self._rng = world, rng
        self._life = LIFE.get()

    async def _fsync(self) -> None:
        self._world.moment("commit")
        delay = self._rng.choice(COMMIT_S)
        await asyncio.sleep(delay)

    async def append(self, session: str, *records: Record, sync: bool = True) -> None:
        world = self._world
        if isinstance(records[0], Intent):
            turns = tuple(record.turn for record in records if isinstance(record, Intent))
            group = Group(session, records[0].digest, turns, self._life, world.loop.time())
            world.announced(group)
        try:
            await super().append(session, *records, sync=sync)
        except JournalUnavailable as error:
            if isinstance(records[0], TurnCommitted) and records[0].finish != CUT:
                world.group_over(records[0].turn, f"refused: {error}")
            raise

    async def write_behind(self) -> None:
        """What nobody waits for is written within a second or so, as by SqliteStore's writer."""
        while True:
            await asyncio.sleep(self._rng.choice((0.01, 0.2, 1.0)))
            self.flush()

    def flush(self) -> None:
        """Write what waits, unless the disk is known to be bad."""
        if self._open and self._waiting and self._health.good:
            self._commit()

    def die(self) -> None:
        """The process is killed: of what was under way nothing, a part or all is on the disk; the last row may be torn.
        Nobody was told of any of it."""
        assert isinstance(self.disk, SimDisk)
        waiting, self._waiting = self._waiting, []
        if waiting and not self.disk.failure and self._rng.random() < 0.5:
            part = waiting[: self._rng.randint(1, len(waiting))]
            appends = bool(part[-1].bodies) and not part[-1].forget  # what it deletes goes in one with it
            torn = appends and self._rng.random() < 0.5
            for job in part:
                self.disk.leave_behind(job, torn=torn and job is part[-1])
            self._world.say(
                f"disk kept {len(part)} of {len(waiting)} jobs under way{', torn' if torn else ''}"
            )
        self._waiting = waiting[:0]
        self._release()
