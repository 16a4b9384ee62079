"""RowTree: the rows of a session as a tree that has each turn once. (pure)

Rows share their heads: 500 branches of a conversation of 500 turns are 250,000 turns, and the tree of them has 1,000.
What is asked of all rows at once goes through the tree, not through each row.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar


class Linked(Protocol):
    """The part of a turn that is needed here."""

    @property
    def id(self) -> str: ...
    @property
    def parent(self) -> str | None: ...


AnyLinked = TypeVar("AnyLinked", bound=Linked)


@dataclass(slots=True)
class RowTree(Generic[AnyLinked]):
    """Rows by number, in order of each leaf's commit."""

    by_id: Mapping[str, AnyLinked]
    """All turns of the session; they are read as rows need them."""
    ends: Sequence[str]
    """The leaf of each row."""
    order: list[AnyLinked] = field(init=False)
    """The turns of the rows, each behind its parent: row by row, from root to leaf, what no earlier row has."""

    def __post_init__(self) -> None:
        self.order, seen = [], set[str]()
        for end in self.ends:
            fresh = list(self.up(end, until=seen))
            seen.update(turn.id for turn in fresh)
            self.order += reversed(fresh)

    def up(self, turn_id: str | None, until: Iterable[str] = ()) -> Iterable[AnyLinked]:
        """The turns from this one up to its root, as far as they are not in `until`."""
        while turn_id is not None and turn_id not in until:
            yield (turn := self.by_id[turn_id])
            turn_id = turn.parent

    def path(self, end: str) -> list[AnyLinked]:
        """The turns from the root to this one."""
        return [*self.up(end)][::-1]
