"""A conversation in tests: found, answered and committed as the gateway does it; only the tokens are made up."""

from __future__ import annotations

from array import array
from typing import Any

from sandgate.gateway.conversation.echo_matching import MatchPolicy
from sandgate.gateway.conversation.ids import call_id
from sandgate.gateway.conversation.messages import Message, TextPart, Tool, ToolCall, TurnRequest
from sandgate.gateway.conversation.tree import Match, Tree
from sandgate.gateway.conversation.turn import pack
from sandgate.gateway.journal.records import TurnCommitted
from sandgate.gateway.journal.reply import Reply, ReplyCall


def system(text: str) -> Message:
    return Message("system", (TextPart(text),))


def user(*texts: str) -> Message:
    return Message("user", tuple(TextPart(text) for text in texts))


def tool(call: str, text: str) -> Message:
    return Message("tool", (TextPart(text),), tool_call_id=call)


def assistant(text: str = "", *calls: ToolCall, reasoning: str | None = None) -> Message:
    return Message("assistant", (TextPart(text),) if text else (), reasoning, calls)


def says(text: str = "", *calls: tuple[str, str], reasoning: str = "") -> Reply:
    return Reply(text, reasoning, tuple(ReplyCall(name, arguments) for name, arguments in calls))


def request(*messages: Message, tools: tuple[Tool, ...] = ()) -> TurnRequest:
    return TurnRequest(model="m", messages=messages, tools=tools)


def echo(turn: str, reply: Reply) -> Message:
    """As a careful client sends it back."""
    return assistant(
        reply.text,
        *[ToolCall(call_id(turn, at), call.name, call.arguments) for at, call in enumerate(reply.tool_calls)],
        reasoning=reply.reasoning or None,
    )


SEARCH = Tool("search", "find it", {"type": "object", "properties": {"q": {"type": "string"}}})
BUY = Tool("buy", "get it", {"type": "object", "properties": {"n": {"type": "number", "minimum": 1.0}}})


class Talk:
    """A tree and the records that made it. Turns are called t0, t1, ..."""

    def __init__(self, policy: MatchPolicy | None = None) -> None:
        self.tree = Tree()
        self.records: list[TurnCommitted] = []
        self.policy = policy or MatchPolicy()

    def find(self, asked: TurnRequest) -> Match:
        return self.tree.find(asked, self.policy)

    def commit(self, match: Match, reply: Reply, **fields: Any) -> str:
        """`reply` becomes the next turn; two ids of context and three sampled, different for every turn."""
        number = len(self.records)
        record = TurnCommitted(
            at=float(number),
            turn=f"t{number}",
            parent=match.parent,
            fork=match.fork,
            digest=b"%d" % number,
            context=pack(array("i", [10 * number, 10 * number + 1])),
            ids=pack(array("i", [10 * number + 2, 10 * number + 3, 10 * number + 4])),
            logprobs=pack(array("f", [-0.5, -0.25, 0.0])),
            versions=((0, 0, 3),),
            finish="stop",
            reply=reply,
            prompt_key=match.prompt_key,
            head_key=match.head_key,
            blocks=match.blocks,
            notes=match.notes,
            prompt_tokens=2,
        )
        if fields:
            record = TurnCommitted(
                **{name: getattr(record, name) for name in record.__struct_fields__} | fields
            )
        self.records.append(record)
        self.tree.apply(record)
        return record.turn

    def say(self, asked: TurnRequest, reply: Reply, **fields: Any) -> str:
        """Find, sample, commit."""
        return self.commit(self.find(asked), reply, **fields)
