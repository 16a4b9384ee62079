"""Counts samples that teach nothing, of failures of the agent or the infrastructure, by cause. (pure)"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

WORDS_MAX = 32
"""Wordings that are told apart: agents write them, and may write another one each."""
CHARS_MAX = 500
"""Of one wording: the message of a condition takes it."""

Cause = tuple[str, str]
"""(reason, its words)."""


@dataclass(frozen=True, slots=True)
class FruitlessSamples:
    """Samples that teach nothing."""

    causes: tuple[tuple[Cause, int], ...] = ()
    """Cause -> samples, in the order in which they were first seen."""

    @classmethod
    def of(cls, causes: Iterable[Cause]) -> FruitlessSamples:
        """These, one a sample."""
        return FruitlessSamples() + FruitlessSamples(tuple((one, 1) for one in causes))

    def __add__(self, more: FruitlessSamples) -> FruitlessSamples:
        found = Counter(dict(self.causes))
        for (reason, words), number in more.causes:
            cause = (reason, " ".join(words.split())[:CHARS_MAX])
            known = cause in found or len(found) < WORDS_MAX
            found[cause if known else (reason, "")] += number
        return FruitlessSamples(tuple(found.items()))

    @property
    def total(self) -> int:
        """Samples."""
        return sum(number for _, number in self.causes)

    def __str__(self) -> str:
        """The most frequent cause, and what most of those said; the first of several that are as frequent."""
        reasons: Counter[str] = Counter()
        for (reason, _), number in self.causes:
            reasons[reason] += number
        if not reasons:
            return ""
        ((reason, many),) = reasons.most_common(1)
        said = Counter({words: number for (one, words), number in self.causes if one == reason and words})
        text = f"{many} {reason}"
        if not said:
            return text
        ((words, number),) = said.most_common(1)
        return f"{text}: {words}" if number == many else f"{text}, {number} of them: {words}"


NONE_FRUITLESS = FruitlessSamples()
