"""Any conversation, sent back through any of the distortions that clients were measured to make, in any protocol and
changing it in the middle, finds its place; each true edit forks, with its reason.

A distortion works on the bodies that go over the wire. Not here, because they are true rewrites: smolagents' calls told
as text, dspy's folded history, llama-index's and camel's dropped turns, compaction. Histories that the server keeps
are test_kept_responses' and test_responses_echoes'.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandgate.contract.fork_reason import ForkReason
from sandgate.gateway.conversation.messages import TurnRequest
from sandgate.gateway.journal.reply import Reply, ReplyCall
from sandgate.gateway.protocols.anthropic_blocks import UNPARSED
from tests.gateway.conversation.talk import Talk
from tests.gateway.conversation.test_any_protocol import (
    SCHEMA,
    SYSTEM,
    Answered,
    Json,
    Result,
    Step,
    decoded,
    told,
)
from tests.gateway.conversation.test_properties import REPLIES, TEXT, as_javascript, reprinted

CHAT, MESSAGES, RESPONSES = PATHS = ("/chat/completions", "/messages", "/responses")
STOP = "</code>"
BILLING = "x-anthropic-billing-header: cc_version=2.1; cch="
CACHE = {"cache_control": {"type": "ephemeral"}}


class Wire:
    """A request's body, and who may change what in it."""

    def __init__(self, path: str, steps: list[Step]) -> None:
        self.path = path
        self.body: Json = {"tools": [self._tool()]}
        self.said: list[Json] = []
        """Messages or items."""
        self.ids: dict[tuple[str, int], str] = {}
        self.answers: list[tuple[Reply, list[Json]]] = []
        """Of each answer what stands for it."""
        for step in steps:
            self._add(step)
        if path == MESSAGES:
            self.body["system"] = [{"type": "text", "text": SYSTEM}]
        else:
            self.said.insert(0, {"role": "system", "content": [{"type": self.text_type, "text": SYSTEM}]})
        self.body["input" if path == RESPONSES else "messages"] = self.said

    @property
    def text_type(self) -> str:
        return "input_text" if self.path == RESPONSES else "text"

    def _tool(self) -> Json:
        match self.path:
            case "/chat/completions":
                return {"type": "function", "function": {"name": "search", "parameters": SCHEMA}}
            case "/messages":
                return {"name": "search", "input_schema": SCHEMA}
        return {"type": "function", "name": "search", "parameters": SCHEMA}

    def _add(self, step: Step) -> None:
        match step:
            case str():
                self.said.append({"role": "user", "content": [{"type": self.text_type, "text": step}]})
            case Answered(_, reply):
                items = self._answer(step)
                self.answers.append((reply, items))
                self.said += items
            case Result(turn, index, text):
                self._result(self.ids[turn, index], text)

    def _answer(self, step: Answered) -> list[Json]:
        answer = told(self.path, step)
        match self.path:
            case "/chat/completions":
                items = [answer["choices"][0]["message"]]
                ids = [call["id"] for call in items[0].get("tool_calls", ())]
            case "/messages":
                items = [{"role": "assistant", "content": answer["content"]}]
                ids = [block["id"] for block in answer["content"] if block["type"] == "tool_use"]
            case _:
                items = answer["output"]
                ids = [item["call_id"] for item in items if item["type"] == "function_call"]
        self.ids |= {(step.turn, number): one for number, one in enumerate(ids)}
        return items

    def _result(self, call: str, text: str) -> None:
        content = [{"type": self.text_type, "text": text}]
        match self.path:
            case "/chat/completions":
                self.said.append({"role": "tool", "tool_call_id": call, "content": content})
            case "/messages":
                block = {"type": "tool_result", "tool_use_id": call, "content": content}
                if self.said[-1]["role"] == "user":  # the results of one turn are one message
                    self.said[-1]["content"].append(block)
                else:
                    self.said.append({"role": "user", "content": [block]})
            case _:
                self.said.append({"type": "function_call_output", "call_id": call, "output": content})

    def texts(self) -> Iterator[tuple[Json, str]]:
        """Where the texts of others than the model stand: (holder, its key)."""
        for message in self.said:
            if message.get("role") in ("user", "tool", "system", "developer"):
                yield message, "content"
                for block in message["content"] if isinstance(message["content"], list) else ():
                    if block.get("type") == "tool_result":
                        yield block, "content"
            elif message.get("type") == "function_call_output":
                yield message, "output"

    def calls(self) -> Iterator[tuple[Json, str]]:
        """Where arguments stand."""
        for _, items in self.answers:
            for item in items:
                for call in item.get("tool_calls") or ():
                    yield call["function"], "arguments"
                for block in item["content"] if self.path == MESSAGES else ():
                    if block["type"] == "tool_use":
                        yield block, "input"
                if item.get("type") == "function_call":
                    yield item, "arguments"

    def answer_texts(self) -> Iterator[tuple[Reply, Json, str]]:
        """Where the model's texts stand: (its answer, holder, key)."""
        for reply, items in self.answers:
            for item in items:
                if self.path == CHAT and item.get("content"):
                    yield reply, item, "content"
                elif isinstance(item.get("content"), list) and item.get("type") != "reasoning":
                    yield from (
                        (reply, part, "text")
                        for part in item["content"]
                        if part["type"] in ("text", "output_text")
                    )

    def decoded(self) -> TurnRequest:
        return decoded(self.path, self.body)


Distortion = Callable[[Wire, random.Random], None]


def no_content(wire: Wire, order: random.Random) -> None:
    for _, items in wire.answers:
        for item in items if wire.path == CHAT else ():
            if not item.get("content"):
                item["content"] = order.choice([None, "", []])
                if order.random() < 0.3 and item.get("tool_calls"):
                    del item["content"]


def bare_texts(wire: Wire, order: random.Random) -> None:
    for holder, key in wire.texts():
        parts = holder[key]
        if isinstance(parts, list) and len(parts) == 1 and "text" in parts[0] and order.random() < 0.5:
            holder[key] = parts[0]["text"]


def no_reasoning(wire: Wire, order: random.Random) -> None:
    for _, items in wire.answers:
        for item in items if wire.path != RESPONSES else ():
            for name in ("reasoning", "reasoning_content", "reasoning_details"):
                item.pop(name, None)
            if wire.path == MESSAGES:
                item["content"] = [block for block in item["content"] if block["type"] != "thinking"]
    if wire.path == RESPONSES:
        wire.said[:] = [item for item in wire.said if item.get("type") != "reasoning"]


def other_reasoning(wire: Wire, order: random.Random) -> None:
    """Renamed, stripped, or only its sealed form (and that of nobody)."""
    for _, items in wire.answers:
        for item in items:
            if wire.path == CHAT and "reasoning_content" in item:
                item[order.choice(["reasoning", "reasoning_text"])] = item.pop("reasoning_content").strip()
            elif item.get("type") == "reasoning":
                item.pop("content", None)
                item |= {"summary": [], "encrypted_content": "elsewhere"}
            elif wire.path == MESSAGES:
                for block in item["content"]:
                    if block["type"] == "thinking":
                        block |= {"thinking": "", "signature": "elsewhere"}


def arguments_anew(wire: Wire, order: random.Random) -> None:
    """Spaces, escapes, the order of keys, numbers as JavaScript prints them."""
    how = {"ascii_only": order.random() < 0.5, "javascript": order.random() < 0.5}
    for holder, key in wire.calls():
        value = holder[key]
        if broken(value):
            continue
        text = reprinted(
            value if isinstance(value, str) else json.dumps(value),
            order,
            indent=order.choice([None, 2]),
            **how,
        )
        holder[key] = text if isinstance(value, str) else as_javascript(json.loads(text))


def broken(arguments: Any) -> bool:
    """Whether the model wrote what is no object; Messages has a name for that."""
    if not isinstance(arguments, str):
        return [*arguments] == [UNPARSED]
    try:
        return not isinstance(json.loads(arguments), dict)
    except ValueError:
        return True


def arguments_repaired(wire: Wire, order: random.Random) -> None:
    """Claude Code, pydantic-ai, OpenHands, the AI SDK."""
    for holder, key in wire.calls():
        value = holder[key]
        if broken(value):
            instead: Json = order.choice(
                [
                    {},
                    {"INVALID_JSON": value},
                    {"__unparsedToolInput": {"raw": value, "len": 7}},
                    {"_openhands_malformed_tool_call": True},
                ]
            )
            holder[key] = json.dumps(instead) if isinstance(value, str) else instead


def ids_by_position(wire: Wire, order: random.Random) -> None:
    """agno."""
    names = {one: f"call_{number:024d}" for number, one in enumerate(wire.ids.values())}
    raw = json.dumps(wire.body)
    for one, name in names.items():
        raw = raw.replace(one, name)
    wire.body = json.loads(raw)
    wire.said = []  # nothing may be changed behind this


def cached_somewhere(wire: Wire, order: random.Random) -> None:
    for holder, key in wire.texts():
        if isinstance(holder[key], list) and holder[key] and order.random() < 0.5:
            holder[key][-1] |= CACHE
    if order.random() < 0.5:
        wire.body["tools"][-1] |= CACHE


def text_dropped(wire: Wire, order: random.Random) -> None:
    """crewai, agno, camel: beside a call."""
    for reply, items in wire.answers:
        if reply.tool_calls:
            for item in list(items):
                if wire.path == CHAT:
                    item["content"] = None
                elif wire.path == MESSAGES:
                    item["content"] = [block for block in item["content"] if block["type"] != "text"]
                elif item.get("type") == "message":
                    wire.said[:] = [one for one in wire.said if one is not item]


def stop_put_back(wire: Wire, order: random.Random) -> None:
    """OpenHands and smolagents: what was cut off."""
    for reply, holder, key in wire.answer_texts():
        if not reply.tool_calls and holder[key]:
            holder[key] += STOP + order.choice(["", "\n", ">"])


def outer_blanks(wire: Wire, order: random.Random) -> None:
    for _, holder, key in wire.answer_texts():
        if holder[key].strip():
            holder[key] = order.choice([str.strip, str.rstrip, lambda text: f"\n{text} "])(holder[key])


def developer(wire: Wire, order: random.Random) -> None:
    if wire.path != MESSAGES:
        wire.said[0]["role"] = "developer"


def users_merged(wire: Wire, order: random.Random) -> None:
    """Claude Code: what follows stands in the message before it."""
    out: list[Json] = []
    for message in wire.said:
        both = out and out[-1].get("role") == message.get("role") == "user"
        if both and isinstance(out[-1]["content"], list) and isinstance(message["content"], list):
            out[-1] = {**out[-1], "content": [*out[-1]["content"], *message["content"]]}
        else:
            out.append(message)
    wire.said[:] = out


def billed(wire: Wire, order: random.Random) -> None:
    """Claude Code, through whichever proxy: another header on each request."""
    block = {"type": "text", "text": f"{BILLING}{order.random()}"}
    if wire.path == MESSAGES and isinstance(wire.body["system"], list):
        wire.body["system"].insert(0, block)
    elif wire.path == CHAT and isinstance(wire.said[0]["content"], list):
        wire.said[0]["content"].insert(0, block)


def more_keys(wire: Wire, order: random.Random) -> None:
    """What SDKs keep of an answer, and send."""
    nulls = ("parsed", "refusal", "annotations", "provider_specific_fields", "status", "phase", "caller")
    for message in wire.said:
        message |= {name: None for name in nulls if name not in message and order.random() < 0.5}
        if order.random() < 0.5 and message.get("role") == "tool":
            message["name"] = "search"
        if wire.path == RESPONSES and message.get("type") in ("message", "function_call"):
            for name in ("id", "status"):
                if order.random() < 0.5:
                    message.pop(name, None)
        items = list(message.items())
        order.shuffle(items)
        message.clear()
        message.update(items)


DISTORTIONS: dict[str, Distortion] = {
    "content that is null, empty or missing": no_content,
    "outer white space": outer_blanks,
    "a stop string put back": stop_put_back,
    "text dropped beside calls": text_dropped,
    "reasoning renamed, stripped or sealed": other_reasoning,
    "reasoning dropped": no_reasoning,
    "arguments printed anew": arguments_anew,
    "arguments repaired": arguments_repaired,
    "developer for system": developer,
    "a billing header": billed,
    "cache_control": cached_somewhere,
    "users' messages merged": users_merged,
    "text without parts": bare_texts,
    "keys in any order, and more of them": more_keys,
    "ids by position": ids_by_position,
}
"""In the order in which they are made."""
LOSSY = {"text dropped beside calls", "arguments repaired"}
"""Known by the call ids alone: not together with ids by position."""


def sent(path: str, steps: list[Step], names: set[str], order: random.Random) -> TurnRequest:
    wire = Wire(path, steps)
    for name, distort in DISTORTIONS.items():
        if name in names and not (name == "ids by position" and names & LOSSY):
            distort(wire, order)
    return wire.decoded()


NAMES = st.sets(st.sampled_from([*DISTORTIONS]))
WAYS = st.lists(st.tuples(st.sampled_from(PATHS), NAMES), min_size=5, max_size=5)
BROKEN = st.lists(st.sampled_from(['{"q": ', "kiwi", "[]", '{"q": 1}}']), min_size=1, max_size=2).map(
    lambda said: tuple(ReplyCall("search", arguments) for arguments in said)
)
ANSWERS = REPLIES | st.builds(Reply, text=TEXT, tool_calls=BROKEN)
TEXTS = st.lists(TEXT.filter(bool), min_size=1, max_size=3)
MORE = settings(max_examples=max(200, settings.default.max_examples if settings.default else 0))


class Spoken(NamedTuple):
    talk: Talk
    steps: list[Step]


def spoken(
    replies: list[Reply], texts: list[str], ways: list[tuple[str, set[str]]], order: random.Random
) -> Spoken:
    """Each turn is asked for in a protocol of its own, with what that client does to all before it."""
    talk = Talk()
    steps: list[Step] = ["go", "at once"]
    for number, reply in enumerate(replies):
        path, names = ways[number]
        match = talk.find(sent(path, steps, names, order))
        assert (match.parent, match.fork) == (f"t{number - 1}" if number else None, None), (path, names)
        stopped = {} if reply.tool_calls else {"stop_reason": STOP}
        turn = talk.commit(match, reply, **stopped)
        text = texts[number % len(texts)]
        results: list[Step] = [Result(turn, index, text) for index in range(len(reply.tool_calls))]
        steps += [Answered(turn, reply), *(results or [text]), "go on"]
    return Spoken(talk, steps)


@MORE
@given(
    replies=st.lists(ANSWERS, min_size=1, max_size=4),
    texts=TEXTS,
    ways=WAYS,
    order=st.randoms(use_true_random=False),
)
def test_any_conversation_through_any_distortions_finds_its_place(
    replies: list[Reply], texts: list[str], ways: list[tuple[str, set[str]]], order: random.Random
) -> None:
    talk, steps = spoken(replies, texts, ways, order)
    _, names = ways[-1]
    for path in PATHS:
        match = talk.find(sent(path, steps, names, order))
        assert (match.parent, match.fork) == (talk.records[-1].turn, None), (path, names)


TURNS = [
    Reply("I look.", "hm", (ReplyCall("search", '{"q": "a/b", "n": 1.0}'), ReplyCall("search", "{}"))),
    Reply("found\n", "so"),
    Reply("", "", (ReplyCall("search", '{"q": "\\u00e9"}'), ReplyCall("search", '{"q": '))),
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", DISTORTIONS)
def test_each_distortion_alone(name: str, path: str) -> None:
    order = random.Random(7)
    talk, steps = spoken(TURNS, ["ok"], [(path, {name})] * 3, order)
    match = talk.find(sent(path, steps, {name}, order))
    assert (match.parent, match.fork) == ("t2", None)


# --- true edits

Edit = Callable[[list[Step], int], list[Step]]


def answer_edited(steps: list[Step], at: int) -> list[Step]:
    """Of one without calls: what is dropped beside calls cannot be edited."""
    at, step = next(
        (n, step) for n, step in enumerate(steps) if isinstance(step, Answered) and not step.reply.tool_calls
    )
    return [*steps[:at], step._replace(reply=Reply("Something else was said.")), *steps[at + 1 :]]


def user_edited(steps: list[Step], at: int) -> list[Step]:
    place = next(n for n in range(at, len(steps)) if isinstance(steps[n], str))
    return [*steps[:place], f"{steps[place]}!", *steps[place + 1 :]]


def result_edited(steps: list[Step], at: int) -> list[Step]:
    place = next(n for n in range(at, len(steps)) if isinstance(steps[n], Result))
    step = steps[place]
    assert isinstance(step, Result)
    return [*steps[:place], step._replace(text=step.text + "!"), *steps[place + 1 :]]


def truncated(steps: list[Step], at: int) -> list[Step]:
    """The first turn and what was said to it are gone."""
    _, second, *_ = [n for n, step in enumerate(steps) if isinstance(step, Answered)]
    return [*steps[:at], *steps[second:]]


REWRITTEN = {ForkReason.USER_OR_TOOL_EDITED, ForkReason.NEW_ROOT}
EDITS: dict[str, tuple[Edit, set[ForkReason]]] = {
    "an answer is edited": (answer_edited, {ForkReason.ASSISTANT_EDITED}),
    "a user's words are edited": (user_edited, REWRITTEN),
    "a result is edited": (result_edited, REWRITTEN),
    "the beginning is cut off": (truncated, {ForkReason.HISTORY_TRUNCATED}),
}


RETOLD = {"a stop string put back", *LOSSY}
"""Behind an edit such answers are other ones to what names the reason: it is a label, and says `assistant_edited`."""


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=25)
@given(names=NAMES, order=st.randoms(use_true_random=False))
def test_a_true_edit_forks_with_its_reason_whatever_the_client_distorts(
    path: str, edit: str, names: set[str], order: random.Random
) -> None:
    talk, steps = spoken(TURNS, ["ok"], [(path, set())] * 3, order)
    change, reasons = EDITS[edit]
    first = next(at for at, step in enumerate(steps) if isinstance(step, Answered))
    edited = change(steps, first)
    match = talk.find(sent(path, edited, names, order))
    assert match.parent != "t2"
    assert match.fork not in (None, ForkReason.RETRY_RESAMPLED)
    assert talk.find(sent(path, edited, names - RETOLD, order)).fork in reasons
