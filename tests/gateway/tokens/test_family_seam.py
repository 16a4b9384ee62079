"""What a family's bridge adds is what its render has there, or the turn forks."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from sandgate.contract.errors import BadRequest
from sandgate.contract.fork_reason import ForkReason
from sandgate.contract.trajectory import Ids
from sandgate.gateway.conversation.messages import Message, TextPart, Tool, ToolCall
from sandgate.gateway.tokens import renderers_codec
from sandgate.gateway.tokens.probe_conversations import assistant, system, user
from sandgate.gateway.tokens.renderers_codec import FamilyCodec
from tests.gateway.tokens.test_renderers_codec import FAMILIES, family
from tests.gateway.tokens.zoo import zoo
from tests.support.gateway import gateway

TOOLS = (Tool("balance"), Tool("delete"))
CALLS = (ToolCall("call_1", "balance", '{"k": "alice"}'), ToolCall("call_2", "delete", '{"k": "bob"}'))
NAMES = {call.id: call.name for call in CALLS}
CALLED = assistant("", CALLS)


def answer(call_id: str, text: str) -> Message:
    return Message(role="tool", parts=(TextPart(text),), tool_call_id=call_id)


FIRST, SECOND, UNKNOWN = answer("call_1", "42 EUR"), answer("call_2", "deleted"), answer("call_3", "what?")
BRIEF = Message(role="developer", parts=(TextPart("Be brief."),))
TAILS: dict[str, tuple[Message, tuple[Message, ...]]] = {
    "a user": (assistant("Hello."), (user("And now?"),)),
    "answers": (CALLED, (FIRST, SECOND)),
    "answers in the other order": (CALLED, (SECOND, FIRST)),
    "an answer to the second call only": (CALLED, (SECOND,)),
    "an answer to no call": (CALLED, (FIRST, UNKNOWN)),
    "answers and a user": (CALLED, (SECOND, FIRST, user("And now?"))),
    "a user instead of answers": (CALLED, (user("Stop."),)),
    "a user before the answers": (CALLED, (user("Hm."), FIRST, SECOND)),
    "a late system message": (assistant("Hello."), (system("Be brief."), user("And now?"))),
    "a late developer message": (assistant("Hello."), (BRIEF, user("And now?"))),
    "a system message alone": (assistant("Hello."), (system("Be brief."),)),
    "a system message behind answers": (CALLED, (FIRST, SECOND, system("Be brief."))),
}


@functools.cache
def codec_of(name: str) -> FamilyCodec:
    """That of the zoo, or one that sorts answers by their calls."""
    if name != "glm-5.3":
        return family(name)
    flash = zoo()["llama.cpp/GLM-4.7-Flash"]
    return FamilyCodec(name, flash.vocab, eos_ids=flash.eos_ids)


def rendered(codec: FamilyCodec, said: Message, tail: tuple[Message, ...]) -> tuple[Ids, Ids, Ids] | None:
    """A prompt, the turn behind it and what follows its end, as the family renders all of it; None if it does not."""
    try:
        asked, whole = codec.render((user("q"),), TOOLS), codec.render((user("q"), said, *tail), TOOLS)
    except BadRequest:
        return None
    start, at = codec._stop_behind(asked, whole)
    return None if at is None else (whole[:start], whole[start : at + 1], whole[at + 1 :])


@pytest.mark.parametrize("name", [*FAMILIES, "glm-5.3"])
@pytest.mark.parametrize("case", TAILS)
def test_a_family_bridges_a_tail_to_what_it_renders_or_forks(name: str, case: str) -> None:
    codec, (said, tail) = codec_of(name), TAILS[case]
    whole = rendered(codec, said, tail)
    prompt = whole[0] if whole else codec.render((user("q"),), TOOLS)
    response = whole[1] if whole else codec.vocab.encode("Hello.") + array("i", codec.stop_ids[:1])
    names = NAMES if said.tool_calls else {}
    found = codec.bridge(prompt, response, tail, TOOLS, closed=True, names=names)
    if case in ("a user", "answers"):
        assert not isinstance(found, ForkReason)
    assert isinstance(found, ForkReason) or (whole and codec.decode(found) == codec.decode(whole[2]))


@pytest.mark.parametrize("tail", [(FIRST, SECOND), (SECOND, FIRST), (SECOND,)])
async def test_gemma_shows_an_answer_under_the_function_that_it_is_of(tail: Sequence[Message]) -> None:
    codec = family("trl/gemma4_v5")
    said = "".join(f'<|tool_call>call:{name}{{k:<|"|>x<|"|>}}<tool_call|>' for name in NAMES.values())
    script = [[*codec.vocab.encode(f"{said}<|tool_response>")], [*codec.vocab.encode("ok<turn|>")]]
    async with gateway(script, model=codec) as running:
        agent = await running.session()
        tools = [{"type": "function", "function": {"name": tool.name}} for tool in TOOLS]
        called = await agent.ask({"role": "user", "content": "go"}, tools=tools)
        ids = {call["function"]["name"]: call["id"] for call in called["tool_calls"]}
        answers = [
            {"role": "tool", "tool_call_id": ids[NAMES[m.tool_call_id or ""]], "content": m.text}
            for m in tail
        ]
        await agent.ask({"role": "user", "content": "go"}, called, *answers, tools=tools)
        shown = codec.decode(running.engine.prompts[-1].ids)
        assert (await running.tree(agent))[-1]["fork"] is None
    wanted = [
        f'response:{NAMES[m.tool_call_id or ""]}{{value:<|"|>{m.text}<|"|>}}<tool_response|>' for m in tail
    ]
    assert shown.endswith("<|tool_response>" + "<|tool_response>".join(wanted))


class AsksNames:
    """A family as gpt-oss's, whose vocabulary cannot be had here: an answer is of the function that its `name` says."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def render_ids(self, messages: list[dict[str, Any]], **kwargs: Any) -> Any:
        return self._real.render_ids(self._told(messages), **kwargs)

    def bridge_to_next_turn(
        self, prompt: Any, response: Any, tail: list[dict[str, Any]], **kwargs: Any
    ) -> Any:
        return self._real.bridge_to_next_turn(prompt, response, self._told(tail), **kwargs)

    @staticmethod
    def _told(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [
            {**m, "content": f"functions.{m.get('name') or 'unknown'}: {m['content']}"}
            if m["role"] == "tool"
            else m
            for m in messages
        ]


def test_a_family_that_does_not_look_at_the_calls_is_told_the_function_of_each_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = renderers_codec._create
    monkeypatch.setattr(renderers_codec, "_create", lambda *args: AsksNames(made(*args)))
    codec = family("trl/qwen3")
    whole = rendered(codec, CALLED, (SECOND, FIRST))
    assert whole is not None
    prompt, response, rest = whole
    text = codec.decode(rest)
    assert text.index("functions.delete: deleted") < text.index("functions.balance: 42 EUR")
    assert codec.bridge(prompt, response, (SECOND, FIRST), TOOLS, closed=True, names=NAMES) == rest


ENDED: Mapping[str, tuple[str, Message, str | None]] = {
    "a user behind <|user|>": ("<|user|>", user("b"), "\nb<|assistant|>"),
    "a user behind <|endoftext|>, which no template writes": ("<|endoftext|>", user("b"), None),
    "a user behind <|observation|>, which begins a tool's answer": ("<|observation|>", user("b"), None),
    "an answer behind <|user|>": ("<|user|>", answer("call_1", "r"), None),
    "a turn that was cut gets no end that no template writes": ("", user("b"), "<|user|>\nb<|assistant|>"),
}


@pytest.mark.parametrize("case", ENDED)
def test_a_turn_of_glm_ends_as_the_template_ends_it_or_forks(case: str) -> None:
    codec, (end, tail, wanted) = family("trl/glm4moe"), ENDED[case]
    prompt = codec.render((user("q"),), TOOLS)
    response = codec.vocab.encode(f"\n<think></think>\nhi{end}")
    names = {"call_1": "balance"} if tail.role == "tool" else {}
    found = codec.bridge(prompt, response, (tail,), TOOLS, closed=bool(end), names=names)
    assert (None if isinstance(found, ForkReason) else codec.decode(found)) == wanted


def test_the_seams_of_many_shapes_are_not_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandgate.gateway.tokens.renderers_codec.SEAMS_KEPT", 2)
    codec = family("trl/qwen3")
    prompt, response = codec.render((user("q"),), ()), codec.vocab.encode("a<|im_end|>")
    for users in (1, 2, 3, 4):
        assert isinstance(codec.bridge(prompt, response, (user("b"),) * users, (), closed=True), array)
        assert len(codec._seams) <= 2
