"""A cache that is bounded by bytes: what clients choose the keys of must not grow with what they choose. (pure)"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class ByteCache(Generic[K, V]):
    """What was not used for a while goes first: two generations, as in `tokens.segments.SegmentCache`, which says why
    threads need no lock."""

    def __init__(self, bytes_max: int, entry_bytes_max: int) -> None:
        """`entry_bytes_max`: what costs more is not kept: one client's largest would push out all others'."""
        assert 2 * entry_bytes_max <= bytes_max, "an entry fits a generation"
        self.bytes_max, self.entry_bytes_max = bytes_max, entry_bytes_max
        self._young: dict[K, tuple[V, int]] = {}
        self._old: dict[K, tuple[V, int]] = {}
        self._young_bytes = self._old_bytes = 0

    @property
    def bytes(self) -> int:
        """Of all that is kept, as `put` was told."""
        return self._young_bytes + self._old_bytes

    def get(self, key: K) -> V | None:
        """What was put under it, if it is still there."""
        found = self._young.get(key)
        if found is None:
            found = self._old.get(key)
            if found is None:
                return None
            self.put(key, *found)
        return found[0]

    def put(self, key: K, value: V, cost: int) -> None:
        """`cost`: its bytes, key included; what it really takes may be a fixed multiple of that."""
        if cost > self.entry_bytes_max or key in self._young:
            return
        if self._young_bytes + cost > self.bytes_max // 2:
            self._old, self._old_bytes = self._young, self._young_bytes
            self._young, self._young_bytes = {}, 0
        self._young[key] = value, cost
        self._young_bytes += cost
