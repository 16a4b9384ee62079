"""Whose words, and thoughts, a history shows where clients send back less than was said."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from sandgate.gateway.conversation.messages import Message
from sandgate.gateway.conversation.sampled_words import as_sampled
from tests.gateway.conversation.talk import Talk, assistant, request, says, user

OK = assistant("OK")


@dataclass(frozen=True)
class Case:
    thoughts: tuple[str, ...]
    """Of each turn in order; all say OK."""
    sent: tuple[Message, ...]
    """What the client sends for them."""
    shown: tuple[str | None, ...]
    branches: tuple[int, ...] = ()
    """Turns that began a row of their own, though their messages go on."""
    again: tuple[str, ...] = ()
    """What other answers to the last request thought."""
    behind: tuple[Message, ...] = ()
    """Assistant's messages of the client's own behind all that was sampled."""


CASES = {
    "each answer keeps its own thought where all say the same": Case(
        ("first", "second", "third"), (OK, OK, OK), ("first", "second", "third")
    ),
    "a thought that comes back says which answer it was": Case(
        ("first", "second"), (OK, assistant("OK", reasoning="first")), ("second", "first")
    ),
    "the place counts on other branches too": Case(
        ("first", "second", "third"), (OK, OK, OK), ("first", "second", "third"), branches=(1, 2)
    ),
    "of answers to one request the one that was gone on from counts": Case(
        ("first", "second"), (OK, OK), ("first", "second"), again=("other",)
    ),
    "an answer without a thought gets none": Case(("", "second"), (OK, OK), (None, "second")),
    "outer white space does not count": Case(
        ("first", "second"), (assistant(" OK\n"), OK), ("first", "second")
    ),
    "words that are sent once more take no other's place": Case(
        ("first", "second"), (OK, OK), ("first", "second", "second"), behind=(OK,)
    ),
    "other words are the client's": Case(("first",), (OK,), ("first", None), behind=(assistant("No"),)),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_an_answer_is_shown_with_what_it_thought(case: Case) -> None:
    talk, sent, messages = Talk(), iter(case.sent), [user("q0")]
    for number, thought in enumerate(case.thoughts):
        rooted = {"parent": None} if number in case.branches else {}
        last = number == len(case.thoughts) - 1
        for other in case.again if last else ():
            talk.say(request(*messages), says("OK", reasoning=other))
        talk.say(request(*messages), says("OK", reasoning=thought), **rooted)
        messages += [next(sent), user(f"q{number + 1}")]
    tail = len(messages) - 1
    messages += [*case.behind, user("on")] if case.behind else []
    tree = talk.tree
    shown = as_sampled(messages, tree.turns, tree.read_as(tree.turns[-1].id), tail)
    assert [one.role for one in shown] == [one.role for one in messages]
    assert tuple(one.reasoning for one in shown if one.role == "assistant") == case.shown
