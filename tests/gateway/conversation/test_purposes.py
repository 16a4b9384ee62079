"""What a request's words say it is for, and what it costs to look."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from sandgate.contract.choices import TurnRole
from sandgate.contract.fork_reason import ForkReason
from sandgate.contract.serving import RoleRule
from sandgate.gateway.conversation.callers import caller_of
from sandgate.gateway.conversation.fork_reasons import BRANCHES_MAX
from sandgate.gateway.conversation.message_equality import outline
from sandgate.gateway.conversation.messages import Message, SamplingParams, Tool, TurnRequest
from sandgate.gateway.conversation.purposes import (
    COMPACTION,
    COMPACTION_ASKED,
    COMPACTION_STEMS,
    END_CHARS,
    QUOTA,
    TITLE,
    ends,
    last_words,
    purpose,
)
from sandgate.gateway.conversation.turn_roles import role_of
from tests.gateway.conversation.talk import SEARCH, Talk, assistant, request, says, system, tool, user

WORDS = {
    "Claude Code": ("Your task is to create a detailed summary of the conversation so far", COMPACTION),
    "Codex": ("You are performing a CONTEXT CHECKPOINT COMPACTION.", COMPACTION),
    "Codex's other words": ("Create a handoff summary for another LLM", COMPACTION),
    "opencode": ("Provide a detailed prompt for continuing our conversation above.", COMPACTION),
    "opencode 1.18": ("Create a new summary from the conversation history above.", COMPACTION),
    "opencode 1.18's system prompt": ("You are a context summarization agent.", COMPACTION),
    "qwen-code": ("First, think, then generate the <state_snapshot>.", COMPACTION),
    "pi": ("Create a structured context checkpoint summary that", COMPACTION),
    "pi's system prompt": ("You are a context summarization assistant.", COMPACTION),
    "one's own words": ("Please summarise this session.", COMPACTION),
    "in another spelling": ("SUMMARIZE OUR HISTORY", COMPACTION),
    "a summary of something else": ("Give a summary of the paper; summarize the paper", ""),
    "a title to be made": ("Generate a short title", TITLE),
    "a title, some words later": ("write, in at most five words, the title", TITLE),
    "a title for a conversation": ("A title for this conversation:", TITLE),
    "opencode's title": ("You are a title generator. You output", TITLE),
    "a title in another sentence": ("Write code. The title is wrong.", ""),
    "a subtitle": ("use the subtitle generator, and a subtitle for the film", ""),
    "a title that is asked too late": ("write" + " very" * 12 + " long title", ""),
    "a request with no known purpose": ("buy a kiwi", ""),
}
FILL = "buy a kiwi " * 1_000


@pytest.mark.parametrize(("words", "then"), WORDS.values(), ids=WORDS)
def test_words(words: str, then: str) -> None:
    assert purpose(request(user(words))) == then
    assert purpose(request(system(words), user("hi"))) == then
    assert purpose(request(system(words), user("hi")), system=False) == ""
    assert purpose(request(user(FILL + words))) == purpose(request(user(words + FILL))) == then
    with_tools = purpose(request(user(words), tools=(SEARCH,)))
    assert with_tools == (then if then == COMPACTION else "")


def test_the_middle_of_a_long_text_is_not_searched() -> None:
    fill = "x" * END_CHARS
    assert purpose(request(user(f"{fill}summarize the session{fill}"))) == ""


PARTS = {
    "one text": (("abcdef",), "abcdef"),
    "two texts of one message": (("abc", "def"), "abcdef"),
    "as long as it may be": (("abcdefgh",), "abcdefgh"),
    "a long one": (("abcdefghi",), "abcd\nfghi"),
    "many texts": (tuple("abcdefghijkl"), "abcd\nijkl"),
    "long ones": (("abcdefghi" * 3, "x", "ihgfedcba" * 3), "abcd\ndcba"),
}


@pytest.mark.parametrize(("texts", "then"), PARTS.values(), ids=PARTS)
def test_the_ends_of_what_is_said(texts: tuple[str, ...], then: str) -> None:
    assert ends([user(*texts)], 4) == then
    assert ends([], 4) == ""
    assert ends([user("ab"), user("cd")], 4) == "ab\ncd"
    assert ends([user("ab", "cd"), user("ef"), user("gh", "ij")], 4) == "abcd\nghij"


HOSTILE = {
    "one word again and again": "generate ",
    "all words of titles": "create suggest output write ",
    "the beginning of what is looked for": "detailed summary of the ",
    "titles": "title ",
    "no word at all": "a",
}


SHAPES: dict[str, Callable[[str, int], TurnRequest]] = {
    "in one text": lambda word, often: request(system(word * often), user(word * often)),
    "in 100,000 texts": lambda word, often: request(user(*[word * (often // 100_000)] * 100_000)),
    "in 9,000 messages": lambda word, often: request(*[system(word * (often // 9_000))] * 9_000, user("hi")),
}


BOUND_S = 0.02
"""Twenty times what it takes; what it took before the ends alone were read was 0.07."""


def least_s(work: Callable[[], object]) -> float:
    """CPU seconds of the best of some runs: others use this machine, too."""
    least = 1.0
    for _ in range(5):
        began = time.thread_time()
        work()
        least = min(least, time.thread_time() - began)
    return least


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("word", HOSTILE.values(), ids=HOSTILE)
def test_ten_megabytes_of_hostile_words_cost_little(
    word: str, shape: Callable[[str, int], TurnRequest]
) -> None:
    asked = shape(word, 10_000_000 // len(word))
    rule = RoleRule(role=TurnRole.SIDE, system_contains="kiwi", last_message_contains="plum")
    told = replace(asked, caller=caller_of({}, [rule]))
    assert purpose(asked) == ""
    assert least_s(lambda: purpose(asked)) < BOUND_S
    assert least_s(lambda: role_of(told, b"", None, None, {}, [rule])) < BOUND_S


@pytest.mark.parametrize("reply", ["a" * 60 + " word", "generate " * 7 + "it"])
def test_a_summary_is_looked_for_in_10_megabytes_in_little(reply: str) -> None:
    """It is a label of a fork; the answers of 16 branches are looked for."""
    talk = Talk()
    for number in range(BRANCHES_MAX):
        talk.commit(talk.find(request(system("you"), user(f"go {number}"))), says(reply + str(number)))
    asked = request(system("you"), user(reply * (10_000_000 // len(reply))))
    seen = outline(asked)
    assert least_s(lambda: talk.tree.find(asked, talk.policy, seen)) < BOUND_S


def test_a_summary_at_an_end_of_a_long_request_is_one() -> None:
    summary = says("So far 3 kiwis were found, at 2 receipts each, and one was bought.")
    for words in (f"{summary.text} {FILL * 40}", f"{FILL * 40} {summary.text}"):
        talk = Talk()
        talk.commit(talk.find(request(system("you"), user("buy"))), says("I look for a kiwi, as you say."))
        talk.commit(talk.find(request(system("sum up"), user("buy"))), summary)
        assert talk.find(request(system("you"), user(words))).fork == ForkReason.COMPACTION


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
    asked = TurnRequest(
        model="m",
        messages=case.messages,
        tools=case.tools,
        sampling=SamplingParams(max_tokens=case.limit),
    )
    assert purpose(asked) == case.told


@pytest.mark.parametrize("pattern", COMPACTION_ASKED, ids=lambda one: one.pattern)
def test_whatever_asks_for_a_compaction_has_a_stem(pattern: re.Pattern[str]) -> None:
    """Of each pattern's own words, whatever else stands in their places."""
    assert any(stem in pattern.pattern for stem in COMPACTION_STEMS)
