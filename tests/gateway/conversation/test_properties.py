"""Laws of matching, over conversations that nobody thought of."""

from __future__ import annotations

import json
import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sandgate.contract.fork_reason import ForkReason
from sandgate.gateway.conversation.ids import call_id
from sandgate.gateway.conversation.message_equality import normal_arguments
from sandgate.gateway.conversation.messages import Message, TextPart, ToolCall
from sandgate.gateway.conversation.tree import Tree
from sandgate.gateway.journal.reply import Reply, ReplyCall
from tests.gateway.conversation.talk import SEARCH, Talk, echo, request, says, system, tool, user

WORDS = st.sampled_from(["", "a", "b", "ab", " a", "a\n", "é", "Go on.", '{"a": 1}'])
TEXT = WORDS | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
NUMBERS = st.integers(-(2**60), 2**60) | st.floats(allow_nan=False, allow_infinity=False)
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(TEXT, JSON, max_size=4)
CALLS = st.lists(ARGUMENTS.map(lambda value: ReplyCall("search", json.dumps(value))), max_size=3).map(tuple)
REPLIES = st.builds(Reply, text=TEXT, reasoning=st.sampled_from(["", "hm"]), tool_calls=CALLS)


def as_javascript(value: Any) -> Any:
    """Whole doubles lose their point, as JSON.stringify prints them; so does minus zero its sign."""
    match value:
        case bool() | None | str():
            return value
        case int() | float():
            double = float(value)
            return int(double) if double.is_integer() and abs(double) < 1e21 else double
        case list():
            return [as_javascript(item) for item in value]
        case _:
            return {name: as_javascript(item) for name, item in value.items()}


def reprinted(
    text: str, order: random.Random, *, ascii_only: bool, indent: int | None, javascript: bool
) -> str:
    def shuffled(value: Any) -> Any:
        if isinstance(value, dict):
            items = list(value.items())
            order.shuffle(items)
            return {name: shuffled(item) for name, item in items}
        return [shuffled(item) for item in value] if isinstance(value, list) else value

    value = json.loads(text)
    value = shuffled(as_javascript(value) if javascript else value)
    return json.dumps(value, ensure_ascii=ascii_only, indent=indent).replace(
        "/", "\\/" if ascii_only else "/"
    )


def results(turn: str, reply: Reply, text: str = "ok") -> list[Message]:
    """What follows a turn: its calls' results, or the user."""
    return [tool(call_id(turn, at), text) for at in range(len(reply.tool_calls))] or [user(text)]


@given(
    replies=st.lists(REPLIES, min_size=1, max_size=4),
    ascii_only=st.booleans(),
    indent=st.sampled_from([None, 2]),
    javascript=st.booleans(),
    thinks=st.booleans(),
    order=st.randoms(use_true_random=False),
)
def test_printing_json_anew_never_loses_the_place(
    replies: list[Reply],
    ascii_only: bool,
    indent: int | None,
    javascript: bool,
    thinks: bool,
    order: random.Random,
) -> None:
    talk, history, turn = Talk(), [system("s"), user("go")], ""
    for reply in replies:
        match = talk.find(request(*history, tools=(SEARCH,)))
        assert match.parent == (talk.records[-1].turn if talk.records else None)
        assert match.fork is None
        turn = talk.commit(match, reply)
        said = echo(turn, reply)
        calls = tuple(
            ToolCall(
                call.id,
                call.name,
                reprinted(call.arguments, order, ascii_only=ascii_only, indent=indent, javascript=javascript),
            )
            for call in said.tool_calls
        )
        history += [
            Message("assistant", said.parts, said.reasoning if thinks else None, calls),
            *results(turn, reply),
        ]
    match = talk.find(request(*history, tools=(SEARCH,)))
    assert (match.parent, match.fork) == (talk.records[-1].turn, None)
    assert match.tail == len(history) - len(results(turn, replies[-1]))
    assert not match.notes, "nothing here is lossy"


@given(value=ARGUMENTS, other=ARGUMENTS)
def test_arguments_are_the_same_exactly_if_their_values_are(value: Any, other: Any) -> None:
    def tagged(item: Any) -> Any:
        """Python takes True for 1; JSON does not."""
        match item:
            case bool() | None | str():
                return (type(item).__name__, item)
            case int() | float():
                return ("number", float(item))
            case list():
                return [tagged(one) for one in item]
            case _:
                return {name: tagged(one) for name, one in item.items()}

    same = normal_arguments(json.dumps(value)) == normal_arguments(json.dumps(other))
    assert same == (tagged(value) == tagged(other))


@given(
    text=st.text(max_size=20)
    | st.sampled_from(['"\\ud800"', "[" * 5000, "1e999", "NaN", "9" * 5000, "\ud800"])
)
def test_any_text_can_be_arguments(text: str) -> None:
    assert normal_arguments(text) == normal_arguments(text)
    assert normal_arguments(text)[:1] in (b"=", b"?")


@given(
    replies=st.lists(REPLIES, min_size=1, max_size=4),
    data=st.data(),
    change=st.sampled_from(
        [lambda text: text + " ", lambda text: "x" + text, lambda text: text.upper() + "!"]
    ),
)
def test_a_changed_user_or_tool_text_always_loses_what_came_after(
    replies: list[Reply], data: st.DataObject, change: Any
) -> None:
    talk, history = Talk(), [user("go")]
    for reply in replies:
        turn = talk.say(request(*history), reply)
        history += [echo(turn, reply), *results(turn, reply)]
    places = [at for at, message in enumerate(history) if message.role in ("user", "tool")]
    at = data.draw(st.sampled_from(places))
    old = history[at]
    new = Message(old.role, (TextPart(change(old.text)),), tool_call_id=old.tool_call_id)
    match = talk.find(request(*history[:at], new, *history[at + 1 :]))
    answers_before = sum(message.role == "assistant" for message in history[:at])
    assert match.parent == (f"t{answers_before - 1}" if answers_before else None)
    if answers_before < len(replies):
        assert match.fork is not None
        assert match.fork is not ForkReason.RETRY_RESAMPLED


PIECES = st.lists(
    st.tuples(st.sampled_from(["user", "tool", "system", "assistant"]), st.lists(WORDS, max_size=2)),
    max_size=5,
)


def said(pieces: list[tuple[str, list[str]]]) -> list[Message]:
    return [
        Message(role, tuple(TextPart(text) for text in texts), tool_call_id="c" if role == "tool" else None)  # type: ignore[arg-type]
        for role, texts in pieces
    ]


def meaning(pieces: list[tuple[str, list[str]]]) -> tuple[list[Any], list[Any]]:
    """The normal form once more, slow and without hashes: the head, then blocks; runs of answers are joined."""
    head: list[Any] = []
    body: list[Any] = []
    for role, texts in pieces:
        kept = [text for text in texts if text]
        if role == "assistant":
            if body and body[-1][0] == "assistant":
                body[-1] = ("assistant", body[-1][1] + "".join(kept))
            else:
                body.append(("assistant", "".join(kept)))
        else:
            blocks: list[Any] = [(role, text) for text in kept] or [(role, None)]
            (head if role == "system" and not body else body).extend(blocks)
    return head, [(role, text.strip() if role == "assistant" else text) for role, text in body]


def twisted(pieces: list[tuple[str, list[str]]], at: int, how: str) -> list[tuple[str, list[str]]]:
    """Nearly the same conversation; for some roles the very same."""
    if not pieces:
        return [("user", [])]
    at %= len(pieces)
    role, texts = pieces[at]
    match how:
        case "pad":
            new = [(role, [*texts[:-1], f"{texts[-1]}\n"] if texts else [""])]
        case "split":
            new = [(role, texts[:1]), (role, texts[1:])]
        case "join":
            new = [(role, ["".join(texts)])]
        case "empty part":
            new = [(role, [*texts, ""])]
        case "repeat":
            new = [(role, texts)] * 2
        case _:
            new = [("user", texts)]
    return [*pieces[:at], *new, *pieces[at + 1 :]]


NEAR = st.tuples(
    st.integers(0, 4), st.sampled_from(["pad", "split", "join", "empty part", "repeat", "another role"])
)
PAIRS = st.tuples(PIECES, PIECES) | st.tuples(PIECES, NEAR).map(
    lambda one: (one[0], twisted(one[0], *one[1]))
)


@settings(max_examples=max(500, settings.default.max_examples if settings.default else 0))
@given(pair=PAIRS)
def test_two_requests_share_a_key_exactly_if_they_mean_the_same(
    pair: tuple[list[tuple[str, list[str]]], list[tuple[str, list[str]]]],
) -> None:
    one, other = pair
    tree = Tree()
    same = tree.find(request(*said(one))).prompt_key == tree.find(request(*said(other))).prompt_key
    assert same == (meaning(one) == meaning(other))


STEPS = st.lists(
    st.tuples(st.integers(0, 30), st.sampled_from(["go", "on", "back", "retry"]), WORDS, st.booleans()),
    max_size=12,
)


@given(steps=STEPS)
def test_whatever_happened_live_and_replayed_trees_agree_and_each_answer_is_found(
    steps: list[tuple[int, str, str, bool]],
) -> None:
    """Sessions that go on from anywhere, retry, drop answers and start anew, with twins everywhere."""
    talk = Talk()
    asked: list[tuple[Message, ...]] = []
    for pick, kind, word, calls in steps:
        base = asked[pick % len(asked)] if asked else ()
        turn = f"t{pick % len(asked)}" if asked else ""
        if kind == "retry" and base:
            history = base
        elif kind == "back" and base:
            history = (*base[:-1], user(word))
        elif kind == "on" and base:
            reply = talk.tree[turn].reply
            history = (*base, echo(turn, reply), *results(turn, reply, word))
        else:
            history = (user(word),)
        match = talk.find(request(*history))
        if kind == "retry" and base:
            assert match.fork is ForkReason.RETRY_RESAMPLED or match.fork is ForkReason.COMPACTION
        talk.commit(match, says(word, ("search", "{}")) if calls else says(word))
        asked.append(history)
    replayed = Tree()
    for record in talk.records:
        replayed.apply(record)
    for at, history in enumerate(asked):
        reply = talk.tree[f"t{at}"].reply
        then = request(*history, echo(f"t{at}", reply), *results(f"t{at}", reply, "next"))
        match = talk.find(then)
        assert match == replayed.find(then)
        assert match.parent is not None
        assert talk.tree[match.parent].reply.text.strip() == reply.text.strip()
        assert match.tail == len(history) + 1
        if reply.tool_calls:
            assert match.parent == f"t{at}", "an exact id decides between twins"
