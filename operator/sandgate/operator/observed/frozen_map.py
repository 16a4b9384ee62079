"""FrozenMap: an ordered mapping that never changes; a change gives another one that shares nearly all of it. (pure)

A job may have 100,000 tasks and gets thousands of events: copying a dict for each would cost more than all planning.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from math import isqrt
from typing import Any, Generic, TypeVar, cast

K = TypeVar("K")
V = TypeVar("V")

OVERLAY_MIN = 64
"""Changes that are kept apart at least. More than the root of the size would cost more than a copy now and then."""

_GONE: Any = object()


class FrozenMap(Mapping[K, V], Generic[K, V]):
    """In the order in which keys were set first. It holds a dict, which versions share, and the changes since."""

    __slots__ = ("_base", "_overlay", "_size")

    def __init__(self, entries: Mapping[K, V] | Iterable[tuple[K, V]] = ()) -> None:
        self._base: dict[K, V] = dict(entries)
        self._overlay: dict[K, V] = {}
        self._size = len(self._base)

    def set(self, key: K, value: V) -> FrozenMap[K, V]:
        """With this entry; a key that is there keeps its place."""
        known = self._overlay.get(key, self._base.get(key, _GONE)) is not _GONE
        if not known and key in self._overlay:
            return FrozenMap(self.entries()).set(key, value)  # its old place is not its new one
        return self._changed({**self._overlay, key: value}, self._size + (not known))

    def without(self, key: K) -> FrozenMap[K, V]:
        """Without this key, if it is there."""
        if key not in self:
            return self
        overlay = dict(self._overlay)
        overlay.pop(key, None)
        if key in self._base:
            overlay[key] = _GONE
        return self._changed(overlay, self._size - 1)

    def with_all(self, entries: Mapping[K, V]) -> FrozenMap[K, V]:
        """`set` of each of them, at the price of one."""
        if any(self._overlay.get(key) is _GONE for key in entries):
            return FrozenMap(self.entries()).with_all(entries)
        fresh = sum(1 for key in entries if key not in self)
        return self._changed({**self._overlay, **entries}, self._size + fresh)

    def without_all(self, keys: Iterable[K]) -> FrozenMap[K, V]:
        """`without` each of them, at the price of one."""
        there = {key: _GONE for key in keys if key in self}
        overlay = {key: value for key, value in self._overlay.items() if key not in there}
        overlay |= {key: value for key, value in there.items() if key in self._base}
        return self._changed(overlay, self._size - len(there))

    def _changed(self, overlay: dict[K, V], size: int) -> FrozenMap[K, V]:
        made: FrozenMap[K, V] = FrozenMap()
        made._base, made._overlay, made._size = self._base, overlay, size
        if len(overlay) <= max(OVERLAY_MIN, isqrt(2 * len(self._base))):
            return made
        made._base, made._overlay = self._base.copy(), {}
        for key, value in overlay.items():
            if value is _GONE:
                made._base.pop(key, None)
            else:
                made._base[key] = value
        return made

    def entries(self) -> Iterator[tuple[K, V]]:
        """All of them, without a lookup for each."""
        overlay = self._overlay
        for key, held in self._base.items():
            value = overlay.get(key, held)
            if value is not _GONE:
                yield key, value
        for key, value in overlay.items():
            if key not in self._base:
                yield key, value

    def __getitem__(self, key: K) -> V:
        value: V = self._overlay.get(key, self._base.get(key, _GONE))
        if value is _GONE:
            raise KeyError(key)
        return value

    def __contains__(self, key: object) -> bool:
        known = cast("K", key)
        return self._overlay.get(known, self._base.get(known, _GONE)) is not _GONE

    def __iter__(self) -> Iterator[K]:
        return (key for key, _ in self.entries())

    def __len__(self) -> int:
        return self._size

    def __repr__(self) -> str:
        return f"FrozenMap({dict(self.entries())})"
