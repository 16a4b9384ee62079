"""One golden conversation per fork reason, and the near misses."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from sandgate.contract.fork_reason import ForkReason
from sandgate.gateway.conversation.ids import call_id
from sandgate.gateway.conversation.messages import Message, ToolCall, TurnRequest
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

AGENT, GO = system("you are an agent"), user("buy a kiwi")
TOOLS = (SEARCH, BUY)
LOOKED = says("I look.", ("search", '{"q":"kiwi"}'))
BOUGHT = says("", ("buy", '{"n":1}'))
DONE = says("It is done, and it was a pleasure to be of service to you.")
FOUND, SOLD = tool(call_id("t0", 0), "3 kiwis"), tool(call_id("t1", 0), "sold")
WHOLE = (AGENT, GO, echo("t0", LOOKED), FOUND, echo("t1", BOUGHT), SOLD, echo("t2", DONE))
"""t0 looks, t1 buys, t2 is done."""


def shopped() -> Talk:
    talk = Talk()
    for length, reply in ((2, LOOKED), (4, BOUGHT), (6, DONE)):
        assert talk.find(ask(*WHOLE[:length])).fork is None
        talk.say(ask(*WHOLE[:length]), reply)
    return talk


def titled() -> Talk:
    """opencode: the title is asked first."""
    talk = Talk()
    talk.say(request(system("You are a title generator."), user("Title for this: buy a kiwi")), says("Kiwi"))
    return talk


def summarised() -> Talk:
    """By a call with a system prompt of its own."""
    talk = Talk()
    talk.say(ask(AGENT, GO), LOOKED)
    talk.say(request(SUMMARISER, user("<conversation>...</conversation>")), DONE)
    return talk


def ask(*messages: Message) -> TurnRequest:
    return request(*messages, tools=TOOLS)


def edited(at: int, message: Message, upto: int = 7) -> TurnRequest:
    return ask(*WHOLE[:at], message, *WHOLE[at + 1 : upto], *([user("thanks")] if upto == 7 else []))


SUMMARISER, WHAT = system("You are a context summarization agent."), user("What did we do so far?")
SUB, NOTE = system("you take notes"), user("write it down")
CASES: dict[str, tuple[Callable[[], Talk], TurnRequest, str | None, ForkReason | None]] = {
    # what is no fork
    "a session's first request is no fork": (Talk, ask(AGENT, GO), None, None),
    "the next turn of a branch is no fork": (shopped, ask(*WHOLE, user("thanks")), "t2", None),
    "an assistant message put in by the client is no fork": (
        shopped,
        ask(*WHOLE, user("hm"), assistant("as I said"), user("thanks")),
        "t2",
        None,
    ),
    # retry_resampled
    "the same request again is a retry": (shopped, ask(*WHOLE[:4]), "t0", ForkReason.RETRY_RESAMPLED),
    "the first request again is a retry": (shopped, ask(AGENT, GO), None, ForkReason.RETRY_RESAMPLED),
    # system_changed, tools_changed
    "the history under another system prompt": (
        shopped,
        ask(system("you are a thief"), *WHOLE[1:]),
        None,
        ForkReason.SYSTEM_CHANGED,
    ),
    "the history without its system prompt": (shopped, ask(*WHOLE[1:]), None, ForkReason.SYSTEM_CHANGED),
    "the history under other tools": (
        shopped,
        request(*WHOLE, tools=(SEARCH,)),
        None,
        ForkReason.TOOLS_CHANGED,
    ),
    "openai-node drops the tools": (shopped, request(*WHOLE), None, ForkReason.TOOLS_CHANGED),
    # template_kwargs_changed
    "the history under other variables of the template": (
        shopped,
        replace(ask(*WHOLE, user("thanks")), template_kwargs={"enable_thinking": False}),
        None,
        ForkReason.TEMPLATE_KWARGS_CHANGED,
    ),
    "other tools and other variables: the tools are named": (
        shopped,
        replace(request(*WHOLE, tools=(SEARCH,)), template_kwargs={"enable_thinking": False}),
        None,
        ForkReason.TOOLS_CHANGED,
    ),
    # assistant_edited
    "the first answer in other words": (
        shopped,
        edited(2, assistant("I peek.")),
        None,
        ForkReason.ASSISTANT_EDITED,
    ),
    "a later answer in other words": (
        shopped,
        edited(6, assistant("It failed.")),
        "t1",
        ForkReason.ASSISTANT_EDITED,
    ),
    "an answer under another answer's call ids": (
        shopped,
        ask(*WHOLE[:4], assistant("", ToolCall(call_id("t0", 0), "buy", '{"n":1}')), user("on")),
        "t0",
        ForkReason.ASSISTANT_EDITED,
    ),
    # assistant_dropped
    "mini-swe deletes an answer and adds a user error": (
        shopped,
        ask(AGENT, GO, user("your call was malformed")),
        None,
        ForkReason.ASSISTANT_DROPPED,
    ),
    "the last answer is left out": (
        shopped,
        ask(*WHOLE[:6], user("and?")),
        "t1",
        ForkReason.ASSISTANT_DROPPED,
    ),
    "an answer and its result give way to a user error": (
        shopped,
        ask(*WHOLE[:4], user("your call was malformed"), *WHOLE[6:], user("and?")),
        "t0",
        ForkReason.ASSISTANT_DROPPED,
    ),
    # user_or_tool_edited
    "a tool result in other words": (
        shopped,
        edited(3, tool(call_id("t0", 0), "4 kiwis"), upto=4),
        "t0",
        ForkReason.USER_OR_TOOL_EDITED,
    ),
    "a tool result under another call's id": (
        shopped,
        edited(5, tool(call_id("t0", 0), "sold"), upto=6),
        "t1",
        ForkReason.USER_OR_TOOL_EDITED,
    ),
    "qwen's resume takes a reminder out of the first message": (
        shopped,
        edited(1, user("buy kiwi")),
        None,
        ForkReason.USER_OR_TOOL_EDITED,
    ),
    # history_truncated
    "back to an earlier point": (shopped, ask(*WHOLE[:5]), "t1", ForkReason.HISTORY_TRUNCATED),
    "the beginning is cut off": (shopped, ask(AGENT, *WHOLE[3:]), None, ForkReason.HISTORY_TRUNCATED),
    "the middle is cut out": (shopped, ask(*WHOLE[:2], *WHOLE[4:]), None, ForkReason.HISTORY_TRUNCATED),
    # compaction
    "Claude Code asks for a summary beside the branch": (
        shopped,
        ask(*WHOLE[:6], user("Your task is to create a detailed summary of the conversation so far")),
        "t1",
        ForkReason.COMPACTION,
    ),
    "a summary asked under another system prompt": (
        shopped,
        request(system("You are a context summarization assistant."), user("USER: buy a kiwi")),
        None,
        ForkReason.COMPACTION,
    ),
    "codex goes on from a summary": (
        shopped,
        ask(
            AGENT, user("Another language model started to solve this problem and produced a summary: none.")
        ),
        None,
        ForkReason.COMPACTION,
    ),
    "an answer stands where the history was": (
        shopped,
        ask(AGENT, user(f"So far: {DONE.text}\nGo on.")),
        None,
        ForkReason.COMPACTION,
    ),
    "opencode asks for a summary of what it quotes": (
        shopped,
        request(SUMMARISER, user("<conversation>...</conversation>\nCreate a new anchored summary of it.")),
        None,
        ForkReason.COMPACTION,
    ),
    "opencode goes on from a summary, as the first answer": (
        summarised,
        ask(AGENT, WHAT, assistant(DONE.text), user("Continue if you have next steps.")),
        None,
        ForkReason.COMPACTION,
    ),
    "another answer first is no summary": (
        summarised,
        ask(AGENT, WHAT, assistant("Nothing that I can remember, and that is all."), user("Continue.")),
        None,
        ForkReason.NEW_ROOT,
    ),
    # side_call
    "a title is asked later": (
        shopped,
        request(user("Generate a short title for this conversation: buy a kiwi")),
        None,
        ForkReason.SIDE_CALL,
    ),
    "qwen's memory agent: the same messages, other system and tools": (
        shopped,
        request(SUB, *WHOLE[1:], NOTE, tools=(SEARCH,)),
        None,
        ForkReason.SIDE_CALL,
    ),
    "a sub-agent with its own system and tools": (
        shopped,
        request(SUB, NOTE, tools=(SEARCH,)),
        None,
        ForkReason.SIDE_CALL,
    ),
    "a judge quotes an answer": (
        shopped,
        request(system("grade it"), user(f"Is this polite? {DONE.text}")),
        None,
        ForkReason.SIDE_CALL,
    ),
    # new_root
    "a question about the first answer is no compaction": (
        lambda: plain("one"),
        request(user(f"Is this polite? {DONE.text}")),
        None,
        ForkReason.NEW_ROOT,
    ),
    "the agent's first request after a title call": (titled, ask(AGENT, GO), None, ForkReason.NEW_ROOT),
    "another conversation of the same agent": (
        shopped,
        ask(AGENT, user("sell it")),
        None,
        ForkReason.NEW_ROOT,
    ),
    "another task that begins with the same reminder": (
        lambda: reminded("one"),
        ask(AGENT, user("today is monday", "two")),
        None,
        ForkReason.NEW_ROOT,
    ),
    "another task of an agent without tools": (
        lambda: plain("one"),
        request(user("two")),
        None,
        ForkReason.NEW_ROOT,
    ),
}


def reminded(task: str) -> Talk:
    talk = Talk()
    talk.say(ask(AGENT, user("today is monday", task)), DONE)
    return talk


def plain(task: str) -> Talk:
    talk = Talk()
    talk.say(request(user(task)), DONE)
    return talk


@pytest.mark.parametrize(("before", "asked", "parent", "fork"), CASES.values(), ids=CASES)
def test_fork(
    before: Callable[[], Talk], asked: TurnRequest, parent: str | None, fork: ForkReason | None
) -> None:
    match = before().find(asked)
    assert (match.parent, match.fork) == (parent, fork)


def test_every_reason_that_messages_can_give_has_a_case() -> None:
    by_tokens = {
        ForkReason.TEMPLATE_NOT_ADDITIVE,
        ForkReason.HISTORY_REWRITTEN_BY_TEMPLATE,
        ForkReason.MULTIMODAL_NOT_BRIDGEABLE,
        ForkReason.TOKENS_DIFFER,
    }
    assert {fork for *_, fork in CASES.values() if fork} == set(ForkReason) - by_tokens


@pytest.mark.parametrize(("before", "asked", "parent", "fork"), CASES.values(), ids=CASES)
def test_a_fork_can_be_gone_on_from(
    before: Callable[[], Talk], asked: TurnRequest, parent: str | None, fork: ForkReason | None
) -> None:
    """Whatever led to it: the answer's echo is found as the next parent, and that is no fork any more."""
    talk = before()
    reply = says("well", ("search", "{}"))
    turn = talk.say(asked, reply)
    then = replace(asked, messages=(*asked.messages, echo(turn, reply), tool(call_id(turn, 0), "ok")))
    match = talk.find(then)
    assert (match.parent, match.tail, match.fork) == (turn, len(asked.messages) + 1, None)
