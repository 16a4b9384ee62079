"""RewardSoFar: what a session's reward is before its seal says it, without a walk through its tree. (pure)"""

from __future__ import annotations

from dataclasses import dataclass, field

from sandgate.gateway.journal.records import Rewarded


@dataclass(slots=True)
class RewardSoFar:
    """Of one session: its own, else the sum of its turns' newest rewards in its longest conversation, undiscounted, or
    the last of another one. This is asked of many sessions at once."""

    own: float | None = None
    """The newest that was given to the session itself."""
    last: float | None = None
    """The newest of all."""
    turns: dict[str, float] = field(default_factory=dict)
    """Turn -> its newest reward."""
    sums: dict[bytes, float] = field(default_factory=dict)
    """Head of a conversation (`Turn.head_key`) -> what those of its turns sum up to."""
    heads: dict[bytes, int] = field(default_factory=dict)
    """Head -> its main turns."""
    main_head: bytes = b""
    """That with most of them."""

    def given(self, record: Rewarded, head: bytes) -> None:
        """A reward, of a turn of this conversation, if of a turn."""
        self.last = record.reward
        if record.turn is None:
            self.own = record.reward
            return
        before = self.turns.get(record.turn, 0.0)
        self.sums[head] = self.sums.get(head, 0.0) + record.reward - before
        self.turns[record.turn] = record.reward

    def turned(self, head: bytes) -> None:
        """A main turn of this conversation."""
        self.heads[head] = count = self.heads.get(head, 0) + 1
        if count > self.heads.get(self.main_head, 0):
            self.main_head = head

    def close(self) -> None:
        """Nothing comes any more: only what it is needs to be kept."""
        self.turns, self.heads = {}, {}

    @property
    def reward(self) -> float | None:
        """As it is now."""
        return self.sums.get(self.main_head, self.last) if self.own is None else self.own
