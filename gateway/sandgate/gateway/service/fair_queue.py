"""Whose work is next: sessions take turns, none has all workers, and who wastes a core waits. (pure)"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

WASTE_S = 0.25
"""Seconds of a core that a session may use at once without a prompt that justifies them."""

REFILL = 0.005
"""Of one core, for each session, in the long run: what wastes 0.2 s at a time does so every 40 s, and fewer than one in
a hundred turns of others meet it."""

DEBT_S = 0.5
"""More than this is forgiven: a wait of at most 100 s, less than clients wait for an answer."""

TOKEN_S = 5e-6
"""What a token of a prompt justifies. Decoding, keying and rendering take about a microsecond of a core for each."""

TOO_LONG = 4
"""A prompt that is refused for its length justifies this much less, and no more than a window of tokens: by trying,
agents find out how much of their history fits."""

REFUSED_S = 0.001
"""What a refused request counts in any case: reading it was for nothing."""

NAMES_MAX = 10_000
"""Sessions remembered; those that owe nothing are forgotten first."""


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


@dataclass(slots=True)
class Waste:
    """Seconds of a core that each session used and that nothing it sent to the engine justifies: huge bodies that are
    refused, schemas of a hundred thousand elements. In a process that others share they are stolen time, so a session
    may use few of them. Work that ends in a prompt is paid for by its tokens: whoever has long prompts never waits.

    `now`: seconds of any clock that does not go back.
    """

    _left: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Name -> (seconds it may still use, when that was so); absent = all of it."""

    def spend(self, name: str, seconds: float, now: float) -> None:
        """Work that was done for it."""
        self._set(name, max(self._now(name, now) - seconds, -DEBT_S), now)

    def earn(self, name: str, tokens: int, now: float) -> None:
        """A prompt of so many tokens goes to the engine."""
        if name in self._left:
            self._set(name, min(self._now(name, now) + tokens * TOKEN_S, WASTE_S), now)

    def wait_s(self, name: str, now: float) -> float:
        """How long its next work has to wait; 0 = not at all."""
        return max(0.0, -self._now(name, now) / REFILL)

    def _now(self, name: str, now: float) -> float:
        left, at = self._left.get(name, (WASTE_S, now))
        return min(WASTE_S, left + (now - at) * REFILL)

    def _set(self, name: str, left: float, now: float) -> None:
        self._left.pop(name, None)
        if left < WASTE_S:
            self._left[name] = (left, now)
        if len(self._left) > NAMES_MAX:
            # Half at once: a look at all of them for each request would be waste, too.
            owing = sorted(self._left, key=lambda one: self._now(one, now))[: NAMES_MAX // 2]
            self._left = {one: self._left[one] for one in owing}
