"""Which turns are the agent's own conversation, a helper's call beside it, or a sub-agent's, and what told so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from sandgate.contract.choices import TurnRole
from sandgate.contract.errors import InvalidBody
from sandgate.contract.fork_reason import ForkReason
from sandgate.contract.serving import RoleRule
from sandgate.gateway.conversation.callers import NAME_CHARS_MAX, caller_of
from sandgate.gateway.conversation.ids import call_id
from sandgate.gateway.conversation.messages import Caller, Message, SamplingParams, TurnRequest
from sandgate.gateway.conversation.turn_roles import AssignedRole, role_of, told_then
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

MAIN, SIDE, SUBAGENT = TurnRole.MAIN, TurnRole.SIDE, TurnRole.SUBAGENT
AGENT, GO = system("you are an agent"), user("buy a kiwi")
LOOKED, DONE = says("I look.", ("search", '{"q":"kiwi"}')), says("It is done.")
FOUND = tool(call_id("t0", 0), "3 kiwis")
TITLE = request(system("You are a title generator."), user("Title for this: buy a kiwi"))
SUMMARY = user("Your task is to create a detailed summary of the conversation so far")
CONTINUED = user(
    "This session is being continued from a previous conversation that ran out of context: kiwi."
)
MEMORY = request(system("you take notes"), AGENT, GO, user("write it down"), tools=(BUY,))
EXPLORER = request(system("you explore"), user("find the shop"), tools=(SEARCH,))


def ask(*messages: Message) -> TurnRequest:
    return request(*messages, tools=(SEARCH, BUY))


FIRST = ask(AGENT, GO)
SECOND = ask(AGENT, GO, echo("t0", LOOKED), FOUND)


THIRD = ask(AGENT, GO, echo("t0", LOOKED), FOUND, echo("t1", DONE), user("go on"))


def after(*asked: TurnRequest, rules: Sequence[RoleRule] = ()) -> tuple[Talk, AssignedRole]:
    """What has been said, each answered (the first with a call), and the role of the last of them."""
    talk, told = Talk(), AssignedRole(MAIN, "")
    for number, one in enumerate(asked):
        match = talk.find(one)
        parent = talk.tree[match.parent] if match.parent else None
        told = role_of(one, match.head_key, match.fork, parent, talk.tree.by_id, rules)
        talk.commit(match, DONE if number else LOOKED, role=told.role.value, role_why=told.why)
    return talk, told


class Case(NamedTuple):
    """Requests of one session; the last one's role."""

    asked: tuple[TurnRequest, ...]
    role: TurnRole
    why: str


CASES: dict[str, Case] = {
    "a session's first request is the agent's own": Case((FIRST,), MAIN, ""),
    "the next turn is, too": Case((FIRST, SECOND), MAIN, ""),
    "a title that is asked first is a side call": Case((TITLE,), SIDE, "title"),
    "the task after the title is the agent's own": Case((TITLE, FIRST), MAIN, ""),
    "a title that is asked after the answer is a side call": Case((FIRST, SECOND, TITLE), SIDE, "title"),
    "a task that speaks of titles, with tools, is the agent's own": Case(
        (ask(AGENT, user("write a title for this paper")),), MAIN, ""
    ),
    "what follows a title in its own conversation is no title": Case(
        (
            request(user("write a title for this")),
            request(user("write a title for this"), echo("t0", LOOKED), GO),
        ),
        MAIN,
        "",
    ),
    "a summary of the history is a side call": Case(
        (FIRST, ask(AGENT, GO, echo("t0", LOOKED), FOUND, SUMMARY)), SIDE, "compaction"
    ),
    "what goes on from a summary is the agent's own": Case(
        (FIRST, ask(AGENT, GO, echo("t0", LOOKED), FOUND, SUMMARY), ask(AGENT, CONTINUED)), MAIN, ""
    ),
    "what goes on behind a summary is the agent's own": Case(
        (
            FIRST,
            ask(AGENT, GO, echo("t0", LOOKED), FOUND, SUMMARY),
            ask(AGENT, GO, echo("t0", LOOKED), FOUND, SUMMARY, echo("t1", DONE), user("go on")),
        ),
        MAIN,
        "",
    ),
    "Claude Code asks whether it may ask": Case(
        (replace(request(user("quota")), sampling=SamplingParams(max_tokens=1)),), SIDE, "probe"
    ),
    "a user who says quota is no probe": Case((request(user("quota")),), MAIN, ""),
    "the same messages under another system prompt and tools are a sub-agent's": Case(
        (FIRST, SECOND, EXPLORER), SUBAGENT, "own_system_and_tools"
    ),
    "a second conversation of that sub-agent is one, too": Case(
        (FIRST, SECOND, EXPLORER, request(system("you explore"), user("find the bank"), tools=(SEARCH,))),
        SUBAGENT,
        "own_system_and_tools",
    ),
    "a judge without tools is a side call": Case(
        (FIRST, SECOND, request(system("you judge"), user("is it good?"))), SIDE, "own_system"
    ),
    "a new conversation of the agent's own is the agent's own": Case(
        (FIRST, SECOND, ask(AGENT, user("sell a kiwi"))), MAIN, ""
    ),
    "a rewritten history is the agent's own": Case(
        (FIRST, ask(AGENT, GO, assistant("I peek."), user("and?"))), MAIN, ""
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_role_by_what_was_said(case: Case) -> None:
    assert after(*case.asked)[1] == (case.role, case.why)


class Sent(NamedTuple):
    """Headers, and what they say."""

    headers: Mapping[str, str]
    caller: Caller


HEADERS: dict[str, Sent] = {
    "most clients say nothing": Sent({"user-agent": "openai"}, Caller()),
    "our own header": Sent({"x-sandgate-role": "side"}, Caller("side", "x-sandgate-role")),
    "Claude Code's main agent names its session": Sent({"x-claude-code-session-id": "s"}, Caller(thread="s")),
    "Claude Code's sub-agent": Sent(
        {"x-claude-code-session-id": "s", "x-claude-code-agent-id": "a"},
        Caller("subagent", "x-claude-code-agent-id", "a", "s"),
    ),
    "Codex's main agent names its thread": Sent({"session-id": "s", "thread-id": "t"}, Caller(thread="t")),
    "Codex's sub-agent": Sent(
        {"thread-id": "u", "x-codex-parent-thread-id": "t", "x-openai-subagent": "collab_spawn"},
        Caller("subagent", "x-openai-subagent", "u", "t"),
    ),
    "Codex's sub-agent that names its parent only": Sent(
        {"thread-id": "u", "x-codex-parent-thread-id": "t"},
        Caller("subagent", "x-codex-parent-thread-id", "u", "t"),
    ),
    "Codex compacts": Sent(
        {"thread-id": "t", "x-openai-subagent": "compact"}, Caller("side", "x-openai-subagent", "t")
    ),
    "opencode's sub-agent": Sent(
        {"x-session-id": "b", "x-parent-session-id": "a"}, Caller("subagent", "x-parent-session-id", "b", "a")
    ),
    "a name without end is cut": Sent({"x-session-id": "b" * 100_000}, Caller(thread="b" * NAME_CHARS_MAX)),
    "an empty name of a parent says nothing": Sent(
        {"x-session-id": "b", "x-parent-session-id": ""}, Caller(thread="b")
    ),
}


@pytest.mark.parametrize("sent", HEADERS.values(), ids=HEADERS)
def test_what_headers_say(sent: Sent) -> None:
    assert caller_of(sent.headers) == sent.caller


@pytest.mark.parametrize("said", ["", "Main", "MAIN", "helper", "side "])
def test_a_role_that_is_none_is_refused_by_name(said: str) -> None:
    with pytest.raises(InvalidBody, match="x-sandgate-role must be main, side or subagent"):
        caller_of({"x-sandgate-role": said})


def test_a_header_counts_for_more_than_words() -> None:
    assert after(replace(TITLE, caller=caller_of({"x-sandgate-role": "main"})))[1] == (
        MAIN,
        "x-sandgate-role",
    )


def test_what_a_sub_agent_says_with_its_header_it_is_without_it_too() -> None:
    """In the same conversation."""
    told = caller_of({"x-claude-code-agent-id": "a"})
    assert after(replace(FIRST, caller=told), SECOND)[1] == (SUBAGENT, "x-claude-code-agent-id")


def test_a_sub_agent_by_header_does_not_make_its_parents_conversation_one() -> None:
    """They may share system prompt and tools."""
    told = caller_of({"x-claude-code-agent-id": "a"})
    assert after(FIRST, replace(ask(AGENT, user("look")), caller=told), ask(AGENT, user("sell")))[1] == (
        MAIN,
        "",
    )


RULES: dict[str, tuple[RoleRule, TurnRequest, Mapping[str, str], AssignedRole]] = {
    "words of the system prompt, in any case": (
        RoleRule(role=SIDE, system_contains="YOU ARE an agent"), FIRST, {}, AssignedRole(SIDE, "roles[0]"),
    ),
    "words of the last message": (
        RoleRule(role=SUBAGENT, last_message_contains="kiwi"), FIRST, {}, AssignedRole(SUBAGENT, "roles[0]"),
    ),
    "a conversation that began as a sub-agent's": (
        RoleRule(role=SUBAGENT, last_message_contains="buy a kiwi"), SECOND, {}, AssignedRole(SUBAGENT, "roles[0]"),
    ),
    "a side call in the middle of a conversation": (
        RoleRule(role=SIDE, last_message_contains="3 kiwis"), SECOND, {}, AssignedRole(SIDE, "roles[0]"),
    ),
    "what goes on behind a side call in the middle of a conversation": (
        RoleRule(role=SIDE, last_message_contains="3 kiwis"), THIRD, {}, AssignedRole(MAIN, ""),
    ),
    "a header that is there": (
        RoleRule(role=SIDE, header="X-Worker"), FIRST, {"x-worker": "3"}, AssignedRole(SIDE, "roles[0]"),
    ),
    "a header that is not there": (RoleRule(role=SIDE, header="x-worker"), FIRST, {}, AssignedRole(MAIN, "")),
    "a header that says something else": (
        RoleRule(role=SIDE, header="x-worker", header_value="2"), FIRST, {"x-worker": "3"}, AssignedRole(MAIN, ""),
    ),
    "all that a rule names must be so": (
        RoleRule(role=SIDE, header="x-worker", system_contains="pirate"), FIRST, {"x-worker": "3"},
        AssignedRole(MAIN, ""),
    ),
    "the job's word counts for more than the agent's": (
        RoleRule(role=SIDE, system_contains="agent"), FIRST, {"x-sandgate-role": "main"},
        AssignedRole(SIDE, "roles[0]"),
    ),
    "the job's word counts for more than ours": (
        RoleRule(role=MAIN, system_contains="title generator"), TITLE, {}, AssignedRole(MAIN, "roles[0]"),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "asked", "headers", "told"), RULES.values(), ids=RULES)
def test_rules_of_the_job(
    rule: RoleRule, asked: TurnRequest, headers: Mapping[str, str], told: AssignedRole
) -> None:
    whole = [FIRST, SECOND, THIRD]
    earlier = whole[: whole.index(asked)] if asked in whole else []
    before = [replace(one, caller=caller_of({}, [rule])) for one in earlier]
    assert after(*before, replace(asked, caller=caller_of(headers, [rule])), rules=[rule])[1] == told


OLD: dict[str, tuple[str, str | None, str, TurnRole]] = {
    "a root is the agent's own": ("", None, "", MAIN),
    "a side call is one": ("", ForkReason.SIDE_CALL, "", SIDE),
    "what goes on has its parent's role": ("", None, "side", SIDE),
    "what is recorded counts": ("subagent", ForkReason.SIDE_CALL, "main", SUBAGENT),
}


@pytest.mark.parametrize(("role", "fork", "parent", "then"), OLD.values(), ids=OLD)
def test_turns_of_journals_that_have_no_roles(
    role: str, fork: str | None, parent: str, then: TurnRole
) -> None:
    assert told_then(role, fork, parent) == then
