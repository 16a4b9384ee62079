"""What a request's words say it is for, wherever its client puts them."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from sandgate.gateway.conversation.messages import Message, SamplingParams, Tool, TurnRequest
from sandgate.gateway.conversation.purposes import COMPACTION, QUOTA, TITLE, last_words, purpose
from tests.gateway.conversation.talk import assistant, system, tool, user

ASKED = "Your task is to create a detailed summary of the conversation so far."
LISTS = system("Available agent types for the Agent tool: ...")
TALK = (system("You are a clerk."), user("buy 7 kiwi"), assistant("I buy."), tool("c1", "receipt 44"))
LAST: dict[str, tuple[tuple[Message, ...], str]] = {
    "a user's last message": ((*TALK, user(ASKED)), ASKED),
    "a user's message with a system message behind it": ((*TALK, user(ASKED), LISTS), ASKED),
    "a tool's message with two behind it": ((*TALK, LISTS, LISTS), "receipt 44"),
    "a system message behind an answer": ((*TALK[:3], system(ASKED)), ASKED),
    "a system message alone": ((system(ASKED),), ASKED),
    "never the assistant's": (TALK[:3], ""),
    "of nothing, nothing": ((), ""),
}


@pytest.mark.parametrize(("messages", "told"), LAST.values(), ids=LAST)
def test_the_last_words_are(messages: tuple[Message, ...], told: str) -> None:
    assert last_words(messages) == told


class Case(NamedTuple):
    messages: tuple[Message, ...]
    told: str
    tools: tuple[Tool, ...] = ()
    limit: int | None = None


BUY = (Tool("buy"),)
NAMING = (system("Generate a short title."), user("kiwi"))
FOR = {
    "a compaction, with tools": Case((*TALK, user(ASKED)), COMPACTION, BUY),
    "a compaction where a system message follows (Claude Code's second)": Case(
        (*TALK, user(ASKED), LISTS), COMPACTION, BUY
    ),
    "a compaction by its system prompt (opencode)": Case(
        (system("You are a context summarization agent."), user("...")), COMPACTION
    ),
    "a compaction by its last words (opencode)": Case(
        (
            user(
                "<conversation>...\nCreate a new anchored summary from the conversation history in the tags."
            ),
        ),
        COMPACTION,
    ),
    "a title": Case(NAMING, TITLE),
    "no title, for it has tools": Case(NAMING, "", BUY),
    "a probe": Case((user("quota"),), QUOTA, limit=1),
    "a question of one word": Case((user("quota"),), "", limit=99),
}


@pytest.mark.parametrize("case", FOR.values(), ids=FOR)
def test_a_request_is_for(case: Case) -> None:
    request = TurnRequest(
        model="m",
        messages=case.messages,
        tools=case.tools,
        sampling=SamplingParams(max_tokens=case.limit),
    )
    assert purpose(request) == case.told
