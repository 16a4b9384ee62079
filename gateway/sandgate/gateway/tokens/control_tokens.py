"""Control tokens of a checkpoint: which they are, and where a client's text spells one. (pure)

Control is what frames turns, thoughts, calls and media: every added token that the tokenizer marks special, what ends a
turn, and of the others those of a frame's form (`<|…|>`), those that the chat template writes and those that one of the
known grammars reads. Other added tokens are words (runs of spaces, HTML tags): they stay tokens wherever they stand.
"""

from __future__ import annotations

import re
from bisect import insort
from collections.abc import Callable, Collection, Iterable

from sandgate.gateway.tokens.family_formats import FORMATS, THINK
from sandgate.gateway.tokens.segments import AddedToken, alternation
from sandgate.gateway.tokens.vocab import Vocab

FRAME = re.compile(r"<[|｜].*|.*[|｜]>|\[/?[A-Z_]+\]|</?s>|<(?:bos|eos|pad|unk)>", re.DOTALL)
"""Forms that are no word of any text."""

FRAMES = frozenset(
    (
        *(word for pair in THINK for word in pair),
        *(word for _, form in FORMATS for word in (form.open, form.close, *form.inner)),
        "<tool_response>",
        "</tool_response>",
    )
)
"""What grammars read, as far as it is a token."""

Normalize = Callable[[str], str]


def control_tokens(vocab: Vocab, template: str, stop_ids: Collection[int]) -> tuple[AddedToken, ...]:
    """Of the checkpoint with this chat template ("" if none is known)."""

    def control(token: AddedToken) -> bool:
        text = token.text
        if token.special or token.id in stop_ids:
            return True
        framing = text in FRAMES or FRAME.fullmatch(text) is not None or (len(text) > 1 and text in template)
        return framing and not text.isspace()

    return tuple(token for token in vocab.added if token.text and control(token))


class Controls:
    """Finds control tokens in a client's text."""

    def __init__(self, tokens: Iterable[AddedToken], normalize: Normalize | None) -> None:
        tokens = tuple(tokens)
        words = [token.text for token in tokens]
        self._firsts = {word[0] for word in words}
        self._lasts = {word[-1] for word in words}
        self._longest = max(map(len, words), default=0)
        self._all = "\0".join(words)
        self._prefixes = {word[:n] for word in words for n in range(1, len(word))}
        self._suffixes = {word[n:] for word in words for n in range(1, len(word))}
        self._starts = re.compile(_starts(words)) if words else None
        self._whole = re.compile(alternation(words)) if words else None
        folded = [token.text for token in tokens if token.normalized]
        self._normalize = normalize if folded else None
        self._folded = (*folded, *map(normalize, folded)) if normalize else ()

    def count(self, text: str) -> int:
        """How many control tokens the text spells."""
        if self._whole is None:
            return 0
        matches = sum(1 for _ in self._whole.finditer(text))
        return matches or int(self._only_normalized(text))

    def breaks(self, text: str) -> list[int]:
        """Where marks must stand (see `Marked`), so that no token is spelt in this text, nor by it and what a template
        puts beside it; the places behind the first letter of each."""
        if self._starts is None or not text:
            return []
        found = [match.start() + 1 for match in self._starts.finditer(text)]
        if self._may_begin(text[-self._longest :]) or (len(text) < self._longest and text in self._all):
            found.append(len(text))
        if self._may_end(text[: self._longest]):
            found.insert(0, 0)
        if not found and self._only_normalized(text):
            insort(found, 1 + len(text) - len(text.lstrip()))
        return list(dict.fromkeys(found)) if found else found

    def _may_begin(self, end: str) -> bool:
        """Could a token go on behind this end of a text?"""
        if self._firsts.isdisjoint(end):
            return False
        return any(end[index:] in self._prefixes for index in range(len(end)) if end[index] in self._firsts)

    def _may_end(self, head: str) -> bool:
        """Could a token, begun before it, end in this head of a text?"""
        if self._lasts.isdisjoint(head):
            return False
        return any(
            head[: index + 1] in self._suffixes for index in range(len(head)) if head[index] in self._lasts
        )

    def _only_normalized(self, text: str) -> bool:
        """Does the tokenizer's own normalizer make a token of it?"""
        if self._normalize is None:
            return False
        normal = self._normalize(text)
        return any(token in normal for token in self._folded)


def _starts(words: Iterable[str]) -> str:
    """A regex for the first letter of any of `words`, overlaps included."""
    rests: dict[str, list[str]] = {}
    for word in words:
        rests.setdefault(word[0], []).append(word[1:])
    return "|".join(f"{re.escape(first)}(?={alternation(rest)})" for first, rest in rests.items())
