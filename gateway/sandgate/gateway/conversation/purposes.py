"""Purposes: what a request's words say it is for: a title, a summary of what was said, a probe. (pure)"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from sandgate.gateway.conversation.message_equality import head_length
from sandgate.gateway.conversation.messages import Message, TextPart, TurnRequest

END_CHARS = 4096
"""Characters at the beginning and end of a long text that are searched: 430,000 would hold the event loop 40 ms."""

COMPACTION_ASKED = (
    re.compile(r"detailed summary of (?:the|our|this) conversation"),  # Claude Code
    re.compile(r"context checkpoint compaction"),  # Codex
    re.compile(r"handoff summary"),
    re.compile(r"detailed prompt for continuing our conversation"),  # opencode, until 1.17
    re.compile(r"summary from the conversation history"),  # opencode 1.18
    re.compile(r"context summarization agent"),
    re.compile(r"<state_snapshot>"),  # qwen-code
    re.compile(r"structured context checkpoint summary"),  # pi
    re.compile(r"context summarization assistant"),
    re.compile(r"summari[sz]e (?:the|our|this) (?:conversation|session|history)"),
)
"""In lower case. Each begins with a word of its own, for which `re` looks as fast as it reads (0.03 ms for 8 kB); as
one pattern they took 0.5 ms of every turn."""
COMPACTION_STEMS = ("summar", "checkpoint", "state_snapshot", "continuing our")
"""One of them is in whatever a pattern finds: most texts have none, and need no patterns."""
_TITLE_ASKED = (
    re.compile(r"generate\b[^.\n]{0,40}\btitle"),
    re.compile(r"create\b[^.\n]{0,40}\btitle"),
    re.compile(r"write\b[^.\n]{0,40}\btitle"),
    re.compile(r"suggest\b[^.\n]{0,40}\btitle"),
    re.compile(r"output\b[^.\n]{0,40}\btitle"),
    re.compile(r"title(?<!\wtitle) generator\b"),
    re.compile(r"title(?<!\wtitle) for (?:this|the|our)\b"),
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
    words = [last.lower()]
    if system:
        words.append(system_words(messages).lower())
    suspect = [text for text in words if any(map(text.__contains__, COMPACTION_STEMS))]
    if suspect and _asked(COMPACTION_ASKED, suspect):
        return COMPACTION
    if request.tools:
        return ""
    if _asked(_TITLE_ASKED, words):
        return TITLE
    if last == PROBE and request.sampling.max_tokens == 1:
        return QUOTA
    return ""


def _asked(patterns: Sequence[re.Pattern[str]], texts: Sequence[str]) -> bool:
    return any(pattern.search(text) for text in texts for pattern in patterns)


def system_words(messages: Sequence[Message]) -> str:
    """The ends of the system prompt."""
    return ends(messages[: head_length(messages)])


def last_words(messages: Sequence[Message]) -> str:
    """The ends of the last message, if it is not the assistant's own. Of a user's or tool's message behind which there
    are only system messages, of that: Claude Code puts its lists of agents and skills behind what it asks."""
    if not messages:
        return ""
    head = head_length(messages)
    before = next((one for one in reversed(messages[head:]) if one.role not in SYSTEM), None)
    said = before if before is not None and before.role != "assistant" else messages[-1]
    return ends([said]) if said.role != "assistant" else ""


def ends(messages: Sequence[Message], most: int = END_CHARS) -> str:
    """The beginning and end, `most` characters each, of what messages say: a client's own words stand there, before or
    after what it quotes. No more is read, however much they say."""
    front = "".join(_up_to(2 * most, _texts(messages)))
    if len(front) <= 2 * most:
        return front
    back = _up_to(most, _texts(messages, from_end=True), from_end=True)
    return f"{front[:most]}\n{''.join(reversed(back))[-most:]}"


def _texts(messages: Sequence[Message], *, from_end: bool = False) -> Iterator[str]:
    """The texts of messages, with a line's end between two of them."""
    way = reversed if from_end else iter
    for number, message in enumerate(way(messages)):
        if number:
            yield "\n"
        for part in way(message.parts):
            if isinstance(part, TextPart):
                yield part.text


def _up_to(most: int, texts: Iterable[str], *, from_end: bool = False) -> list[str]:
    """Texts until they have more than `most` characters; of each at most one more than that."""
    out: list[str] = []
    have = 0
    for text in texts:
        out.append(text[-most - 1 :] if from_end else text[: most + 1])
        have += len(out[-1])
        if have > most:
            break
    return out
