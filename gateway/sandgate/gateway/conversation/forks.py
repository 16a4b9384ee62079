"""Why does this request not simply go on? The one closed list of reasons, and how each is told. (pure)

The cold path: it runs once per fork. A request and every branch of the tree are laid side by side as lists of block
keys (what was sampled here stands as what its echo would be); where they part, and what stands there, is the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sandgate.contract.errors import ForkReason
from sandgate.gateway.conversation.messages import Message, TurnRequest
from sandgate.gateway.conversation.sameness import FOREIGN, KEY_BYTES, NO_TOOLS, foreign_key, head_length
from sandgate.gateway.conversation.turns import Turn

BRANCHES_MAX = 64
"""Newest branches a request is compared with: a fork's reason is a label, and this bounds its cost."""
SUMMARY_CHARS_MIN = 40
"""A reply of at least this length that stands inside a later system or user message is a summary put to use."""

COMPACTION_ASKED = re.compile(
    r"detailed summary of (?:the|our|this) conversation"  # Claude Code
    r"|context checkpoint compaction|handoff summary"  # Codex
    r"|detailed prompt for continuing our conversation"  # opencode
    r"|<state_snapshot>"  # qwen-code
    r"|structured context checkpoint summary|context summarization assistant"  # pi
    r"|summari[sz]e (?:the|our|this) (?:conversation|session|history)",
    re.IGNORECASE,
)
COMPACTION_USED = re.compile(
    r"continued from a previous conversation that ran out of context"  # Claude Code
    r"|another language model started to solve this problem and produced a summary"  # Codex
    r"|conversation history before this point was compacted"  # pi
    r"|<state_snapshot>",  # qwen-code
    re.IGNORECASE,
)
TITLE_ASKED = re.compile(
    r"(?:generate|create|write|suggest|output)\b[^.\n]{0,40}\btitle|\btitle generator\b|\btitle for (?:this|the|our)\b",
    re.IGNORECASE,
)
"""opencode and others name the session in a call without tools, sometimes before the first real one."""


@dataclass(frozen=True, slots=True)
class _Branch:
    """All that was said on the way to a leaf, and its answer."""

    head: bytes
    said: list[bytes]
    ours: int
    """How many leading blocks end with the last block sampled here."""


def name(
    turns: Sequence[Turn],
    by_echo: Mapping[bytes, Turn],
    request: TurnRequest,
    head: bytes,
    parent: Turn | None,
    rest: Sequence[bytes],
) -> ForkReason:
    """The reason, given the deepest turn the request continues (if any) and its blocks from there on.

    Call it only when something was committed before and the request is not a plain continuation.
    """
    if why := _by_words(request, turns):
        return why
    branches = [_branch(turn, by_echo) for turn in _tips(turns, by_echo)[-BRANCHES_MAX:]]
    mine = [*_branch(parent, by_echo).said, *rest] if parent else list(rest)
    near = max(branches, key=lambda branch: (_common(branch.said, mine), branch.head == head))
    shared = _common(near.said, mine)
    if near.head != head:
        same_head = [branch for branch in branches if branch.head == head]
        kin = max(same_head, key=lambda branch: _overlap(branch.said, mine), default=None)
        if kin is None or not (shared or _overlap(kin.said, mine)):
            return _by_head(head, near.head, branches, shared)
        if shared:
            return _by_head(head, near.head, branches, shared)
        near = kin
    elif not shared:
        near = max((b for b in branches if b.head == head), key=lambda branch: _overlap(branch.said, mine))
    return _by_blocks(near, mine, _common(near.said, mine))


# --- by what the words say


def _by_words(request: TurnRequest, turns: Sequence[Turn]) -> ForkReason | None:
    messages = request.messages
    last = messages[-1].text if messages and messages[-1].role != "assistant" else ""
    system = "\n".join(message.text for message in messages[: head_length(messages)])
    if COMPACTION_ASKED.search(last) or COMPACTION_ASKED.search(system):
        return ForkReason.COMPACTION
    if _summary_used(messages, turns):
        return ForkReason.COMPACTION
    if not request.tools and (TITLE_ASKED.search(last) or TITLE_ASKED.search(system)):
        return ForkReason.SIDE_CALL
    return None


def _summary_used(messages: Sequence[Message], turns: Sequence[Turn]) -> bool:
    """A summary stands where history was: in the head or among the first messages, before any sampled answer."""
    opening = []
    for message in messages:
        if message.role in ("assistant", "tool"):
            break
        opening.append(message.text)
    text = "\n".join(opening)
    if COMPACTION_USED.search(text):
        return True
    replies = (turn.reply.text.strip() for turn in turns[-BRANCHES_MAX:])
    return any(len(reply) >= SUMMARY_CHARS_MIN and reply in text for reply in replies)


# --- by the head


def _by_head(head: bytes, other: bytes, branches: Iterable[_Branch], shared: int) -> ForkReason:
    system, tools = head[:KEY_BYTES], head[KEY_BYTES:]
    if shared:
        if system == other[:KEY_BYTES]:
            return ForkReason.TOOLS_CHANGED
        if tools == other[KEY_BYTES:]:
            return ForkReason.SYSTEM_CHANGED
    seen_tools = {branch.head[KEY_BYTES:] for branch in branches}
    if seen_tools == {NO_TOOLS} and tools != NO_TOOLS:
        return ForkReason.NEW_ROOT  # what came before (a title) was the side call
    seen_system = {branch.head[:KEY_BYTES] for branch in branches}
    if tools not in seen_tools and system not in seen_system:
        return ForkReason.SIDE_CALL
    return ForkReason.SIDE_CALL if tools == NO_TOOLS and tools not in seen_tools else ForkReason.NEW_ROOT


# --- by where the blocks part


def _by_blocks(near: _Branch, mine: Sequence[bytes], shared: int) -> ForkReason:
    """Both have the same head; `shared` leading blocks are equal."""
    said = near.said
    overlap = _overlap(said, mine)
    if shared == 0 and overlap == 0:
        return ForkReason.NEW_ROOT
    if shared == len(mine):
        return ForkReason.HISTORY_TRUNCATED
    if shared == len(said):
        return ForkReason.NEW_ROOT
    there, here = said[shared], mine[shared]
    if here in said[shared + (2 if _sampled(there) else 1) :]:
        return ForkReason.HISTORY_TRUNCATED
    if _sampled(there):
        return ForkReason.ASSISTANT_EDITED if _sampled(here) else ForkReason.ASSISTANT_DROPPED
    if shared < near.ours or overlap:
        return ForkReason.USER_OR_TOOL_EDITED
    return ForkReason.NEW_ROOT


def _sampled(block: bytes) -> bool:
    return block[:1] == FOREIGN


def _common(one: Sequence[bytes], other: Sequence[bytes]) -> int:
    """Length of the common beginning."""
    for at, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return at
    return min(len(one), len(other))


def _overlap(said: Sequence[bytes], mine: Sequence[bytes]) -> int:
    """Assistant blocks of `said` that stand anywhere in `mine`."""
    return len({block for block in said if _sampled(block)} & set(mine))


# --- branches


def _tips(turns: Sequence[Turn], by_echo: Mapping[bytes, Turn]) -> list[Turn]:
    """Turns whose echo no other turn's request holds."""
    echoed = {before.id for turn in turns if (before := _before(turn, by_echo))}
    return [turn for turn in turns if turn.id not in echoed]


def _before(turn: Turn, by_echo: Mapping[bytes, Turn]) -> Turn | None:
    return by_echo.get(turn.blocks[0]) if turn.blocks else None


def _branch(turn: Turn, by_echo: Mapping[bytes, Turn]) -> _Branch:
    way = [turn]
    while before := _before(way[-1], by_echo):
        way.append(before)
    said: list[bytes] = []
    for one in reversed(way):
        said += one.blocks[1:]
        said.append(foreign_key(one.reply.text, [(c.name, c.arguments) for c in one.reply.tool_calls]))
    return _Branch(turn.head_key, said, len(said))
