"""Fork reasons: why a request does not simply continue its branch (compaction, side call, edited history ...). (pure)

This runs once per fork. The request and every branch of the tree are compared as lists of block keys, in which a turn
stands as its echo would. Where they part, and what stands there, gives the reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from sandgate.contract.fork_reason import ForkReason
from sandgate.contract.trajectory import Ids
from sandgate.gateway.conversation.message_equality import (
    FOREIGN,
    KEY_BYTES,
    NO_TOOLS,
    USER,
    foreign_key,
)
from sandgate.gateway.conversation.messages import Message, TurnRequest
from sandgate.gateway.conversation.purposes import COMPACTION, ends, purpose
from sandgate.gateway.conversation.turn import Turn

BRANCHES_MAX = 16
"""Newest branches a request is compared with: a fork's reason is a label, and this bounds its cost (1,000 turns in 16
branches: about 5 ms)."""
SUMMARY_CHARS_MIN = 40
"""Length from which a reply that stands inside a later system or user message counts as a summary put to use."""
OPENING_CHARS = 65_536
"""Characters at the beginning and end of a request in which a summary is looked for: 10 MB would hold the event loop 70
ms."""

COMPACTION_USED = re.compile(
    r"continued from a previous conversation that ran out of context"  # Claude Code
    r"|another language model started to solve this problem and produced a summary"  # Codex
    r"|conversation history before this point was compacted"  # pi
    r"|<state_snapshot>",  # qwen-code
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class _Branch:
    """The block keys on the way to a tip, its answer included."""

    head: bytes
    blocks: list[bytes]
    answers: list[int]
    """Indexes in `blocks` of those that were sampled here; at least one."""


def name(
    turns: Sequence[Turn],
    by_echo: Mapping[bytes, Turn],
    request: TurnRequest,
    head: bytes,
    parent: Turn | None,
    rest: Sequence[bytes],
) -> ForkReason:
    """The fork reason of a request, given the deepest turn that it continues (if any) and its blocks from there on.

    Call it only when a turn was committed before and the request is not a plain continuation.
    """
    if why := _by_words(request, head, turns, by_echo, parent):
        return why
    keys: dict[str, bytes] = {}
    branches = [_branch(turn, by_echo, keys) for turn in _tips(turns, by_echo)[-BRANCHES_MAX:]]
    echoed = _branch(parent, by_echo, keys).blocks if parent else []
    mine = [*echoed, *rest]
    common, overlap, same_head, _, number = max(
        (
            shared := _common(candidate.blocks, mine),
            _overlap(candidate.blocks, mine),
            candidate.head == head,
            len(candidate.blocks) > shared,
            number,
        )
        for number, candidate in enumerate(branches)
    )
    if not common and not overlap:
        known_head = any(branch.head == head for branch in branches)
        return ForkReason.NEW_ROOT if known_head else _beside(head, branches)
    if same_head:
        return _by_blocks(branches[number], mine, common, len(echoed))
    return _by_head(head, branches[number].head, branches)


def of_ids(siblings: Sequence[Turn], added: Ids, *, rooted: bool) -> ForkReason | None:
    """The fork reason of a prompt given as ids, which goes on with `added` where these turns did with theirs; None for
    the first there. `rooted`: at the beginning, not behind a turn."""
    if not siblings:
        return None
    for turn in siblings:
        begun = len(turn.context)
        if added[:begun] != turn.context:
            continue
        if len(added) == begun:
            return ForkReason.RETRY_RESAMPLED
        if begun or added[:1] == turn.ids[:1]:  # else it went on with nothing added, and this adds something
            return ForkReason.ASSISTANT_EDITED
    if any(turn.context[: len(added)] == added for turn in siblings):
        return ForkReason.HISTORY_TRUNCATED
    return ForkReason.NEW_ROOT if rooted else ForkReason.USER_OR_TOOL_EDITED


# --- by what the words say


def _by_words(
    request: TurnRequest,
    head: bytes,
    turns: Sequence[Turn],
    by_echo: Mapping[bytes, Turn],
    parent: Turn | None,
) -> ForkReason | None:
    asked = purpose(request)
    if asked == COMPACTION:
        return ForkReason.COMPACTION
    given = list(takewhile(_given, request.messages))
    opening, newest = ends(given, OPENING_CHARS), turns[-BRANCHES_MAX:]
    if COMPACTION_USED.search(ends(given)) or _summary_used(opening, head, newest, by_echo):
        return ForkReason.COMPACTION
    if parent is None and _summary_first(request.messages[len(given) :], newest):
        return ForkReason.COMPACTION
    return ForkReason.SIDE_CALL if asked else None


def _given(message: Message) -> bool:
    return message.role not in ("assistant", "tool")


def _summary_used(opening: str, head: bytes, turns: Sequence[Turn], by_echo: Mapping[bytes, Turn]) -> bool:
    """Whether a reply stands where history was. It counts only if it came after other turns, or from a call with a head
    of its own: a judge quotes replies, too."""
    if all(turn.head_key != head for turn in turns):
        return False
    for turn in turns:
        reply = turn.reply.text.strip()
        if len(reply) >= SUMMARY_CHARS_MIN and reply in opening:
            return turn.head_key != head or _before(turn, by_echo) is not None
    return False


def _summary_first(said: Sequence[Message], turns: Sequence[Turn]) -> bool:
    """Whether the answer to a compaction is the first that the assistant said: so opencode goes on, after a question
    that it puts into its user's mouth."""
    text = ends(said[:1], OPENING_CHARS) if said and said[0].role == "assistant" else ""
    asked = [turn.reply.text.strip() for turn in turns if turn.fork == ForkReason.COMPACTION]
    return any(len(reply) >= SUMMARY_CHARS_MIN and reply in text for reply in asked)


# --- by the head


def _by_head(head: bytes, other: bytes, branches: Sequence[_Branch]) -> ForkReason:
    """The reason where the same history stands under another head."""
    same_system, same_tools = _system(head) == _system(other), _tools(head) == _tools(other)
    if same_system and same_tools:
        return ForkReason.TEMPLATE_KWARGS_CHANGED
    if same_system:
        return ForkReason.TOOLS_CHANGED
    if same_tools:
        return ForkReason.SYSTEM_CHANGED
    return _beside(head, branches)


def _system(head: bytes) -> bytes:
    return head[:KEY_BYTES]


def _tools(head: bytes) -> bytes:
    return head[KEY_BYTES : 2 * KEY_BYTES]


def _beside(head: bytes, branches: Sequence[_Branch]) -> ForkReason:
    """The reason for a new head: it is of a helper with its own system prompt and tools, or of the next
    conversation."""
    systems = {_system(branch.head) for branch in branches}
    tools = {_tools(branch.head) for branch in branches}
    if _tools(head) in tools or tools == {NO_TOOLS}:
        return (
            ForkReason.NEW_ROOT
        )  # of one kind with what came before; or that was a title call, and this is the agent
    if _system(head) in systems and _tools(head) != NO_TOOLS:
        return ForkReason.NEW_ROOT
    return ForkReason.SIDE_CALL


# --- by where the blocks part


def _by_blocks(near: _Branch, mine: Sequence[bytes], common: int, echoed: int) -> ForkReason:
    """The reason where request and branch have the same head and `common` leading blocks; `echoed` of them were
    recognised as this branch."""
    theirs = near.blocks
    if any(echoed <= answer < common for answer in near.answers):
        return ForkReason.ASSISTANT_EDITED  # an answer's words, under the call ids of another
    if common == len(mine):
        return ForkReason.HISTORY_TRUNCATED
    places = {block: index for index, block in reversed(list(enumerate(theirs))) if index >= common}
    again = next((index for index in range(common, len(mine)) if mine[index] in places), None)
    if again is None:  # nothing after the break was said before
        if common == len(theirs):
            return ForkReason.USER_OR_TOOL_EDITED  # beside a branch too old to be compared with
        if _sampled(theirs[common]):
            return ForkReason.ASSISTANT_EDITED if _sampled(mine[common]) else ForkReason.ASSISTANT_DROPPED
        # Without a shared answer, only the first prompts begin alike.
        return ForkReason.USER_OR_TOOL_EDITED if common > near.answers[0] else ForkReason.NEW_ROOT
    added, skipped = mine[common:again], theirs[common : places[mine[again]]]
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


def _common(first: Sequence[bytes], other: Sequence[bytes]) -> int:
    """Length of the common beginning."""
    for index, (a, b) in enumerate(zip(first, other, strict=False)):
        if a != b:
            return index
    return min(len(first), len(other))


def _overlap(theirs: Sequence[bytes], mine: Sequence[bytes]) -> int:
    """How many assistant blocks of `theirs` stand anywhere in `mine`."""
    return len({block for block in theirs if _sampled(block)} & set(mine))


# --- branches


def _tips(turns: Sequence[Turn], by_echo: Mapping[bytes, Turn]) -> list[Turn]:
    """Turns whose echo is in no other turn's request."""
    echoed = {before.id for turn in turns if (before := _before(turn, by_echo))}
    return [turn for turn in turns if turn.id not in echoed]


def _before(turn: Turn, by_echo: Mapping[bytes, Turn]) -> Turn | None:
    return by_echo.get(turn.blocks[0]) if turn.blocks else None


def _branch(turn: Turn, by_echo: Mapping[bytes, Turn], keys: dict[str, bytes]) -> _Branch:
    """The branch that ends at `turn`. `keys`: keys of answers made already, since branches share their trunk."""
    way = [turn]
    while before := _before(way[-1], by_echo):
        way.append(before)
    blocks: list[bytes] = []
    answers: list[int] = []
    for step in reversed(way):
        blocks += step.blocks[1:]
        answers.append(len(blocks))
        key = keys.get(step.id)
        if key is None:
            calls = [(call.name, call.arguments) for call in step.reply.tool_calls]
            key = keys[step.id] = foreign_key(step.reply.text, calls)
        blocks.append(key)
    return _Branch(turn.head_key, blocks, answers)
