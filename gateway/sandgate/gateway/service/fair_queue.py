"""Fair scheduling between sessions: round robin, no session has all workers, one that wastes a core waits. (pure)"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Generic, TypeVar

T = TypeVar("T")

WASTE_S = 0.25
"""Seconds of a core that a session may use at once without a prompt that justifies them."""

REFILL = 0.005
"""Share of one core that each session may waste in the long run: work that wastes 0.2 s at a time does so every 40 s,
and fewer than one in a hundred turns of others meet it."""

DEBT_S = 0.5
"""Seconds of a core that a session can owe at most. It then waits 100 s, less than clients wait for an answer."""

TOKEN_S = 5e-6
"""Seconds of a core that a token of a prompt justifies. Decoding, keying and rendering take about a microsecond for
each."""

TOO_LONG = 4
"""A prompt that is refused for its length justifies so many times less, and no more than a window of tokens does: by
trying, agents find out how much of their history fits."""

REFUSED_S = 0.001
"""Seconds of a core that a refused request counts in any case: reading it was wasted."""

NAMES_MAX = 10_000
"""Sessions remembered; those that owe nothing are forgotten first."""


@dataclass(slots=True)
class FairQueue(Generic[T]):
    """Round robin between names, in order within a name. An item that was taken counts as running until `done`."""

    most_of_one: int = 1
    """Limit of items of one name that run at once."""
    waiting: dict[str, deque[T]] = field(default_factory=dict)
    """Name -> its queue, which is never empty; the name whose turn is next comes first."""
    running: dict[str, int] = field(default_factory=dict)

    def put(self, name: str, item: T) -> None:
        """Puts the item at the end of its name's queue; a new name is last in line."""
        self.waiting.setdefault(name, deque()).append(item)

    def take(self) -> tuple[str, T] | None:
        """Takes the next item whose name may have more running, if there is one; its name is last in line then."""
        eligible = (name for name in self.waiting if self.running.get(name, 0) < self.most_of_one)
        name = next(eligible, None)
        if name is None:
            return None
        mine = self.waiting.pop(name)
        item = mine.popleft()
        if mine:
            self.waiting[name] = mine
        self.running[name] = self.running.get(name, 0) + 1
        return name, item

    def done(self, name: str) -> None:
        """One running item of this name has ended."""
        left = self.running[name] - 1
        if left:
            self.running[name] = left
        else:
            del self.running[name]


@dataclass(slots=True)
class Waste:
    """Seconds of a core that each session used without sending the engine a prompt that justifies them: for huge bodies
    that are refused, for schemas of a hundred thousand elements. Sessions share the process, so each may waste few of
    them. The tokens of a prompt pay for the work that it took: a session with long prompts never waits.

    `now`: seconds of any clock that does not go back.
    """

    _left: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Name -> (seconds it may still waste, when that was so); absent = WASTE_S."""

    def spend(self, name: str, seconds: float, now: float) -> None:
        """Charges the session for work that was done for it."""
        self._set(name, max(self._now(name, now) - seconds, -DEBT_S), now)

    def earn(self, name: str, tokens: int, now: float) -> None:
        """Credits the session with a prompt of so many tokens that goes to the engine."""
        if name in self._left:
            self._set(name, min(self._now(name, now) + tokens * TOKEN_S, WASTE_S), now)

    def wait_s(self, name: str, now: float) -> float:
        """Seconds until the session's next work may start; 0 = at once."""
        return max(0.0, -self._now(name, now) / REFILL)

    def _now(self, name: str, now: float) -> float:
        left, since = self._left.get(name, (WASTE_S, now))
        return min(WASTE_S, left + (now - since) * REFILL)

    def _set(self, name: str, left: float, now: float) -> None:
        self._left.pop(name, None)
        if left < WASTE_S:
            self._left[name] = (left, now)
        if len(self._left) > NAMES_MAX:
            # Half at once: sorting all of them for each request would be waste, too.
            owing = sorted(self._left, key=lambda session: self._now(session, now))[: NAMES_MAX // 2]
            self._left = {session: self._left[session] for session in owing}
