"""Assistant messages as the model said them, where a client sends back something else. (pure)"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from sandgate.gateway.conversation.ids import call_mark, mark_of
from sandgate.gateway.conversation.message_equality import foreign_key
from sandgate.gateway.conversation.messages import Message, TextPart
from sandgate.gateway.conversation.turn import Turn
from sandgate.gateway.journal.reply import Reply


def as_sampled(
    messages: Sequence[Message], turns: Iterable[Turn], path: Sequence[Turn], tail: int
) -> list[Message]:
    """The messages with the model's own words: clients trim texts, write arguments anew, and most drop what the model
    thought. `turns`: all of the session, as a client may join what was said in several conversations; `path`: those
    that the messages before `tail` were read as, in order.

    A message is known as a turn's by the ids of its calls, else by its text and its calls' arguments. Where the same
    was said more than once, equal thoughts count, then the place, from the last of `path` back."""
    replies = _Replies(turns, path)
    ahead = [replies.said(message, here=False) for message in messages[tail:]]
    behind = [replies.said(message, here=True) for message in reversed(messages[:tail])]
    return [*reversed(behind), *ahead]


class _Replies:
    """What the model said, by ids of calls and by words."""

    def __init__(self, turns: Iterable[Turn], path: Sequence[Turn]) -> None:
        self._by_mark: dict[str, Reply] = {}
        self._by_words: dict[bytes, list[Reply]] = {}
        self._left: dict[bytes, list[Reply]] = {}
        """Those of the path that no message was given yet."""
        for turn in (*turns, *path):
            self._by_words.setdefault(_words_of(turn.reply), []).append(turn.reply)
            if turn.reply.tool_calls:
                self._by_mark[call_mark(turn.id, 0)] = turn.reply
        for turn in path:
            self._left.setdefault(_words_of(turn.reply), []).append(turn.reply)

    def said(self, message: Message, *, here: bool) -> Message:
        """The message with the words of its turn, if it is one's. `here`: that turn is the path's."""
        if message.role != "assistant":
            return message
        words = foreign_key(message.text, [(call.name, call.arguments) for call in message.tool_calls])
        left = self._left.get(words, []) if here else []
        reply = self._by_mark.get(mark_of(message.tool_calls[0].id)) if message.tool_calls else None
        if reply is None or _words_of(reply) != words:  # an id that was kept under an edited call
            reply = _best(left or self._by_words.get(words, []), message.reasoning or "")
        if reply is None:
            return message
        _take(left, reply)
        calls = tuple(
            replace(call, arguments=own.arguments)
            for call, own in zip(message.tool_calls, reply.tool_calls, strict=True)
        )
        text = (TextPart(reply.text),) if reply.text else ()
        return replace(message, parts=text, reasoning=reply.reasoning or None, tool_calls=calls)


def _best(replies: Sequence[Reply], reasoning: str) -> Reply | None:
    """The last that thought the same, else, or if no thought was sent, the last."""
    same = (reply for reply in reversed(replies) if reply.reasoning == reasoning) if reasoning else iter(())
    return next(same, replies[-1] if replies else None)


def _take(replies: list[Reply], one: Reply) -> None:
    """Removes the last that is `one`. From the end: mostly it is there, and a history may say one thing often."""
    for place in range(len(replies) - 1, -1, -1):
        if replies[place] is one:
            del replies[place]
            return


def _words_of(reply: Reply) -> bytes:
    return foreign_key(reply.text, [(call.name, call.arguments) for call in reply.tool_calls])
