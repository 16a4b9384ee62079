"""Trajectories laid over each other where their tokens are the same: a forest, grown row by row.

Two rows share a token if everything before it is shared, the ids are equal, and what is known of it can be told as one:
not more than one of them trains it, or the captured logprob and version are the same to the bit. So a stored token has
one mask, one logprob and one version, and nothing about any row is lost. No Python object per token.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from sandgate.contract.errors import InvalidBody
from sandgate.contract.trajectory import Trajectory

Int32s = npt.NDArray[np.int32]
NO_VERSION = -1
GLANCE = 64
"""Tokens compared first: siblings' samples part early, and a group may have many of them."""


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """A stretch of one row, all trained or all context. The arrays have one length."""

    ids: Int32s
    logprobs: Int32s
    """float32, seen as integers: equal means equal to the bit. Context has 0."""
    versions: Int32s
    trained: bool

    def __len__(self) -> int:
        return len(self.ids)

    def cut(self, start: int, end: int | None = None) -> TokenSpan:
        """A part of it, without a copy."""
        part = slice(start, end)
        return TokenSpan(self.ids[part], self.logprobs[part], self.versions[part], self.trained)

    def agrees(self, other: TokenSpan) -> int:
        """How many tokens at the head of both can be one."""
        n = min(len(self), len(other))
        if n > GLANCE and (near := self._agrees(other, GLANCE)) < GLANCE:
            return near
        return self._agrees(other, n)

    def _agrees(self, other: TokenSpan, n: int) -> int:
        same = self.ids[:n] == other.ids[:n]
        if self.trained and other.trained:
            same &= (self.logprobs[:n] == other.logprobs[:n]) & (self.versions[:n] == other.versions[:n])
        return n if same.all() else int(same.argmin())


def runs(row: Trajectory) -> list[TokenSpan]:
    """The whole row, prompt first, as stretches that are trained or context.

    Raises InvalidBody for a row that breaks the record's laws: a packed file could not give it back. A -0.0 of context
    becomes 0.0."""
    prompt = len(row.prompt_ids)
    mask = np.frombuffer(row.loss_mask, np.int8) if row.loss_mask else np.zeros(0, np.int8)
    ids = np.concatenate([_ints(row.prompt_ids), _ints(row.response_ids)])
    logprobs = np.concatenate([np.zeros(prompt, np.int32), _ints(row.response_logprobs)])
    versions = np.concatenate([np.full(prompt, NO_VERSION, np.int32), _ints(row.versions)])
    if ((mask != 0) & (mask != 1)).any():
        raise _broken(row, "loss_mask", "is neither 0 nor 1")
    context = np.concatenate([np.ones(prompt, np.bool_), mask == 0])
    if logprobs.view(np.float32)[context].any():
        raise _broken(row, "response_logprobs", "is not 0.0 where loss_mask is 0")
    logprobs[context] = 0  # of a -0.0, which other writers may leave
    if (versions[context] != NO_VERSION).any():
        raise _broken(row, "versions", "is not -1 where loss_mask is 0")
    edges = [0, *(np.flatnonzero(np.diff(context)) + 1).tolist(), len(ids)]
    return [
        TokenSpan(ids[start:end], logprobs[start:end], versions[start:end], not context[start])
        for start, end in pairwise(edges)
        if end > start
    ]


def _ints(values: Any) -> Int32s:
    """The four-byte values of an array, as integers."""
    return np.frombuffer(values, np.int32) if values else np.zeros(0, np.int32)


def _broken(row: Trajectory, name: str, why: str) -> InvalidBody:
    return InvalidBody(
        f"session {row.session_id} trajectory {row.trajectory_id}: {name} {why}; such a row cannot be packed",
        field=name,
    )


@dataclass(slots=True, eq=False)
class Node:
    """A stretch of tokens that the same rows share, and the same rows train."""

    tokens: TokenSpan
    parent: Node | None
    trainers: list[int] = field(default_factory=list)
    """Rows in which the tokens are trained; empty for context."""
    children: dict[int, list[Node]] = field(default_factory=dict)
    """First id -> nodes that begin with it: several, where the same id was sampled with different logprobs."""

    def best(self, tokens: TokenSpan) -> tuple[Node | None, int]:
        """The child that shares most of `tokens`, and how many."""
        found: tuple[Node | None, int] = None, 0
        for child in self.children.get(int(tokens.ids[0]), ()):
            if (count := child.tokens.agrees(tokens)) > found[1]:
                found = child, count
        return found

    def add(self, child: Node) -> None:
        self.children.setdefault(int(child.tokens.ids[0]), []).append(child)

    def split(self, at: int) -> Node:
        """A new node with the first `at` tokens, in its place; it keeps the others below that one, and stays the node
        that rows end at."""
        if at == len(self.tokens):
            return self
        assert self.parent is not None, "a root has no tokens"
        head = Node(self.tokens.cut(0, at), self.parent, list(self.trainers))
        beside = self.parent.children[int(self.tokens.ids[0])]
        beside[beside.index(self)] = head
        self.tokens, self.parent = self.tokens.cut(at), head
        head.add(self)
        return head

    def below(self) -> Iterator[Node]:
        """Its children, those with one first id together."""
        for same in self.children.values():
            yield from same


NOTHING = TokenSpan(np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0, np.int32), trained=False)


@dataclass(slots=True)
class Forest:
    """Rows that were added, numbered from 0."""

    roots: dict[bytes | None, Node] = field(default_factory=dict)
    """By images: rows share tokens only where they see the same ones, as an image's placeholders are equal ids."""
    ends: list[Node] = field(default_factory=list)
    """Row -> where it ends; a root of no tokens for an empty row."""
    tokens: int = 0
    """Stored."""

    def grows_by(self, row: Trajectory) -> int:
        """How many tokens `add` would store. Changes nothing. Raises InvalidBody."""
        left = sum(map(len, found := runs(row)))
        node, ahead = self.roots.get(row.multimodal), NOTHING
        for run in found:
            while len(run):
                if not len(ahead):
                    node, _ = node.best(run) if node is not None else (None, 0)
                    ahead = node.tokens if node is not None else NOTHING
                if not (same := ahead.agrees(run)):
                    return left
                run, ahead, left = run.cut(same), ahead.cut(same), left - same
                if len(run) and len(ahead):
                    return left
        return left

    def add(self, row: Trajectory) -> None:
        """Raises InvalidBody, and then nothing was added."""
        node, number = self.roots.setdefault(row.multimodal, Node(NOTHING, None)), len(self.ends)
        for run in runs(row):
            while len(run):
                child, same = node.best(run)
                if child is None:
                    child, same = Node(run, node), len(run)
                    node.add(child)
                    self.tokens += same
                child = child.split(same)
                if run.trained:
                    if not child.trainers:  # context so far
                        child.tokens = run.cut(0, same)
                    child.trainers.append(number)
                node, run = child, run.cut(same)
        self.ends.append(node)

    def in_order(self) -> list[Node]:
        """Every node with tokens, each before what is below it, and that before its next sibling."""
        found: list[Node] = []
        pending = list(reversed(self.roots.values()))
        while pending:
            node = pending.pop()
            if len(node.tokens):
                found.append(node)
            pending += reversed(list(node.below()))
        return found
