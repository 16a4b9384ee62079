"""Why does this request not simply go on? The one closed list of reasons, and how each is told. (pure)

The cold path: it runs once per fork. A request and every branch of the tree are laid side by side as lists of block
keys (what was sampled here stands as what its echo would be); where they part, and what stands there, is the reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from sandgate.contract.errors import ForkReason
from sandgate.gateway.conversation.canonical import (
    FOREIGN,
    KEY_BYTES,
    NO_TOOLS,
    USER,
    foreign_key,
    head_length,
)
from sandgate.gateway.conversation.messages import Message, TurnRequest
from sandgate.gateway.conversation.turn import Turn

BRANCHES_MAX = 16
"""Newest branches a request is compared with: a fork's reason is a label, and this bounds its cost (1,000 turns in 16
branches: about 5 ms)."""
END_CHARS = 4096
"""Of a long text's beginning and end the words are looked for: 430,000 characters would hold the event loop 40 ms."""
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
    """All that was said on the way to a tip, its answer included."""

    head: bytes
    said: list[bytes]
    answers: list[int]
    """Indexes in `said` of the blocks that were sampled here; at least one."""


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
    if why := _by_words(request, head, turns, by_echo):
        return why
    keys: dict[str, bytes] = {}
    branches = [_branch(turn, by_echo, keys) for turn in _tips(turns, by_echo)[-BRANCHES_MAX:]]
    echoed = _branch(parent, by_echo, keys).said if parent else []
    mine = [*echoed, *rest]
    common, overlap, same_head, _, at = max(
        (
            shared := _common(one.said, mine),
            _overlap(one.said, mine),
            one.head == head,
            len(one.said) > shared,
            at,
        )
        for at, one in enumerate(branches)
    )
    if not common and not overlap:
        known_head = any(branch.head == head for branch in branches)
        return ForkReason.NEW_ROOT if known_head else _beside(head, branches)
    if same_head:
        return _by_blocks(branches[at], mine, common, len(echoed))
    return _by_head(head, branches[at].head, branches)


# --- by what the words say


def _by_words(
    request: TurnRequest, head: bytes, turns: Sequence[Turn], by_echo: Mapping[bytes, Turn]
) -> ForkReason | None:
    messages = request.messages
    last = _ends(messages[-1].text) if messages and messages[-1].role != "assistant" else ""
    system = _ends("\n".join(message.text for message in messages[: head_length(messages)]))
    if COMPACTION_ASKED.search(last) or COMPACTION_ASKED.search(system):
        return ForkReason.COMPACTION
    opening = "\n".join(message.text for message in takewhile(_given, messages))
    if COMPACTION_USED.search(_ends(opening)) or _summary_used(opening, head, turns[-BRANCHES_MAX:], by_echo):
        return ForkReason.COMPACTION
    if not request.tools and (TITLE_ASKED.search(last) or TITLE_ASKED.search(system)):
        return ForkReason.SIDE_CALL
    return None


def _ends(text: str) -> str:
    """Where a client's own words stand, before or after what it quotes."""
    return text if len(text) <= 2 * END_CHARS else f"{text[:END_CHARS]}\n{text[-END_CHARS:]}"


def _given(message: Message) -> bool:
    return message.role not in ("assistant", "tool")


def _summary_used(opening: str, head: bytes, turns: Sequence[Turn], by_echo: Mapping[bytes, Turn]) -> bool:
    """A reply stands where history was. It must sum up something (a judge also quotes): it came after other turns, or
    from a call with a head of its own."""
    if all(turn.head_key != head for turn in turns):
        return False
    for turn in turns:
        reply = turn.reply.text.strip()
        if len(reply) >= SUMMARY_CHARS_MIN and reply in opening:
            return turn.head_key != head or _before(turn, by_echo) is not None
    return False


# --- by the head


def _by_head(head: bytes, other: bytes, branches: Sequence[_Branch]) -> ForkReason:
    """The same history under another head."""
    if head[:KEY_BYTES] == other[:KEY_BYTES]:
        return ForkReason.TOOLS_CHANGED
    if head[KEY_BYTES:] == other[KEY_BYTES:]:
        return ForkReason.SYSTEM_CHANGED
    return _beside(head, branches)


def _beside(head: bytes, branches: Sequence[_Branch]) -> ForkReason:
    """A head that was not seen before: a helper with its own system prompt and tools, or the next conversation."""
    systems = {branch.head[:KEY_BYTES] for branch in branches}
    tools = {branch.head[KEY_BYTES:] for branch in branches}
    if head[KEY_BYTES:] in tools or tools == {NO_TOOLS}:
        return (
            ForkReason.NEW_ROOT
        )  # of one kind with what came before; or that was a title call, and this is the agent
    if head[:KEY_BYTES] in systems and head[KEY_BYTES:] != NO_TOOLS:
        return ForkReason.NEW_ROOT
    return ForkReason.SIDE_CALL


# --- by where the blocks part


def _by_blocks(near: _Branch, mine: Sequence[bytes], common: int, echoed: int) -> ForkReason:
    """Both have the same head and `common` leading blocks; `echoed` of them were recognised as this branch."""
    said = near.said
    if any(echoed <= answer < common for answer in near.answers):
        return ForkReason.ASSISTANT_EDITED  # an answer's words, under the call ids of another
    if common == len(mine):
        return ForkReason.HISTORY_TRUNCATED
    places = {block: at for at, block in reversed(list(enumerate(said))) if at >= common}
    again = next((at for at in range(common, len(mine)) if mine[at] in places), None)
    if again is None:  # nothing after the break was said before
        if common == len(said):
            return ForkReason.USER_OR_TOOL_EDITED  # beside a branch too old to be compared with
        if _sampled(said[common]):
            return ForkReason.ASSISTANT_EDITED if _sampled(mine[common]) else ForkReason.ASSISTANT_DROPPED
        # Without a shared answer, only the first prompts begin alike.
        return ForkReason.USER_OR_TOOL_EDITED if common > near.answers[0] else ForkReason.NEW_ROOT
    added, skipped = mine[common:again], said[common : places[mine[again]]]
    if not any(_sampled(block) for block in skipped):
        return ForkReason.USER_OR_TOOL_EDITED
    if any(_sampled(block) for block in added):
        return ForkReason.ASSISTANT_EDITED
    answers = sum(map(_sampled, skipped))
    with_prompt = any(block[:1] == USER for block in skipped)
    cut_out = not added and len(skipped) > 1
    truncated = answers > 1 or with_prompt or cut_out
    return ForkReason.HISTORY_TRUNCATED if truncated else ForkReason.ASSISTANT_DROPPED


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


def _branch(turn: Turn, by_echo: Mapping[bytes, Turn], keys: dict[str, bytes]) -> _Branch:
    """`keys`: those of answers already made, since branches share their trunk."""
    way = [turn]
    while before := _before(way[-1], by_echo):
        way.append(before)
    said: list[bytes] = []
    answers: list[int] = []
    for one in reversed(way):
        said += one.blocks[1:]
        answers.append(len(said))
        key = keys.get(one.id)
        if key is None:
            calls = [(call.name, call.arguments) for call in one.reply.tool_calls]
            key = keys[one.id] = foreign_key(one.reply.text, calls)
        said.append(key)
    return _Branch(turn.head_key, said, answers)
