"""Tree: a session's turns as a forest, and which turn a request continues. (pure)

Hashes find, tokens decide. `find` follows the request's keys (see `message_equality`) from its head, and at every
assistant message looks up the turns that were sampled for exactly the chain so far. The caller, who renders the prompt,
compares its ids.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from msgspec.structs import replace

from sandgate.contract.errors import CorruptRecord
from sandgate.contract.fork_reason import ForkReason
from sandgate.contract.trajectory import Ids
from sandgate.gateway.conversation import fork_reasons
from sandgate.gateway.conversation.echo_matching import Level, MatchPolicy
from sandgate.gateway.conversation.ids import call_mark, mark_of
from sandgate.gateway.conversation.message_equality import (
    GIVEN_HEAD,
    Outline,
    chain,
    ids_key,
    outline,
    start_key,
    turn_key,
)
from sandgate.gateway.conversation.messages import Message, TurnRequest
from sandgate.gateway.conversation.regrouped import regrouped
from sandgate.gateway.conversation.search import Index, Reading, walk
from sandgate.gateway.conversation.turn import Turn, turn_of
from sandgate.gateway.journal.records import TurnCommitted
from sandgate.gateway.media.spans import Span, Spans, within

_POLICY = MatchPolicy()
_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """Where a request stands in the tree. The last four fields belong into its turn's record, unchanged."""

    parent: str | None
    """The deepest turn whose echo ends a head of the request; None: a new root."""
    tail: int
    """Index of the first message after the parent's echo; 0 for a root."""
    fork: ForkReason | None
    """Why this is not simply the next turn of its branch; None if it is, and for a session's first turn."""
    level: Level
    """How freely the parent's echo was read."""
    head_key: bytes
    prompt_key: bytes
    blocks: tuple[bytes, ...]
    """First the chain's key where the parent's path ends, then the request's blocks from there."""
    notes: tuple[str, ...]


class Tree:
    """A session's turns. The tree grows by `apply` only, live and in replay alike; `find` changes nothing."""

    def __init__(self) -> None:
        self._turns: dict[str, Turn] = {}
        self._has_media = False
        self._children: dict[str | None, list[Turn]] = {}
        self._index = Index()
        self._sampled_ids: dict[str, str] = {}
        """Mark of a call (see `ids.call_mark`) -> its id as sampled, where the family prints one."""
        self._parallel: dict[str, tuple[str, int]] = {}
        """Mark of a call -> its turn and number, of turns that made several."""

    @property
    def turns(self) -> list[Turn]:
        """All turns in order of commit."""
        return list(self._turns.values())

    @property
    def by_id(self) -> Mapping[str, Turn]:
        """All turns in order of commit, by id; it grows with the tree."""
        return self._turns

    def __len__(self) -> int:
        return len(self._turns)

    def __contains__(self, turn_id: str) -> bool:
        return turn_id in self._turns

    def __getitem__(self, turn_id: str) -> Turn:
        """Raises KeyError."""
        return self._turns[turn_id]

    def children(self, turn_id: str | None) -> list[Turn]:
        """The turns that extend this turn, in order of commit; for None the roots."""
        return list(self._children.get(turn_id, ()))

    def leaves(self) -> list[Turn]:
        """Turns that no other turn extends, in order of commit."""
        return [turn for turn in self._turns.values() if turn.id not in self._children]

    # --- growing

    def apply(self, record: TurnCommitted) -> Turn:
        """Makes a committed turn visible. A second time it changes nothing.

        Raises CorruptRecord if the parent is unknown, or another turn has this id.
        """
        if seen := self._turns.get(record.turn):
            if (seen.parent, seen.digest, seen.index) != (record.parent, record.digest, record.index):
                raise CorruptRecord(f"two turns are called {record.turn}")
            return seen
        if record.parent is not None and record.parent not in self._turns:
            raise CorruptRecord(f"turn {record.turn} extends {record.parent}, which was never committed")
        turn = turn_of(record, len(self._turns))
        self._turns[turn.id] = turn
        self._has_media = self._has_media or bool(turn.media)
        self._children.setdefault(turn.parent, []).append(turn)
        self._index.learn(turn)
        for index, call in enumerate(turn.reply.tool_calls):
            if call.id:
                self._sampled_ids[call_mark(turn.id, index)] = call.id
            if len(turn.reply.tool_calls) > 1:
                self._parallel[call_mark(turn.id, index)] = (turn.id, index)
        return turn

    # --- finding

    def find(self, request: TurnRequest, policy: MatchPolicy = _POLICY, seen: Outline | None = None) -> Match:
        """The turn that `request` continues, and why not if it continues none. Changes nothing.

        `seen`: the request's outline, if it was made elsewhere (a long one, in a thread).
        """
        seen = seen or outline(request)
        start = Reading(start_key(seen.head.key), None, seen.head.length)
        best = walk(self._index, seen, start, policy)
        rest = seen.rest(best.at)
        prompt_key = chain(best.key, rest)
        parent = best.turn
        return Match(
            parent=parent.id if parent else None,
            tail=best.at if parent else 0,
            fork=self._fork(request, seen.head.key, best, rest, prompt_key),
            level=best.level,
            head_key=seen.head.key,
            prompt_key=prompt_key,
            blocks=(best.key, *rest),
            notes=best.notes,
        )

    def _fork(
        self, request: TurnRequest, head_key: bytes, best: Reading, rest: list[bytes], prompt_key: bytes
    ) -> ForkReason | None:
        if not self._turns:
            return None
        if prompt_key in self._index.by_prompt:
            return ForkReason.RETRY_RESAMPLED
        if best.turn and best.key not in self._index.known:
            return None  # nobody went on from here yet
        return fork_reasons.name(self.turns, self._index.by_echo, request, head_key, best.turn, rest)

    def find_ids(self, prompt: Ids, media: Spans = ()) -> Turn | None:
        """The deepest turn whose prompt + response ids are the head of `prompt`, and show the same pictures; of twins
        the newest. `media`: the pictures of `prompt`."""
        best: tuple[int, int] = (0, -1)
        deepest = None
        waiting = [(0, root) for root in self._children.get(None, ())]
        while waiting:
            start, turn = waiting.pop()
            middle = start + len(turn.context)
            end = middle + len(turn.ids)
            if (
                prompt[start:middle] == turn.context
                and prompt[middle:end] == turn.ids
                and within(media, start, end) == turn.media
            ):
                if (end, turn.number) > best:
                    best, deepest = (end, turn.number), turn
                waiting += [(end, child) for child in self._children.get(turn.id, ())]
        return deepest

    def place(self, prompt: Ids) -> Match:
        """Where a prompt belongs that the client made itself: its ids alone decide. Changes nothing."""
        parent = self.find_ids(prompt)
        known = len(self.path_ids(parent.id)) if parent else 0
        start = turn_key(parent.id) if parent else start_key(GIVEN_HEAD)
        block = ids_key(prompt[known:])
        prompt_key = chain(start, (block,))
        asked_before = prompt_key in self._index.by_prompt
        siblings = self.children(parent.id if parent else None)
        return Match(
            parent=parent.id if parent else None,
            tail=0,
            fork=ForkReason.RETRY_RESAMPLED
            if asked_before
            else fork_reasons.of_ids(siblings, prompt[known:], rooted=parent is None),
            level=Level.EXACT,
            head_key=GIVEN_HEAD,
            prompt_key=prompt_key,
            blocks=(start, block),
            notes=(),
        )

    # --- reading

    def regrouped(self, messages: tuple[Message, ...]) -> tuple[Message, ...]:
        """The messages of a request as they are found: calls of one turn stand together."""
        return regrouped(messages, self._parallel) if self._parallel else messages

    def with_sampled_ids(
        self, messages: Sequence[Message], renamed: Mapping[str, str] = _NONE, since: int = 0
    ) -> Sequence[Message]:
        """The messages with the call ids that the model sampled, where clients got others; `renamed`: see there, of
        the messages from `since` on. An id may have been another turn's before."""
        if not self._sampled_ids:
            return messages
        return [
            self._sampled(message, renamed if at >= since else _NONE) for at, message in enumerate(messages)
        ]

    def renamed(self, turn: Turn, echo: Sequence[Message]) -> tuple[Mapping[str, str], int]:
        """A client's own ids of the calls of `turn` -> as sampled, by place (rule N8), and how many messages the turn's
        echo has, if it calls. `echo`: the messages up to its end."""
        sampled = turn.reply.tool_calls
        told: list[str] = []
        count = 0
        for message in reversed(echo):
            if message.role != "assistant" or len(told) >= len(sampled):
                break
            told[:0] = (call.id for call in message.tool_calls)
            count += 1
        if len(told) != len(sampled):
            return _NONE, 0
        return {theirs: own.id for theirs, own in zip(told, sampled, strict=True) if own.id}, count

    def _sampled(self, message: Message, renamed: Mapping[str, str]) -> Message:
        if message.tool_call_id is not None:
            return replace(message, tool_call_id=self._own(message.tool_call_id, renamed))
        if not message.tool_calls:
            return message
        calls = [replace(call, id=self._own(call.id, renamed)) for call in message.tool_calls]
        return replace(message, tool_calls=tuple(calls))

    def _own(self, call_id: str, renamed: Mapping[str, str]) -> str:
        return renamed.get(call_id) or self._sampled_ids.get(mark_of(call_id), call_id)

    def path(self, turn_id: str) -> list[Turn]:
        """The path from the root to this turn. Raises KeyError."""
        out = []
        next_id: str | None = turn_id
        while next_id is not None:
            turn = self._turns[next_id]
            out.append(turn)
            next_id = turn.parent
        out.reverse()
        return out

    def read_as(self, turn_id: str) -> list[Turn]:
        """The turns as which the messages up to this turn's echo were read, in order; unlike `path`, those too that a
        rewritten history left on other branches. Raises KeyError."""
        out = []
        turn: Turn | None = self._turns[turn_id]
        while turn is not None:
            out.append(turn)
            turn = self._index.by_echo.get(turn.blocks[0]) if turn.blocks else None
        out.reverse()
        return out

    def prompt_ids(self, turn: Turn) -> Ids:
        """The ids that `turn` was sampled after; only its own context if its parent is not here (the tree was
        evicted)."""
        if turn.parent is None or turn.parent not in self._turns:
            return turn.context
        return self.path_ids(turn.parent) + turn.context

    def path_media(self, turn_id: str) -> Spans:
        """The pictures in `path_ids`."""
        if not self._has_media:
            return ()
        out, start = list[Span](), 0
        for turn in self.path(turn_id):
            out += [span.moved(start) for span in turn.media]
            start += len(turn.context) + len(turn.ids)
        return tuple(out)

    def path_ids(self, turn_id: str) -> Ids:
        """All ids up to and including this turn's sampled ids, as a new array that the caller may keep.

        One memory copy per turn of the path (100,000 ids in 50 turns: about 0.05 ms).
        """
        out = array("i")
        for turn in self.path(turn_id):
            out.extend(turn.context)
            out.extend(turn.ids)
        return out
