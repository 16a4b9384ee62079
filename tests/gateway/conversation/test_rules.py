"""The rules of docs/reference/matching.md: what a client may do to the history without losing its place, and what it
may not. A case's name begins with its rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from sandgate.contract.fork_reason import ForkReason
from sandgate.gateway.conversation.echo_matching import Level, MatchPolicy
from sandgate.gateway.conversation.ids import call_id
from sandgate.gateway.conversation.messages import ImagePart, Message, TextPart, Tool, ToolCall, TurnRequest
from sandgate.gateway.conversation.rules_page import RULES
from sandgate.gateway.journal.reply import Reply
from tests.gateway.conversation.talk import (
    BUY,
    SEARCH,
    Talk,
    assistant,
    echo,
    request,
    says,
    system,
    tool,
    user,
)

ARGS = '{"q": "kiwi",  "n": 1.0, "deep": {"b": [1, 2], "a": "\\/x é"}}'
CALL = says("", ("search", ARGS))
ID = call_id("t0", 0)
BRIEF, GO = system("be brief"), user("go")


def called(arguments: str, text: str = "", call: str = ID, name: str = "search") -> Message:
    return assistant(text, ToolCall(call, name, arguments))


class Case(NamedTuple):
    """t0 was sampled as `reply` after [be brief, go] with `tools`; then `then` arrives."""

    then: TurnRequest
    level: Level | None
    """How t0 is recognised; None: it is not."""
    reply: Reply = CALL
    stop: str | None = None
    tools: tuple[Tool, ...] = (SEARCH,)
    first: tuple[Message, ...] = (BRIEF, GO)
    notes: tuple[str, ...] = ()


def after(
    *echoed: Message,
    first: tuple[Message, ...] = (BRIEF, GO),
    tools: tuple[Tool, ...] = (SEARCH,),
    result: Message | None = None,
) -> TurnRequest:
    """The history with the echo, and one more message."""
    return request(*first, *echoed, result or tool(ID, "found"), tools=tools)


EXACT = echo("t0", CALL)
PLAIN = says("It is done.")
THOUGHT = says("It is done.", reasoning="hm, yes")
CUT = says("<code>\nbuy(7)\n")
TOLD = "\nCalling tools:\n[{'id': 'call_1', 'type': 'function', 'function': {'arguments': 'buy(7)'}}]"
SCHEMA = {"properties": {"q": {"type": "string"}}, "type": "object"}
REORDERED = Tool("search", "find it", SCHEMA)
DEVELOPER = Message("developer", (TextPart("be brief"),))
BILLED = Message("system", (TextPart("x-anthropic-billing-header: cch=1"), TextPart("be brief")))
BILLED_LINE = system("x-anthropic-billing-header: cch=1\nbe brief")
BILLED_LINE_ANEW = system("x-anthropic-billing-header: cch=2\nbe brief")
BILLED_OTHERWISE = system("x-anthropic-billing-header: cch=1\nbe long")
BILLED_ANEW = Message("system", (TextPart("x-anthropic-billing-header: cch=2"), TextPart("be brief")))
PICTURE = Message("user", (TextPart("look"), ImagePart("data:image/png;base64,AAAA")))
OTHER_PICTURE = Message("user", (TextPart("look"), ImagePart("data:image/png;base64,AAAB")))
BUY_AS_JS = Tool("buy", "get it", {"type": "object", "properties": {"n": {"type": "number", "minimum": 1}}})


def more(*echoed: Message, first: tuple[Message, ...] = (BRIEF, GO)) -> TurnRequest:
    """A text turn's history goes on with the user."""
    return after(*echoed, first=first, result=user("and?"))


CASES = {
    # N1
    "N1 the same history under another system prompt is not the same": Case(
        after(EXACT, first=(system("long"), GO)), None
    ),
    "N1 the same history under other tools is not the same": Case(after(EXACT, tools=(SEARCH, BUY)), None),
    "N1 the same history without tools is not the same": Case(after(EXACT, tools=()), None),
    "N1 key order in a tool's schema does not count": Case(after(EXACT, tools=(REORDERED,)), Level.EXACT),
    "N1 1.0 in a tool's schema is 1": Case(after(EXACT, tools=(BUY_AS_JS,)), Level.EXACT, tools=(BUY,)),
    "N1 the order of tools counts": Case(after(EXACT, tools=(BUY, SEARCH)), None, tools=(SEARCH, BUY)),
    "N1 a tool's description counts": Case(after(EXACT, tools=(Tool("search", "seek it", SCHEMA),)), None),
    "N1 a billing header that differs on every request does not count": Case(
        after(EXACT, first=(BILLED_ANEW, GO)), Level.EXACT, first=(BILLED, GO)
    ),
    "N1 a billing header in the first line does not count": Case(
        after(EXACT, first=(BILLED_LINE_ANEW, GO)), Level.EXACT, first=(BILLED_LINE, GO)
    ),
    "N1 what stands behind a billing header in one text counts": Case(
        after(EXACT, first=(BILLED_OTHERWISE, GO)), None, first=(BILLED_LINE, GO)
    ),
    "N1 a user's text that begins as a billing header does counts": Case(
        after(EXACT, first=(BRIEF, user("x-anthropic-billing-header: 2"))),
        None,
        first=(BRIEF, user("x-anthropic-billing-header: 1")),
    ),
    # N2
    "N2 the name of a tool message does not count": Case(
        after(EXACT, result=Message("tool", (TextPart("found"),), tool_call_id=ID, name="search")),
        Level.EXACT,
    ),
    "N2 the name of an assistant message does not count": Case(
        after(Message("assistant", tool_calls=EXACT.tool_calls, name="bot")), Level.EXACT
    ),
    # N3
    "N3 an empty text part is no content": Case(
        after(Message("assistant", (TextPart(""),), tool_calls=EXACT.tool_calls)), Level.EXACT
    ),
    "N3 text in two parts is the text": Case(
        more(Message("assistant", (TextPart("It is "), TextPart("done.")))), Level.EXACT, reply=PLAIN
    ),
    "N3 an empty part beside the user's text does not count": Case(
        after(EXACT, first=(BRIEF, user("go", ""))), Level.EXACT
    ),
    # N4
    "N4 a user turn in two messages is the turn in two parts": Case(
        after(EXACT, first=(BRIEF, user("go"), user("now"))), Level.EXACT, first=(BRIEF, user("go", "now"))
    ),
    "N4 two parts are not their joined text": Case(
        after(EXACT, first=(BRIEF, user("gonow"))), None, first=(BRIEF, user("go", "now"))
    ),
    "N4 text and call in two assistant messages are one turn": Case(
        after(assistant("I look."), called(ARGS)), Level.EXACT, reply=says("I look.", ("search", ARGS))
    ),
    # N5
    "N5 developer is system": Case(after(EXACT, first=(DEVELOPER, GO)), Level.EXACT),
    "N5 user is not system": Case(after(EXACT, first=(user("be brief"), GO)), None),
    # N6
    "N6 dropped reasoning does not count": Case(
        more(assistant("It is done.")), Level.REASONING, reply=THOUGHT
    ),
    "N6 stripped reasoning does not count": Case(
        more(assistant("It is done.", reasoning="hm,")), Level.REASONING, reply=THOUGHT
    ),
    "N6 kept reasoning is exact": Case(more(echo("t0", THOUGHT)), Level.EXACT, reply=THOUGHT),
    # N7
    "N7 compact arguments are the same": Case(
        after(called('{"q":"kiwi","n":1.0,"deep":{"b":[1,2],"a":"/x é"}}')), Level.ARGUMENTS
    ),
    "N7 escaped unicode is the same": Case(
        after(called('{"q":"kiwi","n":1.0,"deep":{"b":[1,2],"a":"/x \\u00e9"}}')), Level.ARGUMENTS
    ),
    "N7 reordered keys are the same": Case(
        after(called('{"deep":{"a":"/x é","b":[1,2]},"n":1.0,"q":"kiwi"}')), Level.ARGUMENTS
    ),
    "N7 numbers as JavaScript prints them are the same": Case(
        after(called('{"q":"kiwi","n":1,"deep":{"b":[1,2],"a":"/x é"}}')), Level.ARGUMENTS
    ),
    "N7 1.2e4 comes back as 12000": Case(
        after(called('{"n":12000}', call="x1")), Level.CALL_IDS, reply=says("", ("search", '{"n": 1.2e4}'))
    ),
    "N7 minus zero comes back as zero": Case(
        after(called('{"n":0}', call="x1")), Level.CALL_IDS, reply=says("", ("search", '{"n": -0.0}'))
    ),
    "N7 a large integer comes back as its double": Case(
        after(called('{"n":12345678901234567000}', call="x1")),
        Level.CALL_IDS,
        reply=says("", ("search", '{"n": 12345678901234567890}')),
    ),
    "N7 true is not 1": Case(
        after(called('{"n":true}', call="x1")), None, reply=says("", ("search", '{"n": 1}'))
    ),
    "N7 the order of a list counts": Case(
        after(called('{"n":[2,1]}', call="x1")), None, reply=says("", ("search", '{"n":[1,2]}'))
    ),
    "N7 arguments that do not parse are compared as they are": Case(
        after(called('{"q": ', call="x1")), Level.CALL_IDS, reply=says("", ("search", '{"q": '))
    ),
    "N7 arguments that do not parse are not reformatted": Case(
        after(called('{"q":', call="x1")), None, reply=says("", ("search", '{"q": '))
    ),
    # N8
    "N8 ids rewritten to positions are the same": Case(
        after(called(ARGS, call="call_000000000000"), result=tool("call_000000000000", "found")),
        Level.CALL_IDS,
    ),
    "N8 ids with another dialect's prefix are equal": Case(
        after(
            called(ARGS, call=call_id("t0", 0, "toolu_")), result=tool(call_id("t0", 0, "toolu_"), "found")
        ),
        Level.EXACT,
    ),
    "N8 two calls under one id are not a renaming": Case(
        after(assistant("", ToolCall("x", "search", "{}"), ToolCall("x", "search", "{}"))),
        None,
        reply=says("", ("search", "{}"), ("search", "{}")),
    ),
    "N8 swapped ids are not a renaming": Case(
        after(assistant("", ToolCall(call_id("t0", 1), "search", "{}"), ToolCall(ID, "search", "{}"))),
        None,
        reply=says("", ("search", "{}"), ("search", "{}")),
    ),
    "N8 another name is another call": Case(after(called(ARGS, name="find")), None),
    "N8 a dropped call is an edit": Case(
        after(called("{}")), None, reply=says("", ("search", "{}"), ("search", "{}"))
    ),
    # N9
    "N9 stripped text is the same": Case(
        more(assistant("It is done.")), Level.WHITESPACE, reply=says("\n\nIt is done.\n")
    ),
    "N9 inner white space counts": Case(more(assistant("It is  done.")), None, reply=PLAIN),
    # N10
    "N10 dropped text is recognised by the call's id": Case(
        after(called(ARGS)),
        Level.LOSSY,
        reply=says("I look.", ("search", ARGS)),
        notes=("t0: N10: text dropped",),
    ),
    "N10 repaired arguments are recognised by the call's id": Case(
        after(called('{"__unparsedToolInput":{"raw":"{","len":1}}')),
        Level.LOSSY,
        reply=says("", ("search", "{")),
        notes=("t0: N10: arguments of call 0 differ",),
    ),
    "N10 dropped text under a foreign id is an edit": Case(
        after(called(ARGS, call="x1")), None, reply=says("I look.", ("search", ARGS))
    ),
    "N10 repaired arguments under a foreign id are an edit": Case(after(called("{}", call="x1")), None),
    "N10 other text is an edit, whatever the id": Case(
        after(called(ARGS, text="You look.")), None, reply=says("I look.", ("search", ARGS))
    ),
    # N11
    "N11 a stop string put back is the same": Case(
        more(assistant("<code>\nbuy(7)\n</code>")),
        Level.LOSSY,
        reply=CUT,
        stop="</code>",
        notes=("t0: N11: stop string put back",),
    ),
    "N11 a short tail after the stop string is the same": Case(
        more(assistant("<code>\nbuy(7)\n</function>")),
        Level.LOSSY,
        reply=CUT,
        stop="</function",
        notes=("t0: N11: stop string put back",),
    ),
    "N11 smolagents retells the call after the stop string": Case(
        more(assistant("<code>\nbuy(7)\n</code>" + TOLD)),
        Level.LOSSY,
        reply=CUT,
        stop="</code>",
        notes=("t0: N11: stop string put back, tool calls retold",),
    ),
    "N11 a long tail is new text": Case(
        more(assistant("<code>\nbuy(7)\n</code>" + "x" * 65)), None, reply=CUT, stop="</code>"
    ),
    "N11 what a tool answered, put behind the stop string, is new text": Case(
        more(assistant("<code>\nbuy(7)\n</code> 42")), None, reply=CUT, stop="</code>"
    ),
    "N11 an empty list behind the stop string is new text": Case(
        more(assistant("<code>\nbuy(7)\n</code>\n[]")), None, reply=CUT, stop="</code>"
    ),
    "N11 a tag of which the stop string was the beginning may be ended": Case(
        more(assistant("<code>\nbuy(7)\n</code_block>\n")),
        Level.LOSSY,
        reply=CUT,
        stop="</code",
        notes=("t0: N11: stop string put back",),
    ),
    "N11 a stop string that did not end the turn is new text": Case(
        more(assistant("<code>\nbuy(7)\n</code>")), None, reply=CUT
    ),
    # N13
    "N13 other assistant text is not the same": Case(more(assistant("It is not done.")), None, reply=PLAIN),
    "N13 user text stays exact": Case(after(EXACT, first=(BRIEF, user("go "))), None),
    "N13 an image in an answer is not ours": Case(
        more(Message("assistant", (TextPart("It is done."), ImagePart("data:,")))), None, reply=PLAIN
    ),
    "N13 the same image is the same": Case(
        after(EXACT, first=(BRIEF, PICTURE)), Level.EXACT, first=(BRIEF, PICTURE)
    ),
    "N13 another image is another request": Case(
        after(EXACT, first=(BRIEF, OTHER_PICTURE)), None, first=(BRIEF, PICTURE)
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_rule(case: Case) -> None:
    talk = Talk()
    talk.say(request(*case.first, tools=case.tools), case.reply, stop_reason=case.stop)
    match = talk.find(case.then)
    if case.level is None:
        assert match.parent is None
        assert match.fork is not None
        assert match.tail == 0
    else:
        assert match.parent == "t0"
        assert match.fork is None
        assert match.level is case.level
        assert case.then.messages[match.tail :] == case.then.messages[-1:]
    assert match.notes == case.notes


STRICT = {
    "text dropped": (after(called(ARGS)), says("I look.", ("search", ARGS)), None),
    "arguments repaired": (after(called("{}")), says("", ("search", "{")), None),
    "tool calls retold": (more(assistant("<code>\nbuy(7)\n</code>" + TOLD)), CUT, "</code>"),
}


@pytest.mark.parametrize(("then", "reply", "stop"), STRICT.values(), ids=STRICT)
def test_n10_a_strict_policy_forks_a_lossy_echo(then: TurnRequest, reply: Reply, stop: str | None) -> None:
    talk = Talk(MatchPolicy(lossy_echo=False))
    talk.say(request(BRIEF, GO, tools=(SEARCH,)), reply, stop_reason=stop)
    match = talk.find(then)
    assert (match.parent, match.fork) == (None, ForkReason.ASSISTANT_EDITED)


def test_n8_a_renaming_is_kept_through_the_rest_of_the_history() -> None:
    """t1's prompt named the call by our id; later the client renames every id, and its tool messages with them."""
    talk = Talk()
    first = talk.say(request(BRIEF, GO, tools=(SEARCH,)), says("", ("search", "{}"), ("search", "{}")))
    ids = [call_id(first, at) for at in (0, 1)]
    calls = [ToolCall(ids[at], "search", "{}") for at in (0, 1)]
    talk.say(after(assistant("", *calls), tool(ids[0], "one"), result=tool(ids[1], "two")), PLAIN)

    def again(one: str, two: str) -> str | None:
        renamed = [ToolCall("call_0", "search", "{}"), ToolCall("call_1", "search", "{}")]
        asked = (assistant("", *renamed), tool(one, "one"), tool(two, "two"), assistant("It is done."))
        return talk.find(after(*asked, result=user("and?"))).parent

    assert again("call_0", "call_1") == "t1"
    assert again("call_1", "call_0") == "t0", "results under swapped ids are other results"
    assert again("call_0", "call_2") == "t0", "an id that no call has is no renaming"


N12: dict[str, tuple[Reply, Reply, Callable[[], Message], str]] = {
    "the exact call id wins": (CALL, CALL, lambda: called(ARGS), "t0"),
    "the exact call id of the other sibling wins": (
        CALL,
        CALL,
        lambda: called(ARGS, call=call_id("t1", 0)),
        "t1",
    ),
    "the exact text wins": (says("It is done.\n"), PLAIN, lambda: assistant("It is done.\n"), "t0"),
    "the exact arguments win": (
        says("", ("search", '{"n":1}')),
        says("", ("search", '{"n": 1}')),
        lambda: called('{"n":1}', call="x1"),
        "t0",
    ),
    "between equal siblings the same reasoning wins": (
        THOUGHT,
        PLAIN,
        lambda: assistant("It is done.", reasoning="hm, yes"),
        "t0",
    ),
    "between equal siblings the newest turn wins": (PLAIN, PLAIN, lambda: assistant("It is done."), "t1"),
}


@pytest.mark.parametrize(("one", "two", "echoed", "parent"), N12.values(), ids=N12)
def test_n12_of_several_siblings(one: Reply, two: Reply, echoed: Callable[[], Message], parent: str) -> None:
    talk = Talk()
    asked = request(BRIEF, GO, tools=(SEARCH,))
    talk.say(asked, one)
    talk.say(asked, two)
    assert talk.find(after(echoed())).parent == parent


def test_every_rule_of_the_table_has_cases() -> None:
    assert {rule.cited for rule in RULES} == {"N12"} | {name.split()[0] for name in CASES}
    assert [rule.number for rule in RULES] == list(range(1, len(RULES) + 1))


def test_n12_a_sibling_that_was_gone_on_from_is_found_again_below() -> None:
    """Both siblings said the same; the later history holds what followed the elder one."""
    talk = Talk()
    asked = request(BRIEF, GO)
    talk.say(asked, PLAIN)
    talk.say(request(BRIEF, GO, assistant("It is done."), user("and?")), says("more"))
    talk.say(asked, PLAIN)
    then = request(BRIEF, GO, assistant("It is done."), user("and?"), assistant("more"), user("so?"))
    match = talk.find(then)
    assert (match.parent, match.tail, match.fork) == ("t1", 5, None)


def test_n12_order_of_arrival_does_not_count() -> None:
    """Two sub-agents of one session take turns."""
    talk = Talk()
    heads = [request(system(f"you are {who}"), GO) for who in "ab"]
    first = [talk.say(head, says(f"I am {who}")) for head, who in zip(heads, "ab", strict=True)]
    for asked, turn, who in [(heads[1], first[1], "b"), (heads[0], first[0], "a")]:
        match = talk.find(request(*asked.messages, assistant(f"I am {who}"), user("on")))
        assert (match.parent, match.fork) == (turn, None)


def test_n12_a_request_that_was_asked_before_goes_on_from_the_turn_that_it_went_on_from_then() -> None:
    """Though a newer turn said the same; other words behind it go on from the newer."""
    talk = Talk()
    asked = request(BRIEF, GO)
    then = request(BRIEF, GO, assistant("It is done."), user("and?"))
    talk.say(asked, PLAIN)
    talk.say(then, says("more"))
    talk.say(asked, PLAIN)
    assert talk.find(then).parent == "t0"
    assert talk.find(request(BRIEF, GO, assistant("It is done."), user("and then?"))).parent == "t2"
