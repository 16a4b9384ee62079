"""FinishedTasks: remembers tasks whose AgentSessions were deleted, so that no lost volume makes them run again.

A gateway's journal remembers what was committed, and so does an AgentSession; `Settings.history` bounds how many of the
latter there are. Before the record of a done task goes, twelve hex digits of it go into a ConfigMap.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, islice

from sandgate.contract.errors import Conflict, NotFound
from sandgate.contract.names import done_name, group_hash
from sandgate.operator.cluster.api import Json
from sandgate.operator.cluster.job_state import JobState
from sandgate.operator.cluster.object_store import owner_uid
from sandgate.operator.manifests import done_map

log = logging.getLogger(__name__)

PART = 4_096
"""Tasks in one ConfigMap: 80 kB, as each write stores all of it anew; a million tasks are 245 of them."""

Entries = dict[str, int]
"""names.group_hash -> samples of it that a trainer has for good."""


@dataclass(slots=True)
class FinishedTasks:
    """Of one job."""

    at: JobState
    done: Entries = field(default_factory=dict)
    _parts: int = 0
    """ConfigMaps that are there."""
    _room: int = 0
    """Tasks that the last of them still takes."""
    _last: dict[str, str] = field(default_factory=dict)
    """What the last of them holds, as it was read or written."""

    async def load(self) -> None:
        """Read what operators before this one wrote."""
        at = self.at
        self.done.clear()
        self._parts = self._room = 0
        self._last = {}
        for part in count():
            try:
                body = await at.kube.get("ConfigMap", at.namespace, done_name(at.name, part))
            except NotFound:
                return
            if owner_uid(body) != at.job.metadata.uid:  # of an earlier job of that name; it is being deleted
                return
            self._last = dict(body.get("data") or {})
            entries = dict(parse(self._last))
            self.done |= entries
            self._parts, self._room = part + 1, PART - len(entries)

    async def keep(self, names: Iterable[str]) -> None:
        """The AgentSessions of these sessions are about to go: remember the tasks that are done with them. Raises what
        the API server says; then they must stay."""
        fresh = dict(self._done_with(names))
        while fresh:
            if self._room <= 0:
                await self._begin()
            some = dict(islice(fresh.items(), self._room))
            await self._write(some)
            self.done |= some
            self._room -= len(some)
            fresh = {name: samples for name, samples in fresh.items() if name not in some}

    def _done_with(self, names: Iterable[str]) -> Iterator[tuple[str, int]]:
        at = self.at
        busy = {
            seen.ref.uid for seen in at.observed.sessions.values()
        }  # not all of it is with the trainer yet
        for name in names:
            kept = at.sessions.held.get(name)
            if kept is None or kept.ref.uid in busy or kept.ref.uid not in at.observed.settled:
                continue
            entry = group_hash(at.name, kept.ref.uid)
            if entry not in self.done:
                yield entry, at.observed.settled[kept.ref.uid]

    async def _begin(self) -> None:
        await self._make(self._parts, {})
        self._parts, self._room, self._last = self._parts + 1, PART, {}

    async def _write(self, some: Entries) -> None:
        """Under a key of its own, so that a late call of an operator that died takes nothing away. If somebody deleted
        the ConfigMap, another one takes its place, with what was in it: those tasks must not run again, either."""
        part = self._parts - 1
        data = {next(iter(some)): " ".join(f"{name}={samples}" for name, samples in some.items())}
        try:
            await self._add(part, data)
        except NotFound:
            log.warning(
                "ConfigMap %s/%s is gone: made anew", self.at.namespace, done_name(self.at.name, part)
            )
            await self._make(part, self._last | data)
        self._last |= data

    async def _make(self, part: int, data: dict[str, str]) -> None:
        """Raises Conflict where its name is another's."""
        at = self.at
        try:
            await at.kube.create(done_map(at.job, part) | {"data": data})
        except Conflict:
            body = await at.kube.get("ConfigMap", at.namespace, done_name(at.name, part))
            if owner_uid(body) != at.job.metadata.uid:
                raise
            if data:
                await self._add(part, data)

    async def _add(self, part: int, data: dict[str, str]) -> None:
        body: Json = {"data": data}
        await self.at.kube.patch("ConfigMap", self.at.namespace, done_name(self.at.name, part), body)


def parse(data: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    """The entries of one ConfigMap; what somebody has spoilt is left out: that task may be rolled out again."""
    for text in data.values():
        for one in text.split():
            name, _, samples = one.partition("=")
            if samples.isascii() and samples.isdigit():
                yield name, int(samples)
            else:
                log.warning("%r is no entry of a done task", one)
