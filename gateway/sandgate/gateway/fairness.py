"""Whose work is next: sessions take turns, and none has all workers, however much of it waits. (pure)"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(slots=True)
class FairQueue(Generic[T]):
    """Round robin by name; of one name in order. What was taken counts as running until `done`."""

    most_of_one: int = 1
    """Of one name, running at once."""
    waiting: dict[str, deque[T]] = field(default_factory=dict)
    """Whoever's turn is next comes first; no queue is empty."""
    running: dict[str, int] = field(default_factory=dict)

    def put(self, name: str, item: T) -> None:
        """To the end of its name's queue; a name that is new is last in line."""
        self.waiting.setdefault(name, deque()).append(item)

    def take(self) -> tuple[str, T] | None:
        """The next, if there is one whose name may have more running; its name is last in line then."""
        name = next((one for one in self.waiting if self.running.get(one, 0) < self.most_of_one), None)
        if name is None:
            return None
        mine = self.waiting.pop(name)
        item = mine.popleft()
        if mine:
            self.waiting[name] = mine
        self.running[name] = self.running.get(name, 0) + 1
        return name, item

    def done(self, name: str) -> None:
        """One of this name's has ended."""
        left = self.running[name] - 1
        if left:
            self.running[name] = left
        else:
            del self.running[name]
