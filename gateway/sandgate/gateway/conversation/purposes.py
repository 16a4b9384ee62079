"""Purposes: what a request's words say it is for: a title, a summary of what was said, a probe. (pure)"""

from __future__ import annotations

import re
from collections.abc import Sequence

from sandgate.gateway.conversation.canonical import head_length
from sandgate.gateway.conversation.messages import Message, TurnRequest

END_CHARS = 4096
"""Characters at the beginning and end of a long text that are searched: 430,000 would hold the event loop 40 ms."""

COMPACTION_ASKED = re.compile(
    r"detailed summary of (?:the|our|this) conversation"  # Claude Code
    r"|context checkpoint compaction|handoff summary"  # Codex
    r"|detailed prompt for continuing our conversation"  # opencode, until 1.17
    r"|summary from the conversation history|context summarization agent"  # opencode 1.18
    r"|<state_snapshot>"  # qwen-code
    r"|structured context checkpoint summary|context summarization assistant"  # pi
    r"|summari[sz]e (?:the|our|this) (?:conversation|session|history)",
    re.IGNORECASE,
)
TITLE_ASKED = re.compile(
    r"(?:generate|create|write|suggest|output)\b[^.\n]{0,40}\btitle|\btitle generator\b|\btitle for (?:this|the|our)\b",
    re.IGNORECASE,
)
"""opencode and others name the session in a call without tools, sometimes before the first real one."""
PROBE = "quota"
"""All that Claude Code says when it asks whether it may ask, for one token."""

SYSTEM = ("system", "developer")
COMPACTION, TITLE, QUOTA = "compaction", "title", "probe"


def purpose(request: TurnRequest, *, system: bool = True) -> str:
    """COMPACTION, TITLE, QUOTA, or empty for any other. `system`: the system prompt is searched, too; one that goes on
    with a conversation has the words that its first request had."""
    messages = request.messages
    last = last_words(messages)
    first = ends(system_words(messages)) if system else ""
    if COMPACTION_ASKED.search(last) or COMPACTION_ASKED.search(first):
        return COMPACTION
    if request.tools:
        return ""
    if TITLE_ASKED.search(last) or TITLE_ASKED.search(first):
        return TITLE
    if last == PROBE and request.sampling.max_tokens == 1:
        return QUOTA
    return ""


def system_words(messages: Sequence[Message]) -> str:
    """The system prompt."""
    return "\n".join(message.text for message in messages[: head_length(messages)])


def last_words(messages: Sequence[Message]) -> str:
    """The ends of the last message, if it is not the assistant's own. Of a user's or tool's message behind which there
    are only system messages, of that: Claude Code puts its lists of agents and skills behind what it asks."""
    if not messages:
        return ""
    head = head_length(messages)
    before = next((one for one in reversed(messages[head:]) if one.role not in SYSTEM), None)
    said = before if before is not None and before.role != "assistant" else messages[-1]
    return ends(said.text) if said.role != "assistant" else ""


def ends(text: str) -> str:
    """The beginning and end of a text, where a client's own words stand, before or after what it quotes."""
    return text if len(text) <= 2 * END_CHARS else f"{text[:END_CHARS]}\n{text[-END_CHARS:]}"
