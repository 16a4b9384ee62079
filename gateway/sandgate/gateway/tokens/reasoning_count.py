"""Counts the sampled ids that became an answer's reasoning; the marks around it are not counted. (pure)"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from itertools import accumulate

from sandgate.contract.trajectory import Ids
from sandgate.gateway.journal.reply import Reply

_SEAM = re.compile("(\n\n|\ufffd+)")
"""What a parser may have put into a text itself: a paragraph between two thoughts, a mark for half a character."""


def reasoning_tokens(ids: Ids, reply: Reply, bytes_of: Callable[[int], bytes]) -> int:
    """How many of these ids hold a part of the reply's reasoning. `bytes_of`: the text of an id, in UTF-8."""
    if not reply.reasoning:
        return 0
    pieces = [bytes_of(token) for token in ids]
    said, ends = b"".join(pieces), list(accumulate(map(len, pieces)))
    at = total = counted = 0
    for text, thought in _parts(reply):
        for start, end in _found(said, text, at):
            at = end
            if thought:
                first, last = max(bisect_right(ends, start), counted), bisect_left(ends, end)
                total += max(0, last + 1 - first)
                counted = max(counted, last + 1)
    return total


def _parts(reply: Reply) -> Iterator[tuple[str, bool]]:
    """The texts of an answer in order, and which of them are reasoning."""
    if not reply.order:
        yield reply.reasoning, True
        return
    at = {"text": 0, "reasoning": 0}
    for kind, size in reply.order:
        if kind != "call":
            source = reply.text if kind == "text" else reply.reasoning
            yield source[at[kind] : at[kind] + size], kind == "reasoning"
            at[kind] += size


def _found(said: bytes, text: str, at: int) -> Iterator[tuple[int, int]]:
    """Where a text stands in what was said, from `at` on: whole, else piece by piece between its seams."""
    raw = text.encode()
    if (start := said.find(raw, at)) >= 0:
        yield start, start + len(raw)
        return
    begun = -1
    for index, piece in enumerate(_SEAM.split(text)):
        raw = piece.encode()
        if not piece or index % 2 or (start := said.find(raw, at)) < 0:
            continue
        if begun >= 0 and start - at > 2:  # more than a paragraph's end: marks stand between
            yield begun, at
            begun = -1
        begun = start if begun < 0 else begun
        at = start + len(raw)
    if begun >= 0:
        yield begun, at
