"""Packs trajectories into trees, group by group, as they are read."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from sandgate.contract.errors import InvalidBody
from sandgate.contract.trajectory import ARRAY_FIELDS, Trajectory
from sandgate.trainer.export.forest import Forest
from sandgate.trainer.export.packed import Int32s, Leaf, PackedTree, positions

TREE_TOKENS = 1 << 17
"""Stored tokens of one packed row, unless said otherwise: 2.2 MB of arrays."""
TREE_ROWS = 4096
"""Trajectories of one packed row, however short they are."""


def pack_trees(trajectories: Iterable[Trajectory], *, max_tokens: int = TREE_TOKENS) -> Iterator[PackedTree]:
    """Packed rows of trajectories that come one after another and are of one task of one job. A group that does not
    fit into `max_tokens` stored tokens takes several; a trajectory that alone is longer has a row of its own.

    Holds one packed row at a time. Raises InvalidBody for a trajectory that breaks the record's laws.
    """
    if max_tokens < 1:
        raise InvalidBody(f"max_tokens must be at least 1, not {max_tokens}", field="max_tokens")
    forest = Forest()
    held: list[Leaf] = []
    for row in trajectories:
        if held and not _fits(forest, held, row, max_tokens):
            yield _tree(forest, held)
            forest, held = Forest(), []
        forest.add(row)
        held.append(Leaf(_bare(row), len(row.prompt_ids)))
    if held:
        yield _tree(forest, held)


def _fits(forest: Forest, held: Sequence[Leaf], row: Trajectory, max_tokens: int) -> bool:
    first = held[0].record
    if (row.job, row.uid) != (first.job, first.uid) or len(held) >= TREE_ROWS:
        return False
    room = max_tokens - forest.tokens
    return len(row.prompt_ids) + len(row.response_ids) <= room or forest.grows_by(row) <= room


def _bare(row: Trajectory) -> Trajectory:
    empty: dict[str, Any] = {name: array(code) for name, code in ARRAY_FIELDS.items()}
    return replace(row, **empty)


def _tree(forest: Forest, held: Sequence[Leaf]) -> PackedTree:
    nodes = forest.in_order()
    number = {id(node): at for at, node in enumerate(nodes)}
    trained: list[list[int]] = [[] for _ in held]
    for at, node in enumerate(nodes):
        for leaf in node.trainers:
            trained[leaf].append(at)
    lengths = np.array([len(node.tokens) for node in nodes], np.int32)
    starts = np.cumsum(lengths, dtype=np.int32) - lengths
    parents = np.array([number.get(id(node.parent), -1) for node in nodes], np.int32)
    return PackedTree(
        job=held[0].record.job,
        uid=held[0].record.uid,
        input_ids=_joined([node.tokens.ids for node in nodes]),
        position_ids=positions(starts, parents, forest.tokens),
        loss_mask=np.repeat(np.array([node.tokens.trained for node in nodes], np.int8), lengths),
        logprobs=_joined([node.tokens.logprobs for node in nodes]).view(np.float32),
        versions=_joined([node.tokens.versions for node in nodes]),
        starts=starts,
        parents=parents,
        leaves=tuple(
            replace(leaf, segment=number.get(id(end), -1), trained=tuple(segments))
            for leaf, end, segments in zip(held, forest.ends, trained, strict=True)
        ),
    )


def _joined(parts: Sequence[Int32s]) -> Int32s:
    return np.concatenate([np.zeros(0, np.int32), *parts])
