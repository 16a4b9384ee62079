"""Families of the `renderers` package behind our seam: same ids as the package's own calls, same parse as ours."""

from __future__ import annotations

import json
import re
from array import array
from typing import Any

import pytest

from sandgate.contract.errors import BadRequest, Unsupported
from sandgate.contract.fork_reason import ForkReason
from sandgate.contract.trajectory import Ids
from sandgate.gateway.conversation.messages import (
    ImagePart,
    Message,
    TextPart,
    Tool,
    ToolCall,
    ToolChoice,
    TurnRequest,
)
from sandgate.gateway.tokens.history_check import History
from sandgate.gateway.tokens.parity import TOOLS, difference
from sandgate.gateway.tokens.probe_conversations import assistant, system, user
from sandgate.gateway.tokens.renderers_codec import SUFFIX_IDS, FamilyCodec, FamilyError, family_of
from sandgate.gateway.tokens.template_values import message_dict, tools_json
from tests.gateway.tokens.histories import ANSWERS, play
from tests.gateway.tokens.test_templates import CONVERSATIONS, split
from tests.gateway.tokens.zoo import FAMILY, zoo

FAMILIES = sorted({*FAMILY} - {"trl/gptoss", "trl/llama3_2", "trl/deepseekv3"})
"""Templates whose family can be made here. gpt-oss needs a vocabulary file from the network, Llama 3.2 is pinned to its
template's date, and the DeepSeek family is the one without thinking."""

SYSTEM_LATE = "a system message behind the user (Claude Code): renderer .* refuses"
DIFFERENT = {
    "trl/qwen3_instruct_2507": "a thought before a call: .*I look.",  # the family of Qwen3, which thinks
    "trl/qwen3_8": "a user who quotes a tool's answer: .* No user query found",
    "trl/glm4moe": "words and two calls, answered in the other order: .*</tool_call><tool_call>",
    "trl/nemotron_3_nano": SYSTEM_LATE,
    "trl/nemotron_3_super": SYSTEM_LATE,
    "trl/nemotron_3_ultra": SYSTEM_LATE,
    "trl/nemotron_3_5_lightning": SYSTEM_LATE,
}
"""What the family of a template renders otherwise than the template, or refuses."""
EQUAL = [name for name in FAMILIES if name not in DIFFERENT]


CONVERSATIONS_OF_USERS = (ANSWERS,) * 3


def family(name: str, history: History = "sampled") -> FamilyCodec:
    specimen = zoo()[name]
    return FamilyCodec(FAMILY[name], specimen.vocab, eos_ids=specimen.eos_ids, history=history)


def own_bridge(
    codec: FamilyCodec, prompt: Ids, response: Ids, tail: tuple[Message, ...], tools: tuple[Tool, ...]
) -> Any:
    """The package's own call, with everything as lists."""
    made = codec._renderer.bridge_to_next_turn(
        prompt.tolist(),
        response.tolist(),
        [codec.words.message(message_dict(m)) for m in tail],
        tools=codec.words.tools(tools, tools_json(tools)),
    )
    return None if made is None else made.token_ids


@pytest.mark.parametrize("name", EQUAL)
def test_the_family_renders_what_the_template_renders(name: str) -> None:
    specimen = zoo()[name]
    assert difference(family(name), specimen.template(), specimen.vocab) == ""


@pytest.mark.parametrize("name", DIFFERENT)
def test_a_family_that_renders_otherwise_or_refuses_what_the_template_takes_is_not_confirmed(
    name: str,
) -> None:
    specimen = zoo()[name]
    found = difference(family(name), specimen.template(), specimen.vocab)
    assert re.match(re.escape(DIFFERENT[name]).replace(r"\.\*", ".*"), found), found


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("history", ["sampled", "template"])
def test_the_end_of_a_long_prompt_gives_the_bridge_that_all_of_it_gives(name: str, history: History) -> None:
    codec = family(name, history)
    for messages, tools in CONVERSATIONS.values():
        before, _, tail = split(messages)
        prompt = codec.render(
            (system("word " * 3 * SUFFIX_IDS), *(m for m in before if m.role != "system")), tools
        )
        for said, closed in (("Hm.", True), ("Hm.", False), ("<think>\nHm", False), ("", True)):
            response = codec.vocab.encode(said) + array("i", codec.stop_ids[:1] if closed else [])
            found = codec._made(codec._tail_of(prompt), response, tail, tools)
            whole = own_bridge(codec, prompt, response, tail, tools)
            if found is not None:
                assert (prompt + response + found).tolist() == whole
            elif history == "sampled":
                kept = whole is not None and array("i", whole)[: len(prompt + response)] == prompt + response
                assert not kept


@pytest.mark.parametrize("name", FAMILIES)
def test_long_prompts_are_not_copied_for_a_bridge(name: str) -> None:
    codec = family(name)
    prompt = codec.render((user("word " * 5 * SUFFIX_IDS),), ())
    assert 0 < len(codec._tail_of(prompt)) <= SUFFIX_IDS


@pytest.mark.parametrize("name", FAMILIES)
def test_sampled_history_bridges_users_and_tools(name: str) -> None:
    codec = family(name)
    tools_too = () if "gemma" in name else ("a tool answer",)  # Gemma wants to see a call before an answer
    for conversation in ("talk", "a thought", *tools_too):
        messages, tools = CONVERSATIONS[conversation]
        before, _, tail = split(messages)
        prompt = codec.render(before, tools)
        response = codec.vocab.encode("Hm.")
        found = codec.bridge(prompt, response, tail, tools, closed=False)
        assert not isinstance(found, ForkReason), (conversation, found)
        assert set(found[:2]) & set(
            codec.stop_ids
        )  # where the prompt had opened a thought, that is closed first


TURNS = (
    "Hello.",
    "<think>\nHm.\n</think>\n\nHello.",
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn", "days": 2}}\n</tool_call>',
    'I look.\n\n<tool_call>\n{"name": "weather", "arguments": {"city": "Bonn"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>',
    "<tool_call>\n<function=weather>\n<parameter=city>\nBonn\n</parameter>\n<parameter=days>\n2\n</parameter>\n"
    "</function>\n</tool_call>",
    "<think>\nI look.\n</think>\n\n<tool_call>\n<function=weather>\n<parameter=city>\n12\n</parameter>\n</function>\n"
    "</tool_call>",
    "<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Bonn</arg_value>\n<arg_key>days</arg_key>\n"
    "<arg_value>2</arg_value>\n</tool_call>",
    "<think>cut",
    "<|channel>thought\nHm.\n<channel|>Hello.",
    '<|tool_call>call:weather{city:<|"|>Bonn<|"|>,days:2}<tool_call|>',
    '<|channel>thought\nI look.\n<channel|>I look. <|tool_call>call:weather{city:<|"|>12<|"|>}<tool_call|>'
    '<|tool_call>call:weather{city:<|"|>{"a": [1,2]}<|"|>,days:-3}<tool_call|>',
)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("said", TURNS)
def test_our_parser_reads_what_the_familys_own_reads(name: str, said: str) -> None:
    codec = family(name)
    if name == "trl/glm4moe" and "<think>" not in said and "<arg_key>" not in said:
        said = "<think></think>" + said  # that family takes a turn without any mark for one long thought
    prompt = codec.render((user("Weather?"),), TOOLS)
    response = codec.vocab.encode(said) + array("i", codec.stop_ids[:1])
    parser = codec.parser(prompt, TOOLS)
    parser.feed(response)
    _, reply = parser.finish()
    own = codec._renderer.parse_response(
        response.tolist(), tools=tools_json(TOOLS), prompt_ids=prompt.tolist()
    )
    calls = [call for call in own.tool_calls if call.status.value == "ok"]
    assert [call.name for call in reply.tool_calls] == [call.name for call in calls]
    assert [json.loads(call.arguments) for call in reply.tool_calls] == [call.arguments for call in calls]
    assert reply.reasoning.strip() == (own.reasoning_content or "").strip()
    if len(calls) == len(own.tool_calls):
        assert reply.text.strip() == own.content.strip()


def test_a_family_whose_markup_is_not_known_here_is_read_at_the_end_of_the_turn() -> None:
    codec = family("trl/gemma4_v5")
    codec.grammar = None
    prompt = codec.render((user("Hi"),), TOOLS)
    said = codec.vocab.encode('<|tool_call>call:weather{city:<|"|>Bonn<|"|>}<tool_call|>')
    parser = codec.parser(prompt, TOOLS)
    assert parser.feed(said) == []
    deltas, reply = parser.finish()
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("weather", '{"city":"Bonn"}')]
    assert len(deltas) == 1
    plain = codec.parser(prompt, TOOLS)
    plain.feed(codec.vocab.encode("Hello END"))
    assert plain.finish(stopped_on="END")[1].text == "Hello "


def test_tokens_that_are_not_the_familys_are_refused() -> None:
    with pytest.raises(FamilyError, match="not found"):
        FamilyCodec("qwen3", zoo()["trl/llama3_2"].vocab)


def test_images_and_refusals_are_the_callers_error() -> None:
    codec = family("trl/qwen3")
    with pytest.raises(Unsupported):
        codec.render((Message(role="user", parts=(ImagePart("https://x/y.png"),)),), ())
    with pytest.raises(BadRequest, match="refuses"):
        codec.render((), ())


NO_OBJECTS = {
    "words": "not json",
    "an object that was cut": '{"city": "Bonn"',
    "a list": '["Bonn"]',
    "a text": '"Bonn"',
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("case", NO_OBJECTS)
def test_arguments_that_are_no_object_are_shown_or_refused_and_never_left_out(name: str, case: str) -> None:
    specimen, codec = zoo()[name], family(name)
    call = ToolCall("call_1", "weather", NO_OBJECTS[case])
    answer = Message(role="tool", parts=(TextPart("what?"),), tool_call_id=call.id)
    messages = (user("Weather?"), assistant("", (call,)), answer)
    try:
        text = specimen.template().render(messages, TOOLS)
    except BadRequest:
        text = ""
    if text:
        assert codec.decode(codec.render(messages, TOOLS)) == text
    else:
        with pytest.raises(BadRequest, match=r"messages\[1\].tool_calls\[0\].function.arguments"):
            codec.render(messages, TOOLS)


def test_a_call_without_arguments_is_shown_without_any() -> None:
    codec = family("trl/qwen3_5_think")
    call = ToolCall("call_1", "weather", "")
    assert "<function=weather>\n</function>" in codec.decode(
        codec.render((user("Weather?"), assistant("", (call,))), TOOLS)
    )


def test_a_turn_that_another_token_ended_is_not_bridged() -> None:
    codec = family("trl/qwen3")
    prompt = codec.render((user("Hi"),), ())
    assert codec.bridge(prompt, codec.vocab.encode("Hm."), (user("?"),), (), closed=True) == (
        ForkReason.TEMPLATE_NOT_ADDITIVE
    )


@pytest.mark.parametrize(("history", "forks"), [("sampled", 0), ("template", 2)])
def test_history_template_forks_where_the_family_drops_thoughts(history: History, forks: int) -> None:
    played = play(family("trl/qwen3", history), CONVERSATIONS_OF_USERS, echoes_thoughts=False)
    assert played is not None
    assert played.forks.total() == forks


def test_names_are_mapped_without_importing_the_package_for_plain_folders() -> None:
    assert family_of(("/models/x", "x")) is None
    assert family_of(("./Qwen/Qwen3-8B",)) is None
    assert family_of(("Qwen/Qwen3-8B",)) == "qwen3"
    assert family_of(("nobody/nothing",)) is None


def test_a_family_can_be_forced_to_call() -> None:
    request = TurnRequest(model="m", messages=(), tools=TOOLS, tool_choice=ToolChoice("required"))
    made = family("trl/qwen3").constraint(array("i"), request)
    assert made is not None
    assert "<tool_call>" in made["structural_tag"]
    with pytest.raises(Unsupported, match="tool_choice"):
        family("trl/gemma4_v5").constraint(array("i"), request)


def test_a_tool_round_is_bridged_to_what_the_family_renders() -> None:
    codec = family("trl/qwen3_instruct_2507")
    messages, tools = CONVERSATIONS["words and two calls"]
    before, _, tail = split(messages)
    prompt, full = codec.render(before, tools), codec.render(messages, tools)
    closer = next(at for at in range(len(prompt), len(full)) if full[at] in codec.stop_ids)
    response = full[len(prompt) : closer + 1]
    found = codec.bridge(prompt, response, tail, tools, closed=True)
    assert not isinstance(found, ForkReason)
    assert prompt + response + found == full
