"""The trainer's part in a local run: lease whole groups, write each to a file, acknowledge."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from sandgate.contract.errors import Conflict, FailureClass, NotFound
from sandgate.contract.session import SessionOutcome, SessionState, SessionSummary
from sandgate.contract.trajectory import Trajectory
from sandgate.gateway.client import Lease
from sandgate.operator.drivers.folder import Folder
from sandgate.operator.drivers.gateways import LocalGateway
from sandgate.operator.drivers.progress import GroupCollected, Tell
from sandgate.operator.observe import Observed

log = logging.getLogger(__name__)

WriteGroups: TypeAlias = Callable[[Path, Iterable[Trajectory]], Any]
"""Writes a Parquet file, whole and durable or not at all; blocks."""
Merge: TypeAlias = Callable[[Sequence[Path], Path], Any]
"""All rows of many files in one; blocks."""
SamplesIn: TypeAlias = Callable[[Path], Collection[tuple[str, int]]]
"""Samples (uid, index) that have a row in a file; blocks."""

TTL_S = 60.0
"""Of a lease; writing a group takes milliseconds."""
GROUPS_MAX = 32
TOKENS_MAX = 500_000
"""Of one lease: its JSON is about 20 bytes a token."""
POLL_S = 2.0
"""Between looks without an occasion."""


@dataclass(slots=True)
class Collector:
    """Brings trajectories from the gateways into `groups/`."""

    job: str
    folder: Folder
    gateways: Mapping[str, LocalGateway]
    observed: Observed
    write_groups: WriteGroups
    tell: Tell
    occasion: asyncio.Event = field(default_factory=asyncio.Event)
    """A group settled."""
    collected: set[str] = field(default_factory=set)
    reopened: Collection[str] = ()
    """Groups whose files, if there are some, lack rows of attempts that were made since: each is written anew, from
    the journals, before the run ends."""

    def resume(self) -> None:
        """Files of earlier runs. A group is written when it is whole or closed: nothing more comes of it."""
        for uid in (*self.observed.settled, *self.observed.groups):
            if uid not in self.reopened and self.folder.group(self.job, uid).exists():
                self.collected.add(uid)
                self.observed.closed(uid)
                self.observed.commit(uid, ())

    async def run(self) -> None:
        """For ever."""
        while True:
            self.occasion.clear()
            await self.sweep()
            try:
                async with asyncio.timeout(POLL_S):
                    await self.occasion.wait()
            except TimeoutError:
                pass

    async def sweep(self) -> None:
        """Everything that is ready now."""
        for gateway in self.gateways.values():
            while True:
                lease = await gateway.client.lease(
                    max_groups=GROUPS_MAX, ttl_s=TTL_S, job=self.job, max_tokens=TOKENS_MAX
                )
                if lease is None:
                    break
                await self._keep(gateway, lease)

    async def _keep(self, gateway: LocalGateway, lease: Lease) -> None:
        rows: dict[str, list[Trajectory]] = {}
        names: dict[str, list[str]] = {}
        for name in lease.sessions:
            if (seen := self.observed.sessions.get(name)) is not None:
                rows.setdefault(
                    seen.ref.uid, []
                )  # a group that never took a turn has no rows, and still a file
                names.setdefault(seen.ref.uid, []).append(name)
        for row in lease.trajectories:
            rows.setdefault(row.uid, []).append(row)
        for uid, group in rows.items():
            if uid not in self.reopened:  # else what was acknowledged before is not on this lease
                await self._write(uid, group)
        try:
            await gateway.client.ack(lease.lease_id)
        except (Conflict, NotFound) as error:
            # We were slower than the lease. The files hold what they should; it will be offered, and written, again.
            log.warning("lease %s: %s", lease.lease_id, error)
            return
        for uid in rows.keys() - self.reopened:
            self.observed.commit(uid, names.get(uid, ()))

    async def _write(self, uid: str, rows: list[Trajectory]) -> None:
        path = self.folder.group(self.job, uid)
        await asyncio.to_thread(self.write_groups, path, rows)
        if uid not in self.collected:
            self.collected.add(uid)
            self.tell(GroupCollected(uid=uid, trajectories=len(rows), path=path))

    def missing(self) -> list[str]:
        """Groups that have something to write and no file yet."""
        return [uid for uid, count in self.observed.settled.items() if count and uid not in self.collected]

    async def finish(self) -> None:
        """Until nothing is missing. What an earlier run had on a lease when it died is not offered before that lease
        ends; then it is asked for by name."""
        await self.sweep()
        for uid in self.collected - self.observed.committed:  # `run` ended while one of them was acknowledged
            self.observed.commit(uid, ())
        wanted = set(self.missing())
        if not wanted:
            return
        sessions: dict[str, dict[int, tuple[LocalGateway, SessionSummary]]] = {uid: {} for uid in wanted}
        for gateway in self.gateways.values():
            async for said in gateway.client.sessions(state=SessionState.FINALIZED.value, job=self.job):
                if said.uid in wanted and said.failure_class != FailureClass.INFRA.value:
                    best = sessions[said.uid].get(said.sample_index)
                    if best is None or best[1].attempt < said.attempt:
                        sessions[said.uid][said.sample_index] = (gateway, said)
        for uid, samples in sessions.items():
            rows: list[Trajectory] = []
            for _, (gateway, said) in sorted(samples.items()):
                rows += await gateway.client.finalize_rows(said.session_id, SessionOutcome())
            await self._write(uid, rows)
            self.observed.commit(uid, [said.session_id for _, said in samples.values()])

    def files(self, uids: Iterable[str]) -> list[Path]:
        """Group files that exist, in the order of `uids`."""
        return [path for uid in uids if (path := self.folder.group(self.job, uid)).exists()]
