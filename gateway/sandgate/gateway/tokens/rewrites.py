"""History policy `template`: does the template render the past, with this tail behind it, as it was sampled? (pure)

The codec sees ids, not the messages of the path. So it answers "no" unless two things are shown: the template keeps
reasoning and calls of earlier turns when such a tail comes (on a known conversation), and the last turn, parsed and
rendered again, gives its own ids. A "no" is safe: the core then renders in full and compares ids itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sandgate.contract.errors import BadRequest
from sandgate.contract.trajectory import Ids
from sandgate.gateway.conversation.messages import Message, Tool, ToolCall
from sandgate.gateway.tokens.bridge import Tail
from sandgate.gateway.tokens.known import assistant, user

if TYPE_CHECKING:
    from sandgate.gateway.tokens.codec import TemplateCodec

CALL_IDS = tuple(f"call_0000000000000000000{n:05d}" for n in range(64))
"""Ids for the calls of a parsed turn, in the gateway's form; no template that renders ids is bridged by them."""


def rewritten(
    codec: TemplateCodec,
    prompt: Ids,
    response: Ids,
    tail: Sequence[Message],
    tools: Sequence[Tool],
    proved: Tail,
    *,
    closed: bool,
) -> bool:
    """True unless it is shown that the template, asked for everything, would give `prompt + response + tail`."""
    try:
        return not (
            _keeps_earlier(codec, tail, tools)
            and _renders_back(codec, prompt, response, tail, tools, proved, closed=closed)
        )
    except BadRequest:
        return True


def _keeps_earlier(codec: TemplateCodec, tail: Sequence[Message], tools: Sequence[Tool]) -> bool:
    """Earlier reasoning is rendered with the tail as it is without."""
    past = (
        user("q1"),
        assistant("a1", reasoning="zkthought"),
        user("q2"),
        assistant("a2", reasoning="zksecond"),
    )
    without = codec.template.render(past, tools, generation_prompt=False)
    upto = without.find("a2")
    return codec.template.render((*past, *tail), tools).startswith(without[: upto + 2])


def _renders_back(
    codec: TemplateCodec,
    prompt: Ids,
    response: Ids,
    tail: Sequence[Message],
    tools: Sequence[Tool],
    proved: Tail,
    *,
    closed: bool,
) -> bool:
    parser = codec.parser(prompt, tools)
    parser.feed(response)
    _, reply = parser.finish()
    if reply.malformed or len(reply.tool_calls) > len(CALL_IDS):
        return False
    answered = [message.tool_call_id or "" for message in tail if message.role == "tool"]
    ids = [*answered, *CALL_IDS[len(answered) :]]
    calls = [ToolCall(i, call.name, call.arguments) for i, call in zip(ids, reply.tool_calls, strict=False)]
    question = user("zkq")
    said = assistant(reply.text, calls, reply.reasoning or None)
    before = codec.render((question,), tools)
    expected = before + response + (proved.ids[1:] if closed else proved.ids)
    return codec.render((question, said, *tail), tools) == expected
