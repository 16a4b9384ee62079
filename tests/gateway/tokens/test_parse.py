"""Sampled ids -> text, reasoning, tool calls: the same whatever the chunks, and deltas say what the reply says."""

from __future__ import annotations

import json
from array import array
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.gateway.journal.reply import Reply, ReplyCall
from sandgate.gateway.tokens.api import CallDelta, ParseDelta, ReasoningDelta, TextDelta
from sandgate.gateway.tokens.family_formats import FORMATS, Grammar
from sandgate.gateway.tokens.parse import TurnParser
from sandgate.gateway.tokens.vocab import Vocab
from tests.gateway.tokens import lab
from tests.gateway.tokens.parse_cases import CASES, ONE, THINK, TOOLS, Case, call

FORM = {form.name: form for _, form in FORMATS}
MARKS = (
    *("<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"),
    *("<|tool_call_argument_begin|>", "<|tool_call_end|>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>"),
    *(
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ),
    *(
        "<|tool_call|>",
        "<|/tool_call|>",
        "<minimax:tool_call>",
        "</minimax:tool_call>",
        "<arg_key>",
        "</arg_key>",
    ),
    *("<|tool_call>", "<tool_call|>", '<|"|>', "<|channel>", "<channel|>", "<tool_calls>", "</tool_calls>"),
    *(
        "<seed:tool_call>",
        "</seed:tool_call>",
        "<TOOLCALL>",
        "</TOOLCALL>",
        "<|tools_prefix|>",
        "<|tools_suffix|>",
    ),
    *("<|action_start|>", "<|action_end|>", "<|plugin|>", "<|function_call|>"),
    *("<|START_ACTION|>", "<|END_ACTION|>", "<|tool_call_start|>", "<|tool_call_end|>"),
)
BY_ID = lab.vocab("qwen", (*lab.CHATML, *MARKS), lab.QWEN_PLAIN)
"""Every marker is an added token."""
BY_TEXT = lab.vocab("qwen", lab.CHATML)
"""No marker is."""
SENTENCEPIECE = lab.vocab("metaspace-first", ("<s>", "</s>", *lab.CHATML, *MARKS), lab.QWEN_PLAIN)
VOCABS = {"markers by id": BY_ID, "markers by text": BY_TEXT, "metaspace": SENTENCEPIECE}


def parser_of(vocab: Vocab, case: Case) -> TurnParser:
    grammar = Grammar(FORM.get(case.form), case.think, bare=case.bare)
    return TurnParser(vocab, grammar, case.tools, case.stop, reasoning=case.reasoning)


def run(
    parser: TurnParser, ids: Sequence[int], size: int, stopped_on: str | None, *, whole: bool = True
) -> tuple[list[ParseDelta], Reply]:
    deltas: list[ParseDelta] = []
    for at in range(0, len(ids), size):
        deltas += parser.feed(array("i", ids[at : at + size]))
    rest, reply = parser.finish(stopped_on=stopped_on, whole=whole)
    return deltas + rest, reply


def said_by(deltas: Sequence[ParseDelta]) -> Reply:
    """What a client that only sees deltas would put together."""
    text, reasoning, calls = "", "", dict[int, list[str]]()
    for delta in deltas:
        if isinstance(delta, TextDelta):
            text += delta.text
        elif isinstance(delta, ReasoningDelta):
            reasoning += delta.text
        else:
            assert isinstance(delta, CallDelta)
            if delta.index not in calls:
                assert delta.name
                calls[delta.index] = [delta.name, ""]
            calls[delta.index][1] += delta.arguments
    assert list(calls) == list(range(len(calls)))
    return Reply(text, reasoning, tuple(ReplyCall(name, arguments) for name, arguments in calls.values()))


SAYABLE = [
    (name, kind)
    for kind in VOCABS
    for name, case in CASES.items()
    if kind != "metaspace" or not ("▁" in case.said or case.said.startswith(" "))
]
"""Metaspace vocabularies write a space for each ▁ and drop the first one of a text; no family has both."""


LONG = 10_000


@pytest.mark.parametrize(("name", "kind"), SAYABLE)
def test_a_turn_is_read_the_same_in_any_chunks(name: str, kind: str) -> None:
    case, vocab = CASES[name], VOCABS[kind]
    ids = vocab.encode(case.said)
    small = (1, 2, 3) if len(ids) < LONG else ()  # else millions of calls
    for size in (*small, 7, len(ids) or 1):
        deltas, reply = run(parser_of(vocab, case), ids, size, case.stopped_on, whole=case.whole)
        assert reply == case.reply
        told = said_by(deltas)
        calls = tuple(
            call(one.name, one.arguments) for one in reply.tool_calls
        )  # their ids are not for clients
        assert (told.text, told.reasoning, told.tool_calls) == (reply.text, reply.reasoning, calls)


def test_text_is_told_as_it_comes() -> None:
    parser = parser_of(BY_ID, CASES["text is text"])
    told = [parser.feed(array("i", [i])) for i in BY_ID.encode("one two three")]
    assert sum(bool(deltas) for deltas in told) > 3


def test_half_a_character_is_never_told() -> None:
    parser = parser_of(BY_ID, CASES["text is text"])
    for token in BY_ID.encode("🙂" * 5):
        for delta in parser.feed(array("i", [token])):
            assert isinstance(delta, TextDelta)
            assert "\ufffd" not in delta.text


def test_half_a_marker_is_never_told() -> None:
    parser = parser_of(BY_TEXT, CASES["one call"])
    told = [delta for token in BY_TEXT.encode(ONE) for delta in parser.feed(array("i", [token]))]
    assert not any(isinstance(delta, TextDelta) for delta in told)


def test_half_a_stop_string_is_never_told() -> None:
    parser = parser_of(BY_TEXT, CASES["a stop string is cut"])
    told = "".join(
        delta.text
        for token in BY_TEXT.encode("Answer: 4\nObserv")
        for delta in parser.feed(array("i", [token]))
        if isinstance(delta, TextDelta)
    )
    assert told == "Answer: 4"  # white space waits too: it may belong to markup


@pytest.mark.parametrize("kind", VOCABS)
@given(data=st.data())
def test_any_ids_are_read_and_text_is_what_the_tokenizer_decodes(kind: str, data: st.DataObject) -> None:
    vocab = VOCABS[kind]
    ids = data.draw(st.lists(st.integers(0, vocab.size - 1), max_size=60))
    size = data.draw(st.integers(1, 9))
    plain = TurnParser(vocab, Grammar(), ())
    deltas, reply = run(plain, ids, size, None)
    assert said_by(deltas).text == reply.text
    shown = [i for i in ids if i not in vocab.special_ids]
    if vocab.byte_level and len(shown) == len(ids):
        assert reply.text == vocab.decode(ids)
    for form in FORM.values():
        parser = TurnParser(vocab, Grammar(form, THINK), TOOLS)
        deltas, reply = run(parser, ids, size, None)
        told = said_by(deltas)
        calls = tuple(
            call(one.name, one.arguments) for one in reply.tool_calls
        )  # their ids are not for clients
        assert (told.text, told.reasoning, told.tool_calls) == (reply.text, reply.reasoning, calls)
        for made in reply.tool_calls:
            assert isinstance(json.loads(made.arguments), dict)


WORDS = (
    *(
        "<tool_call>",
        "</tool_call>",
        "<think>",
        "</think>",
        '{"name": "buy", "arguments": {}}',
        "{",
        "}",
        "a",
    ),
    *("\n", " ", "<function=buy>", "</function>", "<parameter=n>", "</parameter>", "STOP", "<|im_end|>"),
    *("<arg_key>", "</s>"),
)
MARKUP = st.lists(st.sampled_from(WORDS), max_size=14).map("".join)


@pytest.mark.parametrize("kind", ["markers by id", "markers by text"])
@given(said=MARKUP, cut=st.booleans(), form=st.sampled_from(sorted(FORM)), opened=st.booleans())
def test_any_markup_is_read_the_same_in_any_chunks(
    kind: str, said: str, cut: bool, form: str, opened: bool
) -> None:
    vocab = VOCABS[kind]
    case = Case(said, Reply(), form=form, reasoning=opened, stop=("STOP",))
    stopped_on = "STOP" if cut and said.endswith("STOP") else None
    ids = vocab.encode(said)
    if stopped_on and vocab.decode(ids).find("STOP") != len(said) - 4:
        stopped_on = None
    results = [run(parser_of(vocab, case), ids, size, stopped_on) for size in (1, 3, len(ids) or 1)]
    for deltas, reply in results:
        assert reply == results[0][1]
        told = said_by(deltas)
        calls = tuple(
            call(one.name, one.arguments) for one in reply.tool_calls
        )  # their ids are not for clients
        assert (told.text, told.reasoning, told.tool_calls) == (reply.text, reply.reasoning, calls)
        if stopped_on:
            assert "STOP" not in reply.text + reply.reasoning
