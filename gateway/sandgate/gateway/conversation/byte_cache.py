"""ByteCache: a cache bounded by bytes, for entries whose keys clients choose. (pure)"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ByteCache(Generic[K, V]):
    """A cache whose unused entries go first. It has two generations, as `tokens.segments.SegmentCache`, which says why
    threads need no lock."""

    def __init__(self, bytes_max: int, entry_bytes_max: int) -> None:
        """`entry_bytes_max`: a larger entry is not kept, because one client's largest would push out all others."""
        assert 2 * entry_bytes_max <= bytes_max, "an entry fits a generation"
        self.bytes_max, self.entry_bytes_max = bytes_max, entry_bytes_max
        self._young: dict[K, tuple[V, int]] = {}
        self._old: dict[K, tuple[V, int]] = {}
        self._young_bytes = self._old_bytes = 0

    @property
    def bytes(self) -> int:
        """Bytes of all entries, as given to `put`."""
        return self._young_bytes + self._old_bytes

    def get(self, key: K) -> V | None:
        """The value under this key, if it is still there."""
        entry = self._young.get(key)
        if entry is None:
            entry = self._old.get(key)
            if entry is None:
                return None
            self.put(key, *entry)
        return entry[0]

    def put(self, key: K, value: V, cost: int) -> None:
        """Adds an entry. `cost`: its bytes, key included; in memory it may take a fixed multiple of that."""
        if cost > self.entry_bytes_max or key in self._young:
            return
        if self._young_bytes + cost > self.bytes_max // 2:
            self._old, self._old_bytes = self._young, self._young_bytes
            self._young, self._young_bytes = {}, 0
        self._young[key] = value, cost
        self._young_bytes += cost
