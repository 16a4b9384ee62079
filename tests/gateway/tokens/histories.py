"""Conversations of a model that thinks, played with a template's real tokens: what each history policy trains."""

from __future__ import annotations

import asyncio
from array import array
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property

from sandgate.contract.trajectory import Ids, Trajectory
from sandgate.gateway.conversation.echo_matching import MatchPolicy
from sandgate.gateway.conversation.ids import call_id
from sandgate.gateway.conversation.messages import Message, TextPart, ToolCall, TurnRequest
from sandgate.gateway.conversation.tree import Tree
from sandgate.gateway.conversation.turn import pack
from sandgate.gateway.journal.records import Sealed, TurnCommitted
from sandgate.gateway.metrics import GatewayMetrics
from sandgate.gateway.service.prompts import Prompts
from sandgate.gateway.tokens.codec import TemplateCodec
from sandgate.gateway.tokens.probe_conversations import user
from sandgate.gateway.tokens.renderers_codec import FamilyCodec
from sandgate.gateway.trajectories.linearize import linearize
from tests.fuzz.fuzz_answers import TOOLS, written

CALLS = "calls"
ANSWERS = "answers"
CONVERSATIONS: dict[str, tuple[str, ...]] = {
    "a tool loop": (CALLS, CALLS, CALLS, ANSWERS),
    "a chat": (ANSWERS, ANSWERS, ANSWERS),
    "tool loops of three users": (CALLS, ANSWERS, CALLS, ANSWERS, CALLS, ANSWERS),
}
"""What the model does in turn. It thinks each time; behind an answer comes a user."""
WINDOW = 1 << 20
METRICS = GatewayMetrics()
Subject = TemplateCodec | FamilyCodec


@dataclass
class Played:
    """A conversation's turns and rows."""

    codec: Subject
    tree: Tree = field(default_factory=Tree)
    prompts: list[Ids] = field(default_factory=list)
    """What the engine was given."""
    asked: list[list[Message]] = field(default_factory=list)
    """What the client sent."""
    sampled: list[Ids] = field(default_factory=list)
    records: list[TurnCommitted] = field(default_factory=list)

    @cached_property
    def rows(self) -> list[Trajectory]:
        """Once all is said. Every turn was delivered."""
        return linearize(
            self.tree.turns,
            session_id="s",
            spec={},
            sealed=Sealed(at=1.0, reward=1.0),
            delivered={turn.id for turn in self.tree.turns},
        )

    @property
    def full(self) -> list[Ids]:
        """What the template gives for the messages that the client sent."""
        return [self.codec.render(messages, TOOLS) for messages in self.asked]

    @property
    def forks(self) -> Counter[str]:
        return Counter(record.fork for record in self.records if record.fork)

    @property
    def trained(self) -> int:
        return sum(sum(row.loss_mask) for row in self.rows)

    @property
    def computed(self) -> int:
        """Tokens that a trainer runs through its model."""
        return sum(len(row.prompt_ids) + len(row.response_ids) for row in self.rows)

    def turn(self, messages: Sequence[Message], made: Ids, *, finish: str = "stop") -> TurnCommitted:
        """The client asks, the model samples `made`, the turn is committed. Raises BadRequest where the template
        refuses the messages. Every sampled token has another logprob."""
        request = TurnRequest(
            model="m", messages=tuple(messages), tools=TOOLS, digest=b"%d" % len(self.records)
        )
        with ThreadPoolExecutor(1) as pool:
            prompts = Prompts(self.codec, MatchPolicy(), METRICS, pool)
            prepared = asyncio.run(prompts.prepare(self.tree, request, WINDOW))
        parser = self.codec.parser(prepared.ids, TOOLS)
        parser.feed(made)
        _, reply = parser.finish()
        before = sum(map(len, self.sampled))
        record = TurnCommitted(
            at=0.0,
            turn=f"t{len(self.tree)}",
            parent=prepared.parent,
            fork=prepared.fork,
            digest=request.digest,
            context=pack(prepared.ids[prepared.known :]),
            ids=pack(made),
            logprobs=pack(array("f", [-float(before + place + 1) for place in range(len(made))])),
            versions=((len(self.records), 0, len(made)),) if made else (),
            finish=finish,
            reply=reply,
            prompt_key=prepared.match.prompt_key,
            head_key=prepared.match.head_key,
            blocks=prepared.match.blocks,
            prompt_tokens=len(prepared.ids),
        )
        self.tree.apply(record)
        self.prompts.append(prepared.ids)
        self.asked.append(list(messages))
        self.sampled.append(made)
        self.records.append(record)
        return record


def play(codec: Subject, conversation: Sequence[str | Ids], *, echoes_thoughts: bool) -> Played | None:
    """A client that sends back what it was told, with or without the thoughts. What the model samples is given, or
    written as the template would. None where that cannot write it behind its own generation prompt."""
    played, messages = Played(codec), [user("question 0")]
    for number, does in enumerate(conversation):
        made = written(codec, _meant(number, does)) if isinstance(does, str) else does
        if not made:
            return None
        record = played.turn(messages, made)
        messages += [echo(record, thoughts=echoes_thoughts), *following(record, number)]
    return played


def _meant(number: int, does: str) -> Message:
    thought = f"I think about {number}."
    if does == ANSWERS:
        return Message("assistant", (TextPart(f"answer {number}"),), thought)
    return Message(
        "assistant", (), thought, (ToolCall("call_0", "buy", f'{{"item": "kiwi", "n": {number}}}'),)
    )


def echo(record: TurnCommitted, *, thoughts: bool) -> Message:
    """The turn as its client sends it back."""
    reply = record.reply
    calls = tuple(
        ToolCall(call_id(record.turn, at), call.name, call.arguments)
        for at, call in enumerate(reply.tool_calls)
    )
    text = (TextPart(reply.text),) if reply.text else ()
    return Message("assistant", text, reply.reasoning or None if thoughts else None, calls)


def following(record: TurnCommitted, number: int) -> list[Message]:
    """What comes behind the turn: its calls' results, or the next user."""
    results = [
        Message(
            "tool", (TextPart(f"result {number}"),), tool_call_id=call_id(record.turn, at), name=call.name
        )
        for at, call in enumerate(record.reply.tool_calls)
    ]
    return results or [user(f"question {number + 1}")]
