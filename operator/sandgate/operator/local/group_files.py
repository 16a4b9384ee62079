"""GroupFiles: writes the trajectories of each settled group of a local run to a file.

The file is the acknowledgement: a group is done when its file is there, whole and durable, and until then it is written
again. No lease is taken, so the gateways' groups are all there for a trainer that attaches to the run (ADR 0008).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from sandgate.contract.failure_reasons import FailureClass
from sandgate.contract.session import SessionOutcome, SessionState, SessionSummary
from sandgate.contract.trajectory import Trajectory
from sandgate.operator.driver.state import DriverState
from sandgate.operator.local.folder import Folder
from sandgate.operator.local.gateways import LocalGateway
from sandgate.operator.local.progress import GroupCollected, Tell
from sandgate.operator.observed.events import GroupCloseConfirmed, GroupCommitted
from sandgate.operator.plan.actions import Ref

WriteGroups: TypeAlias = Callable[[Path, Iterable[Trajectory]], Any]
"""Writes a Parquet file, whole and durable or not at all; blocks."""
Merge: TypeAlias = Callable[[Sequence[Path], Path], Any]
"""All rows of many files in one; blocks."""
SamplesIn: TypeAlias = Callable[[Path], Collection[tuple[str, int]]]
"""Samples (uid, index) that have a row in a file; blocks."""


class Attempt(NamedTuple):
    """One that ended well enough to count for its group."""

    number: int
    session: str
    gateway: str


@dataclass(slots=True)
class GroupFiles:
    """Brings trajectories from the gateways into `groups/`."""

    job: str
    folder: Folder
    gateways: Mapping[str, LocalGateway]
    state: DriverState
    write_groups: WriteGroups
    tell: Tell
    collected: set[str] = field(default_factory=set)
    """Groups that have a file."""
    reopened: Collection[str] = ()
    """Groups whose files, if there are some, lack rows of attempts that were made since: each is written anew, from
    the journals, before the run ends."""
    good: dict[str, dict[int, Attempt]] = field(default_factory=dict)
    """Groups without a file -> by sample, the newest attempt that counts."""
    due: dict[str, None] = field(default_factory=dict)
    """Settled groups that are to be written."""
    occasion: asyncio.Event = field(default_factory=asyncio.Event)
    """One of them came."""

    def ended(self, gateway: str, said: SessionSummary) -> None:
        """How a session of this gateway stands. Before the store is told, which may settle its group by it."""
        mine = said.session_id == Ref(said.job, said.uid, said.sample_index, said.attempt).name
        if said.state is not SessionState.FINALIZED or said.job != self.job or not mine:
            return
        if said.failure_class == FailureClass.INFRA.value or said.uid in self.collected:
            return
        samples = self.good.setdefault(said.uid, {})
        attempt = Attempt(said.attempt, said.session_id, gateway)
        samples[said.sample_index] = max(attempt, samples.get(said.sample_index, attempt))

    def settled(self, uid: str) -> None:
        """Nothing more comes of this group."""
        if uid not in self.collected and self.state.observed.settled.get(uid):
            self.due[uid] = None
            self.occasion.set()

    def resume(self) -> None:
        """Files of earlier runs. A group is written when it is whole or closed: nothing more comes of it."""
        for uid in (*self.state.observed.settled, *self.state.observed.groups):
            if uid not in self.reopened and self.folder.group(self.job, uid).exists():
                self.collected.add(uid)
                self.good.pop(uid, None)
                self.due.pop(uid, None)
                self.state.observe(GroupCloseConfirmed(uid))
                self.state.observe(GroupCommitted(uid))

    async def run(self) -> None:
        """For ever."""
        while True:
            await self.occasion.wait()
            self.occasion.clear()
            await self.sweep()

    async def sweep(self) -> None:
        """Everything that is due now; what is cut short stays due."""
        while self.due:
            await self._keep(next(iter(self.due)))

    async def _keep(self, uid: str) -> None:
        samples = self.good.get(uid, {})
        rows: list[Trajectory] = []
        for _, (_, session, gateway) in sorted(samples.items()):
            # The first outcome stands: of a session that ended, this only reads.
            rows += await self.gateways[gateway].client.finalize_rows(session, SessionOutcome())
        path = self.folder.group(
            self.job, uid
        )  # a group that never took a turn has no rows, and still a file
        await asyncio.to_thread(self.write_groups, path, rows)
        self.due.pop(uid, None)
        self.good.pop(uid, None)
        self.collected.add(uid)
        self.tell(GroupCollected(uid=uid, trajectories=len(rows), path=path))
        self.state.observe(GroupCommitted(uid, tuple(one.session for one in samples.values())))

    def missing(self) -> list[str]:
        """Groups that have something to write and no file yet."""
        return [
            uid for uid, count in self.state.observed.settled.items() if count and uid not in self.collected
        ]

    def files(self, uids: Iterable[str]) -> list[Path]:
        """Group files that exist, in the order of `uids`."""
        return [path for uid in uids if (path := self.folder.group(self.job, uid)).exists()]
