"""Small forests of turns, written as lines, and a slow but obvious linearizer to compare with."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sandgate.contract.trajectory import Floats, Ids
from sandgate.gateway.media.spans import Spans


@dataclass(frozen=True)
class T:
    """A turn. Ids are made of its name's code: context 1000*c.., sampled 1000*c+500.., so that rows can be read."""

    id: str
    parent: str | None = None
    fork: str | None = None
    given: int = 2
    made: int = 3
    finish: str = "stop"
    index: int = 0
    role: str = ""
    role_why: str = ""
    head_key: bytes = b""
    version: int = 1
    sampling: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 1.0})
    spans: tuple[tuple[int, int, int], ...] | None = None
    build: str = ""
    logprobs_mode: str = ""
    renderer: str = ""
    media: Spans = ()

    @property
    def base(self) -> int:
        return 1000 * (ord(self.id[0]) - ord("a") + 1)

    @property
    def context(self) -> Ids:
        return array("i", range(self.base, self.base + self.given))

    @property
    def ids(self) -> Ids:
        return array("i", range(self.base + 500, self.base + 500 + self.made))

    @property
    def logprobs(self) -> Floats:
        return array("f", [-(self.base + n) / 8192 for n in range(self.made)])

    @property
    def versions(self) -> tuple[tuple[int, int, int], ...]:
        return ((self.version, 0, self.made),) if self.spans is None else self.spans


def seen(turns: Iterable[T], *but: str) -> set[str]:
    """Delivered: all of them but these."""
    return {turn.id for turn in turns} - set(but)
