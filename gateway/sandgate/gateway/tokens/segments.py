"""Encoding by segments, with a cache: the text between added tokens is encoded once. (pure)

Why this is exact: `tokenizers` first cuts the raw text at added tokens with `normalized=False` (leftmost, longest
first), and normalises, pre-tokenises and merges each remaining piece on its own. So the ids of a text are the ids of
its pieces, joined. Only Metaspace with `prepend_scheme="first"` looks at a piece's place: it treats the
piece at offset 0 apart; `ANCHORED` takes care of it. `choose_mode` proves the mode on probe strings per tokenizer, and
falls back to whole encodes where the proof fails.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from sandgate.contract.trajectory import Ids

CACHE_BYTES_MAX = 64 * 1024 * 1024
"""Bytes of text and ids kept per codec: the distinct prompts of some thousand groups."""

ENTRY_OVERHEAD_BYTES = 300
"""What one entry costs beside its payload (str, array and dict entry objects of CPython 3.11)."""

PROBE_TOKENS_MAX = 8
"""Added tokens tried in the start-up proof: the rule does not differ between tokens with equal flags."""


@dataclass(frozen=True, slots=True)
class AddedToken:
    """An added token of a tokenizer and how it is matched."""

    text: str
    id: int
    special: bool
    normalized: bool = False
    """Matched after normalisation, so never a place to cut raw text."""
    strips: bool = False
    """lstrip, rstrip or single_word: it looks at its neighbours, so the text is not cut there."""


class Mode(StrEnum):
    """How a text may be put together from segments."""

    PLAIN = "plain"
    """Each segment alone."""
    ANCHORED = "anchored"
    """A segment that is not at the head is encoded after a token, whose id is dropped again."""
    WHOLE = "whole"
    """No proof: every text is encoded as a whole (and still remembered as one segment)."""


class SegmentCache:
    """Text -> ids, bounded by bytes; what was not used for a while goes first.

    Two generations: a hit in the old one moves to the young one; when the young one has half of the bytes, it becomes
    the old one, and what is still in that is dropped. Single dict operations only, so threads need no lock: the worst a
    race can do is to encode a text twice or to count an entry's bytes once too few until the next change of generation.
    """

    def __init__(self, bytes_max: int = CACHE_BYTES_MAX) -> None:
        self.bytes_max = bytes_max
        self._young: dict[str, Ids] = {}
        self._old: dict[str, Ids] = {}
        self._young_bytes = self._old_bytes = 0
        self.hits = 0
        self.misses = 0

    def get(self, key: str) -> Ids | None:
        """The ids stored for `key`; the caller must not change them."""
        ids = self._young.get(key)
        if ids is None:
            ids = self._old.get(key)
            if ids is None:
                self.misses += 1
                return None
            self.put(key, ids)
        self.hits += 1
        return ids

    def put(self, key: str, ids: Ids) -> None:
        """Remember, unless the entry alone would fill a quarter of the cache."""
        cost = _cost(key, ids)
        if cost > self.bytes_max // 4:
            return
        if self._young_bytes + cost > self.bytes_max // 2:
            self._old, self._old_bytes = self._young, self._young_bytes
            self._young, self._young_bytes = {}, 0
        self._young[key] = ids
        self._young_bytes += cost

    @property
    def bytes(self) -> int:
        """Bytes held now."""
        return self._young_bytes + self._old_bytes


def _cost(key: str, ids: Ids) -> int:
    # Non-ASCII str takes up to four bytes a character; counting four keeps the bound a bound.
    return (len(key) if key.isascii() else 4 * len(key)) + 4 * len(ids) + ENTRY_OVERHEAD_BYTES


class SegmentEncoder:
    """Text -> array('i'), equal to `whole(text)` for every text, from cached segments.

    `whole` is the tokenizer's own encode without special tokens added. `added` are all its added tokens. `mode`: proved
    already, of a tokenizer whose tokens differ in nothing but their text.
    """

    def __init__(
        self,
        whole: Callable[[str], Ids],
        added: Iterable[AddedToken],
        cache: SegmentCache | None = None,
        mode: Mode | None = None,
    ) -> None:
        self._whole = whole
        self.cache = cache or SegmentCache()
        raw = [token for token in added if not token.normalized and token.text]
        self._cuts = {token.text: token.id for token in raw if not token.strips}
        self._pattern = re.compile(alternation([token.text for token in raw])) if raw else None
        self._anchor = next(iter(self._cuts), "")
        self.mode = Mode.PLAIN if self._cuts else Mode.WHOLE
        self.mode = mode or self._choose_mode()

    def encode(self, text: str, *, at_head: bool = True) -> Ids:
        """Ids of `text`; a new array that the caller owns. Not `at_head`: behind another text."""
        out = array("i")
        if self.mode is Mode.WHOLE:
            out.extend(self._segment(text, at_head=True))
            return out
        for piece, token in self.pieces(text):
            if piece:
                out.extend(self._segment(piece, at_head=at_head and not out))
            if token:
                out.append(self._cuts[token])
        return out

    def texts(self) -> Mapping[str, int]:
        """The added tokens at which text is cut, and their ids."""
        return self._cuts

    def is_cut(self, text: str) -> bool:
        """True if `text` is an added token at which any text may be cut without changing the ids of either side."""
        return self.mode is not Mode.WHOLE and text in self._cuts

    def pieces(self, text: str) -> Iterator[tuple[str, str]]:
        """(piece, added token after it) where the text is cut; the last token is ""."""
        if self.mode is Mode.WHOLE:
            yield text, ""
            return
        assert self._pattern is not None
        at = 0
        for match in self._pattern.finditer(text):
            if match.group() in self._cuts:  # a token that strips stays inside its piece
                yield text[at : match.start()], match.group()
                at = match.end()
        yield text[at:], ""

    def _segment(self, piece: str, *, at_head: bool) -> Ids:
        anchored = self.mode is Mode.ANCHORED and not at_head
        key = self._anchor + piece if anchored else piece
        ids = self.cache.get(key)
        if ids is None:
            ids = self._whole(key)
            if anchored:
                ids = ids[1:]
            self.cache.put(key, ids)
        return ids

    def _choose_mode(self) -> Mode:
        if self.mode is Mode.WHOLE:
            return Mode.WHOLE
        tried = probes(self._cuts)
        truth = [self._whole(probe) for probe in tried]
        for mode in (Mode.PLAIN, Mode.ANCHORED):
            self.mode, self.cache = mode, SegmentCache(self.cache.bytes_max)
            if all(self.encode(probe) == ids for probe, ids in zip(tried, truth, strict=True)):
                return mode
        self.cache = SegmentCache(self.cache.bytes_max)
        return Mode.WHOLE


PROBE_TEXTS = (
    "user\nHello there, world",
    " leading and trailing ",
    "\n\n",
    "  \n x",
    "def f(x):\n    return {'a': 1}\n",
    "naïve café — 你好 🙂",
    "1234 tokens.",
    "A\u0301 e\u0301",
)
"""Heads and tails that pre-tokenizers and normalizers treat apart: spaces, newlines, digits, combining marks."""


def probes(tokens: Iterable[str]) -> list[str]:
    """Strings that would show a tokenizer looking across an added token."""
    chosen = list(tokens)
    chosen = chosen[:PROBE_TOKENS_MAX] + chosen[-PROBE_TOKENS_MAX:]
    out = []
    for i, text in enumerate(PROBE_TEXTS):
        after = PROBE_TEXTS[(i + 1) % len(PROBE_TEXTS)]
        for token in chosen:
            out += [text + token + after, token + text, text + token, token + token + text + token]
    return out


def alternation(words: Iterable[str]) -> str:
    """A regex for any of `words`, longest first, factored as a trie so that many words cost one walk."""
    trie: dict[str, dict] = {}  # type: ignore[type-arg]
    for word in words:
        node = trie
        for char in word:
            node = node.setdefault(char, {})
        node[""] = {}
    return _branch(trie)


def _branch(node: dict[str, dict]) -> str:  # type: ignore[type-arg]
    ends = "" in node
    options = []
    for char, child in node.items():
        if not char:
            continue
        run = [char]
        while len(child) == 1 and "" not in child:  # a chain without forks needs no groups
            ((char, child),) = child.items()
            run.append(char)
        options.append(re.escape("".join(run)) + _branch(child))
    if not options:
        return ""
    group = "(?:" + "|".join(options) + ")"
    return group + "?" if ends else group
