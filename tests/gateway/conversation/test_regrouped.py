"""Calls of one turn that come back with their answers between them are that turn again; nothing else is moved."""

from __future__ import annotations

import pytest

from sandgate.gateway.conversation.ids import call_id
from sandgate.gateway.conversation.messages import Message, ToolCall
from tests.gateway.conversation.talk import SEARCH, Talk, assistant, request, says, tool, user

GO, ARGS = user("go"), "{}"
TWO = says("I look.", ("search", ARGS), ("search", ARGS))


def calls(*numbers: int, text: str = "", turn: str = "t0", thought: str | None = None) -> Message:
    made = [ToolCall(call_id(turn, number, "toolu_"), "search", ARGS) for number in numbers]
    return assistant(text, *made, reasoning=thought)


def out(number: int, turn: str = "t0") -> Message:
    return tool(call_id(turn, number, "toolu_"), f"found {number}")


FIRST = calls(0, text="I look.")
TOGETHER = (GO, calls(0, 1, text="I look."), out(0), out(1))
SENT: dict[str, tuple[tuple[Message, ...], tuple[Message, ...]]] = {
    "call, answer, call, answer": ((GO, FIRST, out(0), calls(1), out(1)), TOGETHER),
    "calls together": (TOGETHER, TOGETHER),
    "the other order": (
        (GO, calls(1, text="I look."), out(1), calls(0), out(0)),
        (GO, calls(0, 1, text="I look."), out(1), out(0)),
    ),
    "thoughts of both": (
        (GO, calls(0, text="I look.", thought="a"), out(0), calls(1, thought="b"), out(1)),
        (GO, calls(0, 1, text="I look.", thought="ab"), out(0), out(1)),
    ),
}
LEFT: dict[str, tuple[Message, ...]] = {
    "words between them": (GO, FIRST, out(0), calls(1, text="and"), out(1)),
    "a user between them": (GO, FIRST, out(0), user("on"), calls(1), out(1)),
    "no answer between them": (GO, FIRST, calls(1), out(0), out(1)),
    "the same call twice": (GO, FIRST, out(0), calls(0), out(0)),
    "calls of another turn": (GO, FIRST, out(0), calls(1, turn="t1"), out(1, "t1")),
    "ids that are not ours": (GO, calls(0, turn="x"), out(0, "x"), calls(1, turn="x"), out(1, "x")),
    "a call of ours beside one that is not": (
        GO, FIRST, out(0),
        assistant("", ToolCall(call_id("t0", 1), "search", ARGS), ToolCall("mine", "search", ARGS)), out(1),
    ),
}  # fmt: skip


def talk() -> Talk:
    made = Talk()
    made.say(request(GO, tools=(SEARCH,)), TWO)
    return made


@pytest.mark.parametrize(("sent", "read"), SENT.values(), ids=SENT)
def test_calls_of_one_turn_stand_together(sent: tuple[Message, ...], read: tuple[Message, ...]) -> None:
    one = talk()
    grouped = one.tree.regrouped(sent)
    assert grouped == read
    match = one.find(request(*grouped, tools=(SEARCH,)))
    assert (match.parent, match.fork) == ("t0", None)


@pytest.mark.parametrize("sent", LEFT.values(), ids=LEFT)
def test_what_is_no_turn_of_ours_stays_as_it_is(sent: tuple[Message, ...]) -> None:
    assert talk().tree.regrouped(sent) == sent
