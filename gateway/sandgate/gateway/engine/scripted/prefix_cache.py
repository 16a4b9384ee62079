"""Which tokens of a prompt an engine need not compute: what a prefix cache of whole blocks would hold. (pure)"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from sandgate.contract.trajectory import Ids

BLOCK = 16
"""Tokens of a block, vLLM's default."""


class PrefixCache:
    """Counts as vLLM does: of each prompt, the tokens in the blocks at its head that were computed before. The last
    token is always computed, as the next one is sampled from it."""

    def __init__(self, blocks: int) -> None:
        """`blocks`: held at most; the least recently used go first. 0 = none, and nothing is counted."""
        self.blocks = blocks
        self.queries = 0
        """Tokens of all prompts so far."""
        self.hits = 0
        """Tokens of them that were there."""
        self._held: OrderedDict[int, None] = OrderedDict()

    def ask(self, ids: Ids) -> int:
        """Takes a prompt in; how many of its tokens were there."""
        if not self.blocks:
            return 0
        found = 0
        for key in _keys(ids[: len(ids) - 1]):
            if key not in self._held:
                break
            found += BLOCK
        self.queries += len(ids)
        self.hits += found
        self.add(ids)
        return found

    def add(self, ids: Ids) -> None:
        """Takes in what was computed: a prompt, or a prompt and what was sampled."""
        if not self.blocks:
            return
        for key in reversed([*_keys(ids)]):  # a head is of use without its tail, so it goes last
            self._held[key] = None
            self._held.move_to_end(key)
        while len(self._held) > self.blocks:
            self._held.popitem(last=False)

    def clear(self) -> None:
        """Forgets all blocks; the counts go on."""
        self._held.clear()


def _keys(ids: Ids) -> Iterator[int]:
    """Of each whole block: what names it and all before it."""
    key = 0
    for at in range(0, len(ids) - BLOCK + 1, BLOCK):
        key = hash((key, ids[at : at + BLOCK].tobytes()))
        yield key
