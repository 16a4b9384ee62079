"""Space: what a journal's volume has left, and how much of it one session may have once that is little. (pure)

The share follows what is free, as a switch shares its buffer among its ports: each session that takes all it may
leaves less to the next one that would, and the most to those that take little.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import nan
from typing import NamedTuple

TIGHT = 8
"""The volume is tight once less than one part in so many of it is free. Before that nobody is refused."""
SHARE = 4
"""Then a session may have one part in so many of what is free,"""
LEAST = 256
"""but always one part in so many of the volume: 4 MiB of 1Gi, some 350,000 sampled tokens. Nobody who has less is ever
blamed."""
LARGE = TIGHT * SHARE
"""A session with more than one part in so many of the volume is large: what it has beyond that may be why the volume is
tight. It is the share at the moment when it becomes so."""


class Space(NamedTuple):
    """Of the volume, in bytes; NaN where nobody knows, and then no session is large and nothing ever tight."""

    free: float = nan
    """For what is written next: without the room that is set aside and what waits for the disk."""
    size: float = nan

    @property
    def tight(self) -> bool:
        return self.free * TIGHT < self.size

    @property
    def share(self) -> float:
        """What a session may have where the volume is tight, and not because trainers are slow."""
        return max(self.free / SHARE, self.size / LEAST)

    @property
    def large(self) -> float:
        return self.size / LARGE

    def refuses(self, own: int, large: Iterable[int]) -> bool:
        """Whether a session with `own` bytes may write no more. `large`: the bytes of each session that is.

        Not where the volume would be tight without what large sessions have too much: then what ended is not
        acknowledged, and who is still at work cannot help it.
        """
        if not self.tight or own <= self.share:
            return False
        too_much = sum(max(0.0, one - self.large) for one in large)
        return (self.free + too_much) * TIGHT >= self.size


UNKNOWN = Space()
