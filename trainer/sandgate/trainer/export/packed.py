"""A group's trajectories as one packed row, for tree attention: what they share is there once.

The tokens of a forest lie in one sequence, each stretch (*segment*) before what is below it, and that before its next
sibling. So all that is below a token is one span of the sequence, and the mask of tree attention needs one number per
token: query q sees key k where `k <= q < ends[k]`. `packing.pack_trees` and `unpack` are inverse to the bit.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from sandgate.contract.errors import CorruptRecord, InvalidBody
from sandgate.contract.trajectory import Trajectory

Int32s = npt.NDArray[np.int32]
Floats32 = npt.NDArray[np.float32]

MASK_TOKENS_MAX = 1 << 15
"""A dense mask of more tokens is over 1 GiB; `ends` says the same in four bytes a token."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """One trajectory of a tree."""

    record: Trajectory
    """Everything but its token arrays, which are empty here."""
    prompt_tokens: int
    """How much of its path is the prompt."""
    segment: int = -1
    """Where its path ends; -1 if it has no tokens."""
    trained: tuple[int, ...] = ()
    """Segments of its path that it trains; every other one is context to it."""
    advantage: float | None = None
    """The trainer's to fill in; float32 in a file."""


@dataclass(frozen=True, slots=True)
class PackedTree:
    """T stored tokens in S segments, and L trajectories on them. Raises CorruptRecord if these do not fit."""

    job: str
    uid: str
    input_ids: Int32s
    """[T]: the stored tokens."""
    position_ids: Int32s
    """[T]: tokens before it on its path."""
    loss_mask: npt.NDArray[np.int8]
    """[T]: 1 where at least one trajectory trains it."""
    logprobs: Floats32
    """[T]: natural log, as captured; 0.0 for context."""
    versions: Int32s
    """[T]: policy version; -1 for context."""
    starts: Int32s
    """[S]: a segment's first token; it ends where the next one starts."""
    parents: Int32s
    """[S]: the segment that it continues, an earlier one; -1 for a root."""
    leaves: tuple[Leaf, ...]
    """[L], in the order in which they were packed."""

    def __post_init__(self) -> None:
        tokens, segments = len(self.input_ids), len(self.starts)
        for name in ("position_ids", "loss_mask", "logprobs", "versions"):
            if len(getattr(self, name)) != tokens:
                raise CorruptRecord(f"{name} has {len(getattr(self, name))} entries for {tokens} input_ids")
        if len(self.parents) != segments:
            raise CorruptRecord(f"{len(self.parents)} parents for {segments} starts")
        edges = np.concatenate([[0], self.starts[1:], [tokens]])
        if (
            (segments == 0) != (tokens == 0)
            or self.starts[:1].any()
            or (segments and np.diff(edges).min() < 1)
        ):
            raise CorruptRecord(f"starts do not divide {tokens} tokens into {segments} segments")
        if (self.parents < -1).any() or (self.parents >= np.arange(segments)).any():
            raise CorruptRecord("a segment's parent is not an earlier one")
        for leaf in self.leaves:
            self._check(leaf)

    def _check(self, leaf: Leaf) -> None:
        if not -1 <= leaf.segment < len(self.starts):
            raise CorruptRecord(f"a leaf ends at segment {leaf.segment} of {len(self.starts)}")
        path = self.path(leaf)
        if not set(leaf.trained) <= set(path):
            raise CorruptRecord("a leaf trains a segment that is not on its path")
        if not 0 <= leaf.prompt_tokens <= sum(self.stops[at] - self.starts[at] for at in path):
            raise CorruptRecord(f"a leaf's prompt cannot have {leaf.prompt_tokens} tokens")

    @property
    def stops(self) -> Int32s:
        """[S]: one past a segment's last token."""
        return np.append(self.starts[1:], np.int32(len(self.input_ids)))[: len(self.starts)]

    def path(self, leaf: Leaf) -> list[int]:
        """Its segments, root first."""
        found, at = [], leaf.segment
        while at >= 0:
            found.append(at)
            at = int(self.parents[at])
        return found[::-1]

    def indices(self, leaf: Leaf) -> Int32s:
        """Which of the T tokens are its own, in order: `values[indices]` is its row of anything computed per token."""
        spans = [np.arange(self.starts[at], self.stops[at], dtype=np.int32) for at in self.path(leaf)]
        return np.concatenate(spans) if spans else np.zeros(0, np.int32)

    def trains(self, leaf: Leaf) -> npt.NDArray[np.bool_]:
        """For each of its `indices`: does it train that token?"""
        trained = np.zeros(len(self.starts), np.bool_)
        trained[list(leaf.trained)] = True
        found: npt.NDArray[np.bool_] = np.repeat(trained, self.stops - self.starts)[self.indices(leaf)]
        return found

    def token_parents(self) -> Int32s:
        """[T]: the token before it on its path, whose logits predict it; -1 for the first of a root."""
        found = np.arange(-1, len(self.input_ids) - 1, dtype=np.int32)
        found[self.starts] = np.where(self.parents >= 0, self.stops[self.parents] - 1, -1)
        return found

    def ends(self) -> Int32s:
        """[T]: one past the last token that sees this one."""
        below = self.stops.copy()
        for at in range(len(self.starts) - 1, 0, -1):
            if (parent := self.parents[at]) >= 0:
                below[parent] = max(below[parent], below[at])
        return np.repeat(below, self.stops - self.starts)

    def attention_mask(self) -> npt.NDArray[np.bool_]:
        """[T, T]: may the row's token see the column's? Raises InvalidBody over MASK_TOKENS_MAX tokens."""
        if len(self.input_ids) > MASK_TOKENS_MAX:
            raise InvalidBody(
                f"a dense mask of {len(self.input_ids)} tokens is over 1 GiB; use ends(), or pack with max_tokens",
                field="max_tokens",
            )
        at = np.arange(len(self.input_ids), dtype=np.int32)
        seen: npt.NDArray[np.bool_] = (at <= at[:, None]) & (at[:, None] < self.ends())
        return seen


def unpack(tree: PackedTree) -> Iterator[Trajectory]:
    """Its trajectories, in order, as they were. Raises CorruptRecord."""
    for leaf in tree.leaves:
        where = tree.indices(leaf)
        given, said = where[: leaf.prompt_tokens], where[leaf.prompt_tokens :]
        mask = tree.trains(leaf)
        if mask[: leaf.prompt_tokens].any():
            raise CorruptRecord("a leaf trains its prompt")
        mask = mask[leaf.prompt_tokens :]
        yield replace(
            leaf.record,
            prompt_ids=_array("i", tree.input_ids[given]),
            response_ids=_array("i", tree.input_ids[said]),
            response_logprobs=_array(
                "f", np.where(mask, tree.logprobs[said].view(np.int32), 0).view(np.float32)
            ),
            loss_mask=_array("b", mask.astype(np.int8)),
            versions=_array("i", np.where(mask, tree.versions[said], -1)),
        )


def _array(code: str, values: npt.NDArray[Any]) -> array[Any]:
    out: array[Any] = array(code)
    out.frombytes(np.ascontiguousarray(values, code).tobytes())
    return out


def positions(starts: Int32s, parents: Int32s, tokens: int) -> Int32s:
    """[T]: how many tokens each has before it on its path."""
    stops = np.append(starts[1:], np.int32(tokens))[: len(starts)]
    first = np.zeros(len(starts), np.int32)
    for at, parent in enumerate(parents.tolist()):
        if parent >= 0:
            first[at] = first[parent] + stops[parent] - starts[parent]
    return np.arange(tokens, dtype=np.int32) + np.repeat(first - starts, stops - starts)
