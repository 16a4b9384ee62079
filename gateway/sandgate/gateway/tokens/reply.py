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
        self._order: list[tuple[ReplyPart, int]] = []

    def text(self, text: str) -> None:
        if text:
            self._text.append(text)
            self._said("text", len(text))
            self.deltas.append(TextDelta(text))

    def reasoning(self, text: str) -> None:
        if text:
            self._reasoning.append(text)
            self._said("reasoning", len(text))
            self.deltas.append(ReasoningDelta(text))

    def call(self, call: ReplyCall) -> None:
        self.deltas.append(CallDelta(len(self.calls), call.name, call.arguments))
        self.calls.append(call)
        self._said("call", 1)

    def _said(self, part: ReplyPart, size: int) -> None:
        if self._order and self._order[-1][0] == part:
            size += self._order.pop()[1]
        self._order.append((part, size))

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
            order=() if _common(self._order) else tuple(self._order),
        )


def _common(order: list[tuple[ReplyPart, int]]) -> bool:
    """Whether reasoning, text and calls follow each other, each once at most."""
    ranks = [_COMMON.index(part) for part, _ in order]
    return all(rank < later for rank, later in itertools.pairwise(ranks))


_COMMON: tuple[ReplyPart, ...] = ("reasoning", "text", "call")
