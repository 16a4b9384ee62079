"""OfferQueue: groups with something to offer, oldest first, and which of them are free to be leased. (pure)

What a lease costs must not grow with what is on loan: the groups that are free stand in a heap by age, for each job, so
that nobody looks through those that are leased. An entry of the heap that is no longer true is dropped when it is met.
"""

from __future__ import annotations

import heapq
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field

from sandgate.gateway.trajectories.groups import GroupKey

SPARE = 64
"""Entries out of date that are not worth tidying."""


@dataclass(slots=True, eq=False)
class OfferQueue:
    """A group keeps its place from the moment it has something to offer until it has not; being leased changes
    nothing about that. Two queues are equal if the same groups have something to offer: what is free depends on the
    time, too."""

    places: dict[GroupKey, int] = field(default_factory=dict)
    """Every group with something to offer, leased ones included, in order, and the number of its place."""
    free: set[GroupKey] = field(default_factory=set)
    """Those of them that may be leased now."""
    _heaps: dict[str, list[tuple[int, GroupKey]]] = field(default_factory=dict)
    """Of each job: (place, group). Each free group has an entry; other entries are out of date."""
    _listed: dict[GroupKey, int] = field(default_factory=dict)
    """The place in each group's entry; it has at most one that may become true again."""
    _number: int = 0
    _gone: int = 0
    """Groups that ceased to offer anything since the last tidying."""
    _walks: int = 0
    """Calls of `oldest` under way: they hold entries that are not in the heaps."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OfferQueue) and self.places.keys() == other.places.keys()

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[GroupKey]:
        return iter(self.places)

    def settle(self, key: GroupKey, *, offers: bool, taken: bool) -> None:
        """What is so of this group now: it has something to offer, and it must not be leased."""
        if not offers:
            self.places.pop(key, None)
            self.free.discard(key)
            self._tidy(key.job)
            return
        if key not in self.places:
            self._number += 1
            self.places[key] = self._number
        if taken:
            self.free.discard(key)
            return
        self.free.add(key)
        if self._listed.get(key) != self.places[key]:
            self._listed[key] = self.places[key]
            heapq.heappush(self._heaps.setdefault(key.job, []), (self.places[key], key))

    def oldest(self, job: str | None) -> Generator[GroupKey, None, None]:
        """Free groups, oldest first; of this job, None: of any. Whoever stops in the middle changes nothing."""
        seen: list[tuple[int, GroupKey]] = []
        self._walks += 1
        try:
            while (entry := self._first(job)) is not None:
                seen.append(entry)
                yield entry[1]
        finally:
            self._walks -= 1
            for entry in seen:
                heapq.heappush(self._heaps.setdefault(entry[1].job, []), entry)

    def _tidy(self, job: str) -> None:
        """Entries that are out of date go when they are most of a heap: nobody may ever lease from this queue."""
        heap = self._heaps.get(job)
        self._gone += 1  # a tidying costs as much as the heap is long: only after as many went
        if heap is None or self._walks or self._gone <= len(self.places) + SPARE:
            return
        if len(heap) <= 2 * len(self.free) + SPARE:
            return
        self._gone = 0
        true = [(place, key) for place, key in heap if key in self.free and self.places[key] == place]
        for _, key in heap:
            self._listed.pop(key, None)
        self._listed |= {key: place for place, key in true}
        heapq.heapify(true)
        self._heaps[job] = true

    def _first(self, job: str | None) -> tuple[int, GroupKey] | None:
        """Taken out of its heap."""
        names = list(self._heaps) if job is None else [job]
        heads = [head for name in names if (head := self._head(name)) is not None]
        return heapq.heappop(self._heaps[min(heads)[1].job]) if heads else None

    def _head(self, job: str) -> tuple[int, GroupKey] | None:
        """The oldest entry of a job that is true. Those before it are dropped."""
        heap = self._heaps.get(job)
        while heap:
            place, key = heap[0]
            if key in self.free and self.places[key] == place:
                return heap[0]
            heapq.heappop(heap)
            if self._listed.get(key) == place:
                del self._listed[key]
        self._heaps.pop(job, None)
        return None
