"""Builds a reply from the deltas that are sent, so that the reply has exactly their text. (pure)"""

from __future__ import annotations

import itertools

from sandgate.gateway.journal.reply import Reply, ReplyCall, ReplyPart
from sandgate.gateway.tokens.api import CallDelta, ParseDelta, ReasoningDelta, TextDelta


class ReplyBuilder:
    """Collects what is told."""

    def __init__(self) -> None:
        self.deltas: list[ParseDelta] = []
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self.calls: list[ReplyCall] = []
        self.malformed: list[str] = []
        self._part: ReplyPart | None = None
        self._begun: list[tuple[ReplyPart, int]] = []
        """Each time that another part begins: which, and how many pieces of it there were before."""

    def text(self, text: str) -> None:
        if text:
            if self._part != "text":
                self._begin("text", len(self._text))
            self._text.append(text)
            self.deltas.append(TextDelta(text))

    def reasoning(self, text: str) -> None:
        if text:
            if self._part != "reasoning":
                self._begin("reasoning", len(self._reasoning))
            self._reasoning.append(text)
            self.deltas.append(ReasoningDelta(text))

    def call(self, call: ReplyCall) -> None:
        if self._part != "call":
            self._begin("call", len(self.calls))
        self.deltas.append(CallDelta(len(self.calls), call.name, call.arguments))
        self.calls.append(call)

    def _begin(self, part: ReplyPart, pieces: int) -> None:
        self._part = part
        self._begun.append((part, pieces))

    def _order(self) -> tuple[tuple[ReplyPart, int], ...]:
        """The parts as they followed each other, with the length of each (of calls: how many); empty for the common
        order."""
        if _common(self._begun):
            return ()
        ends: dict[ReplyPart, int] = {
            "text": len(self._text),
            "reasoning": len(self._reasoning),
            "call": len(self.calls),
        }
        texts: dict[ReplyPart, list[str]] = {"text": self._text, "reasoning": self._reasoning}
        out: list[tuple[ReplyPart, int]] = []
        for part, start in reversed(self._begun):
            end, ends[part] = ends[part], start
            size = end - start if part == "call" else sum(map(len, texts[part][start:end]))
            out.append((part, size))
        return tuple(reversed(out))

    def take(self) -> list[ParseDelta]:
        """Deltas since the last call."""
        deltas, self.deltas = self.deltas, []
        return deltas

    @property
    def spoke(self) -> bool:
        """True once there is visible text or a call."""
        return bool(self._text or self.calls)

    def reply(self) -> Reply:
        return Reply(
            text="".join(self._text),
            reasoning="".join(self._reasoning),
            tool_calls=tuple(self.calls),
            malformed=tuple(self.malformed),
            order=self._order(),
        )


def _common(order: list[tuple[ReplyPart, int]]) -> bool:
    """Whether reasoning, text and calls follow each other, each once at most."""
    ranks = [_COMMON.index(part) for part, _ in order]
    return all(rank < later for rank, later in itertools.pairwise(ranks))


_COMMON: tuple[ReplyPart, ...] = ("reasoning", "text", "call")
