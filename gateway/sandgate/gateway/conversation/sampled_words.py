"""Assistant messages as the model said them, where a client sends back something else. (pure)"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from sandgate.gateway.conversation.ids import call_mark, mark_of
from sandgate.gateway.conversation.message_equality import foreign_key
from sandgate.gateway.conversation.messages import Message, TextPart
from sandgate.gateway.conversation.turn import Turn
from sandgate.gateway.journal.reply import Reply


def as_sampled(messages: Sequence[Message], turns: Iterable[Turn], path: Iterable[Turn]) -> list[Message]:
    """The messages with the model's own words: clients trim texts, write arguments anew, and most drop what the model
    thought. `turns`: all of the session, as a conversation that forked has its past on other paths; `path`: those that
    the messages go on from, which count where the same was said twice.

    A message is known as a turn's by the ids of its calls, else by its text and its calls' arguments."""
    by_mark: dict[str, Reply] = {}
    by_words: dict[bytes, Reply] = {}
    for turn in (*turns, *path):
        by_words[_words_of(turn.reply)] = turn.reply
        if turn.reply.tool_calls:
            by_mark[call_mark(turn.id, 0)] = turn.reply
    return [_said(message, by_mark, by_words) for message in messages]


def _said(message: Message, by_mark: dict[str, Reply], by_words: dict[bytes, Reply]) -> Message:
    if message.role != "assistant":
        return message
    words = foreign_key(message.text, [(call.name, call.arguments) for call in message.tool_calls])
    reply = by_mark.get(mark_of(message.tool_calls[0].id)) if message.tool_calls else None
    if reply is None or _words_of(reply) != words:  # an id that was kept under an edited call
        reply = by_words.get(words)
    if reply is None:
        return message
    calls = tuple(
        replace(call, arguments=own.arguments)
        for call, own in zip(message.tool_calls, reply.tool_calls, strict=True)
    )
    text = (TextPart(reply.text),) if reply.text else ()
    return replace(message, parts=text, reasoning=reply.reasoning or None, tool_calls=calls)


def _words_of(reply: Reply) -> bytes:
    return foreign_key(reply.text, [(call.name, call.arguments) for call in reply.tool_calls])
