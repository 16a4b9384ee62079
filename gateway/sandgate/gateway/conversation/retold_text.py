"""Finds, in a prompt given as text, the turns that it retells: their sampled ids are kept, not encoded anew. (pure)"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from sandgate.contract.trajectory import Ids
from sandgate.gateway.conversation.turn import Turn

BEFORE_IDS = 8
"""Ids before a piece that are decoded with it: a decoder may drop the space at the beginning of a text, and the bytes
of one character may be in two pieces."""

IDS_PER_CHAR, IDS_MIN = 8, 65_536
"""Ids that are decoded for a text, at most. A path has about as many ids as the text has characters, or fewer; the rest
is for branches that turn out to be others. Beyond it the search ends, and what was not found is encoded anew."""


@dataclass(frozen=True, slots=True)
class Retold:
    """The head of a text that turns of the session are known to have said."""

    ids: Ids
    """The ids that it was said in."""
    chars: int
    """Its length in the text."""
    unclosed: bool
    """The last turn ended with a stop token that the text leaves out, and so do `ids`: they are no path of the tree."""


NOTHING = Retold(array("i"), 0, False)


def retold(
    text: str,
    turns: Sequence[Turn],
    decode: Callable[[Ids], str],
    *,
    lead: Ids,
    stop_ids: Collection[int],
) -> Retold:
    """The longest head of `text` that ends with the sample of one of these turns, word for word; of equals the newest.

    `lead`: ids that the tokenizer puts before any text, of which clients do not know. `decode` gives special tokens as
    they are spelt.
    """
    children: dict[str | None, list[Turn]] = {}
    for turn in turns:
        children.setdefault(turn.parent, []).append(turn)
    left = IDS_PER_CHAR * len(text) + IDS_MIN
    best = NOTHING
    waiting = [(NOTHING.ids, 0, children.get(None, []))]
    while waiting:
        path, at, siblings = waiting.pop()
        starts: dict[bytes, int] = {}
        for turn in reversed(siblings):
            if left <= 0:
                return best
            prompt = path + turn.context
            hidden = len(lead) if prompt[: len(lead)] == lead else 0
            context = turn.context.tobytes()
            if context not in starts:  # samples of one prompt share it
                left -= len(turn.context)
                said = _added(prompt[hidden:], max(len(path) - hidden, 0), decode)
                starts[context] = at + len(said) if text.startswith(said, at) else -1
            start = starts[context]
            if start < 0:
                continue
            left -= len(turn.ids)
            found = _sampled(text, start, prompt, turn.ids, hidden, decode, stop_ids)
            if found is None:
                continue
            if (found.chars, not found.unclosed) > (best.chars, not best.unclosed):
                best = found
            if not found.unclosed and turn.id in children:
                waiting.append((found.ids, found.chars, children[turn.id]))
    return best


def _sampled(
    text: str,
    start: int,
    prompt: Ids,
    sampled: Ids,
    hidden: int,
    decode: Callable[[Ids], str],
    stop_ids: Collection[int],
) -> Retold | None:
    """The path to a turn, if its sample stands at `start`, with or without the stop token that ended it."""
    closed = bool(sampled) and sampled[-1] in stop_ids
    path, whole = prompt + (sampled[:-1] if closed else sampled), prompt + sampled
    said = _added(path[hidden:], len(prompt) - hidden, decode)
    if not text.startswith(said, start):
        return None
    end = start + len(said)
    closer = _added(whole[hidden:], len(path) - hidden, decode)
    if text.startswith(closer, end):
        return Retold(whole, end + len(closer), unclosed=False)
    return Retold(path, end, unclosed=True)


def _added(ids: Ids, known: int, decode: Callable[[Ids], str]) -> str:
    """The text that the ids from `known` on add to those before."""
    if known == len(ids):
        return ""
    before = max(0, known - BEFORE_IDS)
    return decode(ids[before:])[len(decode(ids[before:known])) :]
