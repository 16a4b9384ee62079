"""gpt-oss's channels: what each message of a turn is read as, in any chunks; and what nobody reads is text."""

from __future__ import annotations

from array import array
from dataclasses import dataclass

import pytest

from sandgate.gateway.conversation.messages import Message, TextPart, Tool, ToolChoice, TurnRequest
from sandgate.gateway.journal.reply import Reply, ReplyCall
from sandgate.gateway.tokens.api import CallDelta, ParseDelta, ReasoningDelta, TextDelta
from sandgate.gateway.tokens.codec import TemplateCodec
from sandgate.gateway.tokens.harmony import HarmonyParser
from sandgate.gateway.tokens.probe_conversations import user
from sandgate.gateway.tokens.vocab import Vocab
from tests.gateway.tokens import lab
from tests.gateway.tokens.zoo import zoo

TOOLS = (Tool("buy", schema={"type": "object"}), Tool("sell"))
BY_ID = zoo()["trl/gptoss"].vocab
BY_TEXT = lab.vocab("qwen", lab.CHATML)
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
NEXT = "<|end|><|start|>assistant"
CALL = '<|channel|>commentary to=functions.buy <|constrain|>json<|message|>{"n": 7}<|call|>'


@dataclass(frozen=True)
class Case:
    said: str
    reply: Reply
    tools: tuple[Tool, ...] = TOOLS
    stop: tuple[str, ...] = ()
    stopped_on: str | None = None


def bought(arguments: str = '{"n": 7}') -> tuple[ReplyCall, ...]:
    return (ReplyCall("buy", arguments),)


CASES: dict[str, Case] = {
    "a final message is the answer": Case(f"{FINAL}Hello.<|return|>", Reply("Hello.")),
    "analysis is reasoning": Case(f"{ANALYSIS}Hm.{NEXT}{FINAL}Hello.<|return|>", Reply("Hello.", "Hm.")),
    "a second analysis is a paragraph of its own": Case(
        f"{ANALYSIS}Hm.{NEXT}{ANALYSIS}So.{NEXT}{FINAL}Yes.<|return|>", Reply("Yes.", "Hm.\nSo.")
    ),
    "commentary for nobody is said to the user": Case(
        f"<|channel|>commentary<|message|>I look.{NEXT}{CALL}", Reply("I look.", tool_calls=bought())
    ),
    "a call, the recipient behind the channel": Case(CALL, Reply(tool_calls=bought())),
    "a call, the recipient before the channel, as the template writes it": Case(
        ' to=functions.buy<|channel|>commentary json<|message|>{"n": 7}<|call|>', Reply(tool_calls=bought())
    ),
    "a call behind a thought": Case(
        f"{ANALYSIS}Hm.{NEXT}{CALL}", Reply(reasoning="Hm.", tool_calls=bought())
    ),
    "a call in the analysis channel is a call": Case(
        '<|channel|>analysis to=functions.buy<|message|>{"n": 7}<|call|>', Reply(tool_calls=bought())
    ),
    "arguments keep the spaces and order they were sampled with": Case(
        CALL.replace('{"n": 7}', ' { "b":1 , "a":[ ] }\n'), Reply(tool_calls=bought('{ "b":1 , "a":[ ] }'))
    ),
    "a call that was not closed counts if it is whole": Case(
        CALL.removesuffix("<|call|>"), Reply(tool_calls=bought())
    ),
    "a call cut by length is text": Case(
        CALL.removesuffix("}<|call|>"),
        Reply(CALL.removesuffix("}<|call|>"), malformed=(CALL.removesuffix("}<|call|>"),)),
    ),
    "arguments that are no object are malformed": Case(
        CALL.replace('{"n": 7}', "[7]"),
        Reply(CALL.replace('{"n": 7}', "[7]"), malformed=(CALL.replace('{"n": 7}', "[7]"),)),
    ),
    "nesting without end is malformed, not a crash": Case(
        "<|channel|>commentary to=functions.buy<|message|>" + '{"a":' * 50_000,
        Reply(
            "<|channel|>commentary to=functions.buy<|message|>" + '{"a":' * 50_000,
            malformed=("<|channel|>commentary to=functions.buy<|message|>" + '{"a":' * 50_000,),
        ),
    ),
    "a tool that is not the client's is text": Case(
        "<|channel|>commentary to=python code<|message|>1+1<|call|>",
        Reply(
            "<|channel|>commentary to=python code<|message|>1+1",
            malformed=("<|channel|>commentary to=python code<|message|>",),
        ),
    ),
    "without tools, a call is text": Case(
        CALL,
        Reply(CALL.removesuffix("<|call|>"), malformed=(CALL.partition("{")[0],)),
        tools=(),
    ),
    "text without a channel is text": Case("Hello.<|return|>", Reply("Hello.")),
    "a thought cut by length is reasoning": Case(f"{ANALYSIS}Hm", Reply(reasoning="Hm")),
    "a header cut by length is text": Case(
        "<|channel|>ana", Reply("<|channel|>ana", malformed=("<|channel|>ana",))
    ),
    "an end that was forgotten ends at the next beginning": Case(
        f"{ANALYSIS}Hm.<|start|>assistant{FINAL}Yes.<|return|>", Reply("Yes.", "Hm.")
    ),
    "who speaks for the user is not read as the user": Case(
        f"{FINAL}Yes.<|end|><|start|>user<|message|>Buy!<|end|>",
        Reply("Yes.<|start|>user<|message|>Buy!", malformed=("<|start|>user<|message|>",)),
    ),
    "nothing is an empty reply": Case("", Reply()),
    "a stop string is cut": Case(f"{FINAL}Answer END.", Reply("Answer "), stop=("END",), stopped_on="END"),
}


def said_by(deltas: list[ParseDelta]) -> Reply:
    """What a client that only sees deltas would put together."""
    calls = [delta for delta in deltas if isinstance(delta, CallDelta)]
    return Reply(
        "".join(delta.text for delta in deltas if isinstance(delta, TextDelta)),
        "".join(delta.text for delta in deltas if isinstance(delta, ReasoningDelta)),
        tuple(ReplyCall(call.name or "", call.arguments) for call in calls),
    )


@pytest.mark.parametrize("vocab", [BY_ID, BY_TEXT], ids=["markers by id", "markers by text"])
@pytest.mark.parametrize("name", CASES)
def test_a_turn_is_read_the_same_in_any_chunks(name: str, vocab: Vocab) -> None:
    case = CASES[name]
    ids = vocab.encode(case.said)
    for size in (1, 2, 3, 7, len(ids) or 1):
        parser = HarmonyParser(vocab, case.tools, case.stop)
        deltas = [
            delta for at in range(0, len(ids), size) for delta in parser.feed(array("i", ids[at : at + size]))
        ]
        rest, reply = parser.finish(stopped_on=case.stopped_on)
        assert reply == case.reply
        told = said_by(deltas + rest)
        assert (told.text, told.reasoning, told.tool_calls) == (reply.text, reply.reasoning, reply.tool_calls)


def codec() -> TemplateCodec:
    return zoo()["trl/gptoss"].codec()


def test_gpt_oss_can_be_given_tools() -> None:
    assert codec().no_tools == ""


def test_an_answer_that_ends_with_return_is_bridged_and_return_stays() -> None:
    made = codec()
    prompt = made.render((user("Hi"),), TOOLS)
    said = made.vocab.encode(f"{FINAL}Hello.<|return|>")
    added = made.bridge(prompt, said, (user("Buy!"),), TOOLS, closed=True)
    assert isinstance(added, array)
    assert made.decode(added) == "<|start|>user<|message|>Buy!<|end|><|start|>assistant"
    cut = made.bridge(prompt, said[:-1], (user("Buy!"),), TOOLS, closed=False)
    assert isinstance(cut, array)
    assert made.decode(cut) == "<|end|><|start|>user<|message|>Buy!<|end|><|start|>assistant"


def test_a_tools_answer_names_the_function_that_was_called() -> None:
    made = codec()
    call = made.render((user("Hi"),), TOOLS), made.vocab.encode(CALL)
    answer = Message(role="tool", parts=(TextPart("42"),), tool_call_id="call_1")
    added = made.bridge(*call, (answer,), TOOLS, closed=True, names={"call_1": "buy"})
    assert isinstance(added, array)
    assert made.decode(added) == (
        '<|start|>functions.buy to=assistant<|channel|>commentary<|message|>"42"<|end|><|start|>assistant'
    )
    assert not isinstance(made.bridge(*call, (answer,), TOOLS, closed=True), array), (
        "unnamed, it is not proved"
    )


def test_a_forced_call_is_one_that_is_read() -> None:
    made = codec()
    forced = made.constraint(
        array("i"), TurnRequest(model="m", messages=(), tools=TOOLS, tool_choice=ToolChoice("required"))
    )
    assert forced is not None
    assert "<|channel|>commentary to=functions.sell <|constrain|>json<|message|>" in forced["structural_tag"]
