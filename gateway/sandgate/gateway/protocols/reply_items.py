"""The parts of an answer in the order in which the model said them, for dialects that tell parts. (pure)"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sandgate.gateway.journal.reply import Reply, ReplyCall


class TextItem(NamedTuple):
    """Visible text."""

    text: str


class ReasoningItem(NamedTuple):
    """Reasoning."""

    text: str


class CallItem(NamedTuple):
    """A call, and which of the answer's calls it is."""

    number: int
    call: ReplyCall


Item = TextItem | ReasoningItem | CallItem


def items_of(reply: Reply) -> Iterator[Item]:
    """What the deltas of this answer were, those of one kind that followed each other as one. Empty parts are none."""
    if not reply.order:
        if reply.reasoning:
            yield ReasoningItem(reply.reasoning)
        if reply.text:
            yield TextItem(reply.text)
        yield from (CallItem(index, call) for index, call in enumerate(reply.tool_calls))
        return
    at = {"text": 0, "reasoning": 0, "call": 0}
    for kind, length in reply.order:
        start, end = at[kind], at[kind] + length
        at[kind] = end
        if kind == "text":
            yield TextItem(reply.text[start:end])
        elif kind == "reasoning":
            yield ReasoningItem(reply.reasoning[start:end])
        else:
            yield from (CallItem(index, reply.tool_calls[index]) for index in range(start, end))
