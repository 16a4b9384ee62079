"""Packed trees with the credit of whole groups: what a trainer takes a step on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import groupby

from sandgate.contract.errors import InvalidBody
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.credit.group_advantages import CreditedGroup, prepare
from sandgate.trainer.export.packed import PackedTree, unpack
from sandgate.trainer.export.packing import TREE_TOKENS, pack_trees

Prepare = Callable[[Iterable[Trajectory]], CreditedGroup]


def credited_trees(
    trees: Iterable[PackedTree], *, credit: Prepare = prepare, max_tokens: int = TREE_TOKENS
) -> Iterator[PackedTree]:
    """Trees of the rows that teach, their leaves with the advantages that `credit` gives; `prepare`, or a call of it
    with other rules (`functools.partial`).

    A group that was packed into several trees is credited as one: the mean of a part of it is another number. What a
    row that is left out would have trained for others of its session, one of those trains. Groups of which nothing
    teaches give no tree. Holds one group at a time.

    Raises InvalidBody where trees of one task do not come one after another.
    """
    seen: set[tuple[str, str]] = set()
    for task, parts in groupby(trees, key=lambda tree: (tree.job, tree.uid)):
        if task in seen:
            raise InvalidBody(
                f"trees of task {task[1]!r} come in two places: their advantages are of the whole group; sort by it",
                field="uid",
            )
        seen.add(task)
        taught = credit([row for part in parts for row in unpack(part)]).taught
        advantages = (row.advantage for row in taught)
        for tree in pack_trees((row.trajectory for row in taught), max_tokens=max_tokens):
            leaves = tuple(replace(leaf, advantage=next(advantages)) for leaf in tree.leaves)
            yield replace(tree, leaves=leaves)
