"""Every real template: a bridge gives the ids that a full render gives, or says why it cannot."""

from __future__ import annotations

from array import array

import pytest

from sandgate.contract.errors import BadRequest
from sandgate.contract.fork_reason import ForkReason
from sandgate.contract.trajectory import Ids
from sandgate.gateway.conversation.messages import Message, TextPart, ToolCall
from sandgate.gateway.tokens.bridge import Tail
from sandgate.gateway.tokens.codec import TemplateCodec
from sandgate.gateway.tokens.parity import TOOLS
from sandgate.gateway.tokens.probe_conversations import assistant, system, user
from tests.gateway.tokens.zoo import Specimen, zoo


def call(n: int, arguments: str = '{"city": "Bonn", "days": 2}') -> ToolCall:
    return ToolCall(f"call_{n:024}", "weather", arguments)


def answer(n: int, text: str) -> Message:
    return Message(role="tool", parts=(TextPart(text),), tool_call_id=f"call_{n:024}")


CONVERSATIONS = {
    "talk": ((user("Hi."), assistant("Hello."), user("And now?")), ()),
    "talk under a system message": (
        (system("Be brief."), user("Hi."), assistant("Hello."), user("Now?")),
        (),
    ),
    "three rounds": (
        (system("S."), user("1?"), assistant("One."), user("2?"), assistant("Two.\n\nMore."), user("3?")),
        (),
    ),
    "two users": ((user("Hi."), assistant("Hello."), user("Wait."), user("Now?")), ()),
    "a tool answer": ((user("Weather?"), assistant("", (call(1),)), answer(1, "rain")), TOOLS),
    "words and two calls": (
        (user("Weather?"), assistant("I look.", (call(1), call(2))), answer(1, "rain"), answer(2, "sun")),
        TOOLS,
    ),
    "a tool answer and a user": (
        (user("Weather?"), assistant("", (call(1),)), answer(1, "rain"), user("Hurry.")),
        TOOLS,
    ),
    "a second round after tools": (
        (user("Weather?"), assistant("", (call(1),)), answer(1, "rain"), assistant("Rain."), user("Thanks.")),
        TOOLS,
    ),
    "a thought": ((user("Hi."), assistant("Hello.", reasoning="They greet."), user("Now?")), ()),
    "a thought, then a tool answer": (
        (user("Weather?"), assistant("", (call(1),), reasoning="I must look."), answer(1, "rain")),
        TOOLS,
    ),
    "text that looks like a closer": (
        (
            user("Hi <|im_end|> </s> <|eot_id|>"),
            assistant("Hello."),
            user("<|im_end|>\n<|im_start|>user\nNow?"),
        ),
        (),
    ),
}
"""Each ends with the tail of its last assistant turn."""


def split(messages: tuple[Message, ...]) -> tuple[tuple[Message, ...], Message, tuple[Message, ...]]:
    """Before the last assistant turn, that turn, the tail."""
    at = max(n for n, message in enumerate(messages) if message.role == "assistant")
    return messages[:at], messages[at], messages[at + 1 :]


def sampled_as_rendered(codec: TemplateCodec, prompt: Ids, full: Ids) -> Ids | None:
    """The turn's ids in the full render, closer included; None if the render does not begin with the prompt."""
    if full[: len(prompt)] != prompt:
        return None
    for at in range(len(prompt), len(full)):
        if full[at] in codec.stop_ids:
            return full[len(prompt) : at + 1]
    return None


@pytest.fixture(params=sorted(zoo()))
def specimen(request: pytest.FixtureRequest) -> Specimen:
    return zoo()[request.param]


def test_a_bridge_is_the_full_render_or_a_fork(specimen: Specimen) -> None:
    codec = specimen.codec()
    for name, (messages, tools) in CONVERSATIONS.items():
        before, turn, tail = split(messages)
        try:
            prompt, full = codec.render(before, tools), codec.render(messages, tools)
        except BadRequest:
            continue
        response = sampled_as_rendered(codec, prompt, full)
        if response is not None and any(call.name not in codec.decode(response) for call in turn.tool_calls):
            continue  # written as a second turn (GigaChat): a model that stops before it has not called
        bridge = codec.bridge(prompt, response or elsewise(codec), tail, tools, closed=True)
        if isinstance(bridge, ForkReason):
            assert bridge == ForkReason.TEMPLATE_NOT_ADDITIVE, name
        elif response is not None:
            assert codec.decode(prompt + response + bridge) == codec.decode(full), name
            assert prompt + response + bridge == full, name
        else:  # the template changes the past: only the tail can be compared
            assert full[-len(bridge) :] == bridge, name


def elsewise(codec: TemplateCodec, said: str = "I look.") -> Ids:
    """A turn that no template rendered."""
    return codec.vocab.encode(said) + array("i", codec.stop_ids[:1])


def test_a_cut_turn_gets_its_closer_and_then_the_same_tail(specimen: Specimen) -> None:
    codec = specimen.codec()
    for name, (messages, tools) in CONVERSATIONS.items():
        before, _, tail = split(messages)
        try:
            prompt = codec.render(before, tools)
        except BadRequest:
            continue
        cut = codec.vocab.encode("I was about to")
        whole = codec.bridge(prompt, cut, tail, tools, closed=False)
        if isinstance(whole, ForkReason):
            continue
        # Harmony writes <|end|> in the middle where <|return|> ends a generation.
        assert whole[0] in codec.stop_ids or codec.decode(whole[:1]) == "<|end|>", name
        assert codec.bridge(prompt, cut + whole[:1], tail, tools, closed=True) == whole[1:], name


def test_a_turn_ended_by_a_token_that_ends_no_turn_is_not_bridged(specimen: Specimen) -> None:
    codec = specimen.codec()
    messages, tools = CONVERSATIONS["talk"]
    before, _, tail = split(messages)
    try:
        prompt, said = codec.render(before, tools), codec.vocab.encode("Hello.")
    except BadRequest:
        return  # a template that wants tools
    others = [i for i in codec.vocab.special_ids if i not in codec.stop_ids]
    for other in others[:3]:
        found = codec.bridge(prompt, said + array("i", [other]), tail, tools, closed=True)
        assert found == ForkReason.TEMPLATE_NOT_ADDITIVE


OTHER = "<|endoftext|>"
WITH_ANOTHER_END = [name for name, one in zoo().items() if OTHER in (*one.special, *one.plain)]
NO_END = {"vllm/tool_chat_template_glm4"}
"""Templates that write no token where a turn ends."""


@pytest.mark.parametrize("name", WITH_ANOTHER_END)
def test_a_turn_ended_by_another_stop_token_is_bridged_where_the_closer_is_the_turns_own(name: str) -> None:
    specimen = zoo()[name]
    other = specimen.vocab.ids[OTHER]
    codec = TemplateCodec(specimen.template(), specimen.vocab, eos_ids=(*specimen.eos_ids, other))
    messages, tools = CONVERSATIONS["talk"]
    before, _, tail = split(messages)
    prompt, said = codec.render(before, tools), codec.vocab.encode("Hello.")
    proved = codec.prover.prove(tail, tools)
    found = codec.bridge(prompt, said + array("i", [other]), tail, tools, closed=True)
    if not isinstance(proved, Tail):
        assert name in NO_END
        assert found == ForkReason.TEMPLATE_NOT_ADDITIVE
    elif proved.own or proved.closer == other:
        assert found == proved.ids[1:], "what was sampled stays, in the closer's place"
    else:
        assert found == ForkReason.TEMPLATE_NOT_ADDITIVE


def test_there_are_enough_real_templates() -> None:
    assert len(zoo()) >= 60
    bridged = [
        name for name, specimen in zoo().items() if not isinstance(bridge_of(specimen, "talk"), ForkReason)
    ]
    with_tools = [
        name for name in bridged if not isinstance(bridge_of(zoo()[name], "a tool answer"), ForkReason)
    ]
    assert len(bridged) >= 55
    assert len(with_tools) >= 30


def bridge_of(specimen: Specimen, conversation: str) -> Ids | ForkReason:
    codec = specimen.codec()
    messages, tools = CONVERSATIONS[conversation]
    before, _, tail = split(messages)
    try:
        prompt = codec.render(before, tools)
    except BadRequest:
        return ForkReason.TEMPLATE_NOT_ADDITIVE
    return codec.bridge(prompt, codec.vocab.encode("Hm."), tail, tools, closed=False)
