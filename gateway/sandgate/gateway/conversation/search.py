"""Search of the tree for the deepest turn that a request continues, over several readings at once. (pure)

Siblings may have sampled the same text, and an assistant message may be a turn of ours or the client's own words. So a
frontier of readings is carried along. A reading whose key no committed request ever passed through leads nowhere deeper
and is dropped: a plain continuation has one reading.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sandgate.gateway.conversation.echo_matching import Level, MatchPolicy, Recognised, recognise
from sandgate.gateway.conversation.ids import call_mark
from sandgate.gateway.conversation.message_equality import FOREIGN, RUN_MAX, Outline, chain, echo_of, turn_key
from sandgate.gateway.conversation.turn import Turn

FRONTIER_MAX = 16
"""Limit of readings carried past one message: of more equal siblings, the best 16 by rule N12 are followed."""


@dataclass(slots=True)
class Index:
    """Finds committed turns by keys."""

    by_prompt: dict[bytes, list[Turn]] = field(default_factory=dict)
    """Chain key of a whole request -> the turns sampled for it, in order of commit."""
    by_echo: dict[bytes, Turn] = field(default_factory=dict)
    """`turn_key` -> turn."""
    known: set[bytes] = field(default_factory=set)
    """Chain keys that some committed request passed through."""
    foreign_from: set[bytes] = field(default_factory=set)
    """Keys in `known` that were followed by an assistant message that was not sampled here."""
    calls: dict[str, str] = field(default_factory=dict)
    """Call mark -> turn."""

    def learn(self, turn: Turn) -> None:
        """Adds a committed turn."""
        self.by_prompt.setdefault(turn.prompt_key, []).append(turn)
        self.by_echo[turn_key(turn.id)] = turn
        self.calls.update((call_mark(turn.id, index), turn.id) for index in range(len(turn.reply.tool_calls)))
        self.known.add(turn.prompt_key)
        if turn.blocks:
            key = turn.blocks[0]
            self.known.add(key)
            for block in turn.blocks[1:]:
                if block[:1] == FOREIGN:
                    self.foreign_from.add(key)
                key = chain(key, (block,))
                self.known.add(key)


@dataclass(frozen=True, slots=True)
class Reading:
    """A reading of the request's first `at` messages. `turn` is the last turn recognised in it."""

    key: bytes
    turn: Turn | None
    at: int
    since: int = 0
    """Messages up to and including the echo of `turn`."""
    cost: int = 0
    """Cost of all echoes read so far."""
    level: Level = Level.EXACT
    notes: tuple[str, ...] = ()

    @property
    def rank(self) -> tuple[int, int, int]:
        """N12: the deepest reading is best, then exact ids, exact text, then the newest turn. Higher is better."""
        return self.since, -self.cost, self.turn.number if self.turn else -1


def walk(index: Index, seen: Outline, start: Reading, policy: MatchPolicy) -> Reading:
    """The best reading, up to its last recognised turn (or `start`). A request that was answered before is read as
    it was then, if that is as deep."""
    best = start
    ends: list[Reading] = []
    waiting: dict[int, dict[bytes, Reading]] = {start.at: {start.key: start}}
    total = len(seen.messages)
    bases: dict[bytes, Reading] = {}
    for at in range(start.at, total + 1):
        for state in _foremost(waiting.pop(at, {})):
            if at == total:
                ends.append(state)
            elif seen.run_end[at]:
                for after in _readings(index, seen, state, policy):
                    if after.since > state.since:
                        bases[after.key] = after
                        if best.rank < after.rank:
                            best = after
                    if after.key in index.known:
                        _push(waiting, after)
            else:
                key = chain(state.key, seen.blocks[at])
                if key in index.known:
                    _push(waiting, _moved(state, key, at + 1))
    for end in ends:
        if end.key in index.by_prompt and end.since == best.since and end.turn is not best.turn and end.turn:
            return bases[turn_key(end.turn.id)]
    return best


def _moved(state: Reading, key: bytes, at: int) -> Reading:
    return Reading(key, state.turn, at, state.since, state.cost, state.level, state.notes)


def _push(waiting: dict[int, dict[bytes, Reading]], state: Reading) -> None:
    level = waiting.setdefault(state.at, {})
    other = level.get(state.key)
    if other is None or other.rank < state.rank:
        level[state.key] = state


def _foremost(level: dict[bytes, Reading]) -> list[Reading]:
    states = list(level.values())
    if len(states) > FRONTIER_MAX:
        states.sort(key=lambda state: state.rank, reverse=True)
        del states[FRONTIER_MAX:]
    return states


def _readings(index: Index, seen: Outline, state: Reading, policy: MatchPolicy) -> Iterator[Reading]:
    """Readings of the assistant messages at `state.at`: echoes of turns sampled for this chain, or foreign words."""
    candidates = index.by_prompt.get(state.key, ())
    last = seen.run_end[state.at]
    ends = (
        (last,) if last == state.at + 1 else {*range(state.at + 1, min(last, state.at + RUN_MAX) + 1), last}
    )
    for end in ends:
        echo = echo_of(seen.messages[state.at : end])
        for turn in candidates:
            how = recognise(echo, turn.id, turn.reply, turn.stop_reason, index.calls, policy)
            if how:
                yield _recognised(state, turn, how, end)
        if state.key in index.foreign_from:
            key = chain(state.key, (echo.key,))
            if key in index.known:
                yield _moved(state, key, end)


def _recognised(state: Reading, turn: Turn, how: Recognised, end: int) -> Reading:
    notes = tuple(f"{turn.id}: {note}" for note in how.notes) if how.notes else ()
    return Reading(turn_key(turn.id), turn, end, end, state.cost + how.cost, how.level, notes)
