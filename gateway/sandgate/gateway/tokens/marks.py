"""Marked strings: text with marks where it must not become a control token, which templates do not see. (pure)

A mark breaks a special token's text in two (`<` + mark + `|im_end|>`): it goes through a template with the words around
it, and is taken out again before the text is encoded. A template that looks at a client's words (`'</think>' in
content`, `content.split(...)`, `content | trim`) must see what the client said, so `Marked` answers for its bare text,
and its parts keep their marks.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, SupportsIndex

BREAK = "\ufdd0"
"""The mark: a code point that Unicode keeps for a program's own use."""
ESCAPE = "\ufdd1"
"""Stands before what was the client's own BREAK or ESCAPE."""
_ESCAPED = {BREAK: ESCAPE + "\ufdd2", ESCAPE: ESCAPE + "\ufdd3"}
_BARE = {BREAK: "", **{code: char for char, code in _ESCAPED.items()}}
_MARKS = re.compile(f"{BREAK}|{ESCAPE}[\ufdd2\ufdd3]")
_OWN = re.compile(f"[{BREAK}{ESCAPE}]")
_PRINTED = re.compile(r"(?<!\\)((?:\\\\)*)\\u(fdd[0-3])")


def is_marked(text: str) -> bool:
    """True for a text that has marks or escapes; or, if a client wrote it, code points that must be escaped."""
    return BREAK in text or ESCAPE in text


def unmark(text: str) -> str:
    """The text without marks, as the template alone would have made it."""
    return _MARKS.sub(lambda match: _BARE[match.group()], text) if is_marked(text) else text


def printed(text: str) -> str:
    r"""Marks again what `repr` or JSON in ASCII wrote as `\ufdd0`."""
    return _PRINTED.sub(lambda match: match.group(1) + chr(int(match.group(2), 16)), text)


def bare(text: str) -> str:
    """What a template is to compare: without marks."""
    return text.bare if isinstance(text, Marked) else unmark(text)


class Marked(str):
    """A client's text with marks in it. As a string it has them; asked about itself it answers without them.

    `breaks`: places in the bare text, sorted, each before the character with that index (its length: at the end).
    """

    bare: str
    breaks: Sequence[int]
    _own: Sequence[int]
    """Where the bare text has code points that are escaped."""

    def __new__(cls, text: str, breaks: Sequence[int]) -> Marked:
        """`text` is bare."""
        own = [found.start() for found in _OWN.finditer(text)] if is_marked(text) else []
        made = super().__new__(cls, _written(text, breaks))
        made.bare, made.breaks, made._own = text, breaks, own
        return made

    def part(self, start: int, end: int) -> str:
        """From `start` to before `end` of the bare text, with the marks in it and at its ends."""
        inside = self.breaks[bisect_left(self.breaks, start) : bisect_right(self.breaks, end)]
        return Marked(self.bare[start:end], [index - start for index in inside])

    def _parts(self, parts: Iterable[str], gap: str | None) -> list[Any]:
        """Parts of the bare text in order, found again; between them `gap`, or white space."""
        out, at = [], 0
        for part in parts:
            if gap is None:
                at = self.bare.index(part, at)
            out.append(self.part(at, at + len(part)))
            at += len(part) + len(gap or "")
        return out

    def _cased(self, text: str, marked: str) -> str:
        """In other letters: `text` if they are one for one, else `marked`, whose letters beside marks may differ."""
        return Marked(text, self.breaks) if len(text) == len(self.bare) else parsed(marked)

    # What templates and renderers ask ----------------------------------------------------------------------------

    def __eq__(self, other: object) -> bool:
        return self.bare == (bare(other) if isinstance(other, str) else other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __lt__(self, other: str) -> bool:
        return self.bare < bare(other)

    def __le__(self, other: str) -> bool:
        return self.bare <= bare(other)

    def __gt__(self, other: str) -> bool:
        return self.bare > bare(other)

    def __ge__(self, other: str) -> bool:
        return self.bare >= bare(other)

    def __hash__(self) -> int:
        return hash(self.bare)

    def __len__(self) -> int:
        return len(self.bare)

    def __contains__(self, other: object) -> bool:
        return isinstance(other, str) and bare(other) in self.bare

    def __repr__(self) -> str:
        return printed(str.__repr__(self))

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        if isinstance(key, slice):
            start, end, step = key.indices(len(self.bare))
            return self.part(start, max(start, end)) if step == 1 else str.__getitem__(self, key)
        start = range(len(self.bare))[key]
        return self.part(start, start + 1)

    def __add__(self, other: str) -> str:
        return _joined((self, other))

    def __radd__(self, other: str) -> str:
        return _joined((other, self))

    def find(self, sub: str, *places: Any) -> int:
        return self.bare.find(bare(sub), *places)

    def rfind(self, sub: str, *places: Any) -> int:
        return self.bare.rfind(bare(sub), *places)

    def index(self, sub: str, *places: Any) -> int:
        return self.bare.index(bare(sub), *places)

    def count(self, sub: str, *places: Any) -> int:
        return self.bare.count(bare(sub), *places)

    def startswith(self, prefix: str | tuple[str, ...], *places: Any) -> bool:
        return self.bare.startswith(prefix, *places)

    def endswith(self, suffix: str | tuple[str, ...], *places: Any) -> bool:
        return self.bare.endswith(suffix, *places)

    def isspace(self) -> bool:
        return self.bare.isspace()

    def strip(self, chars: str | None = None) -> str:
        start = len(self.bare) - len(self.bare.lstrip(chars))
        return self.part(start, max(start, len(self.bare.rstrip(chars))))

    def lstrip(self, chars: str | None = None) -> str:
        return self.part(len(self.bare) - len(self.bare.lstrip(chars)), len(self.bare))

    def rstrip(self, chars: str | None = None) -> str:
        return self.part(0, len(self.bare.rstrip(chars)))

    def removeprefix(self, prefix: str) -> str:
        return self.part(len(self.bare) - len(self.bare.removeprefix(prefix)), len(self.bare))

    def removesuffix(self, suffix: str) -> str:
        return self.part(0, len(self.bare.removesuffix(suffix)))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._parts(self.bare.split(sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[str]:
        return self._parts(self.bare.rsplit(sep, maxsplit), sep)

    def partition(self, sep: str) -> tuple[str, str, str]:
        head, separator, tail = self._parts(self.bare.partition(sep), "")
        return head, separator, tail

    def rpartition(self, sep: str) -> tuple[str, str, str]:
        head, separator, tail = self._parts(self.bare.rpartition(sep), "")
        return head, separator, tail

    def splitlines(self, keepends: bool = False) -> list[str]:
        lines = self._parts(self.bare.splitlines(keepends=True), "")
        if keepends:
            return lines
        return [line.part(0, len(line.bare.splitlines()[0])) for line in lines]

    def replace(self, old: str, new: str, count: SupportsIndex = -1) -> str:
        if not old:
            return str.replace(self, old, new, count)
        first, *others = self.split(old, count)
        return _joined([first, *(part for other in others for part in (new, other))])

    def lower(self) -> str:
        return self._cased(self.bare.lower(), str.lower(self))

    def upper(self) -> str:
        return self._cased(self.bare.upper(), str.upper(self))

    def capitalize(self) -> str:
        return self._cased(self.bare.capitalize(), str.capitalize(self))

    def title(self) -> str:
        return self._cased(self.bare.title(), str.title(self))


def _written(text: str, breaks: Iterable[int]) -> str:
    """The bare text with its marks."""
    out, index = [], 0
    for where in breaks:
        out.append(_escaped(text[index:where]))
        out.append(BREAK)
        index = where
    return "".join((*out, _escaped(text[index:])))


def _escaped(text: str) -> str:
    return _OWN.sub(lambda match: _ESCAPED[match.group()], text) if is_marked(text) else text


def parsed(text: str) -> Marked:
    """A text with marks, as one that knows them."""
    if isinstance(text, Marked):
        return text
    breaks: list[int] = []
    pieces: list[str] = []
    index = 0
    for piece in text.split(BREAK):
        pieces.append(unmark(piece))
        index += len(pieces[-1])
        breaks.append(index)
    return Marked("".join(pieces), breaks[:-1])


def _joined(parts: Iterable[str]) -> Marked:
    """One after another, each with its marks; what has none is a template's own."""
    breaks: list[int] = []
    pieces: list[str] = []
    index = 0
    for part in map(parsed, parts):
        breaks += [index + where for where in part.breaks]
        pieces.append(part.bare)
        index += len(part.bare)
    return Marked("".join(pieces), list(dict.fromkeys(breaks)))
