"""The judge. Reads only what agents were told, what engines sampled and what is on the disk; knows nothing of the core.

Each `check_*` is one law; what it yields are the sentences in which the law is broken.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

from sandgate.contract.trajectory import Ids
from sandgate.gateway.journal.records import CUT, Acked, Leased, Nacked, Rewarded, Sealed, TurnCommitted
from tests.simulation.history import NEVER, Asked, Group, History, Piece, Told
from tests.simulation.tasks import check_tasks
from tests.simulation.words import ASK
from tests.support.gateway import codec

UNDER_WAY_S = 0.1
"""From the moment in which a request is written until the engine has it."""
TAIL_IDS = 400
"""The last message of a prompt is shorter."""


@dataclass(slots=True)
class Turn:
    """A committed turn, as the disk has it."""

    session: str
    record: TurnCommitted
    ids: Ids
    context: Ids
    prompt: Ids
    """The whole, by its ancestors."""


@dataclass
class Case:
    """The evidence, in order."""

    history: History
    turns: dict[str, Turn] = field(default_factory=dict)
    sealed: dict[str, Sealed] = field(default_factory=dict)
    pieces: dict[str, list[Piece]] = field(default_factory=lambda: defaultdict(list))
    groups: dict[str, Group] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for session, record in self.history.ever:
            if isinstance(record, TurnCommitted):
                self._turn(session, record)
            elif isinstance(record, Sealed):
                self.sealed.setdefault(session, record)
        for piece in self.history.pieces:
            self.pieces[piece.turn].append(piece)
        for group in self.history.groups:
            for turn in group.turns:
                self.groups[turn] = group

    def _turn(self, session: str, record: TurnCommitted) -> None:
        if session in self.sealed:
            self.broken.append(f"turn {record.turn} was committed after the seal of {session}")
        if record.turn in self.turns:
            self.broken.append(f"turn {record.turn} was committed twice")
        parent = self.turns.get(record.parent) if record.parent else None
        if record.parent and (parent is None or parent.session != session):
            self.broken.append(f"turn {record.turn} extends {record.parent}, which is not there")
            return
        context = array("i", record.context)
        prompt = parent.prompt + parent.ids + context if parent else context
        self.turns[record.turn] = Turn(session, record, array("i", record.ids), context, prompt)

    def entitled(self, ask: str, until: float = NEVER) -> int:
        """How many answers of its own this question may get, by what was asked until then."""
        asked = [one for one in self.asks[ask] if one.at <= until]
        fresh = [one for one in asked if not one.retry]
        here = sorted((one for one in fresh if one.arrived != NEVER), key=lambda one: one.arrived)
        if any(later.at <= earlier.left for earlier, later in pairwise(fresh)):
            return max(1, len(fresh))  # twins, or nearly: two clients at once
        return 1 + sum(not _owed(asked, one) for one in here)

    @cached_property
    def asks(self) -> dict[str, list[Asked]]:
        """By question."""
        out: dict[str, list[Asked]] = defaultdict(list)
        for asked in self.history.asked:
            out[asked.ask].append(asked)
        return out

    def ask_of(self, piece: Piece) -> str:
        """The question that the engine saw last in its prompt."""
        found = ASK.findall(codec().decode(piece.prompt[-TAIL_IDS:]))
        return ":".join(found[-1]) if found else ""


def _owed(asked: list[Asked], later: Asked) -> bool:
    """Nobody was told an answer to the question yet, and nobody else waits: this one must not get a second one."""
    before = [one for one in asked if one.at < later.at]
    return not any(one.answered for one in before) and all(
        one.arrived == NEVER or one.missed < later.arrived for one in before
    )


def verdict(history: History) -> list[str]:
    """All that is wrong; empty if nothing is."""
    case = Case(history)
    laws = (
        check_told,
        check_one_answer,
        check_no_resampling,
        check_exact,
        check_weights,
        check_rows,
        check_ends,
        check_leases,
    )
    told = (line for law in laws for line in law(case))
    return [*history.wrong, *case.broken, *told, *check_tasks(history)]


def check_told(case: Case) -> Iterator[str]:
    """What an agent was told was durable before, is durable now, and says what was committed."""
    for told in case.history.told:
        durable = case.history.durable.get(told.turn, NEVER)
        if durable > told.sent:
            yield f"{told.ask}: turn {told.turn} was told at {told.sent:.4f} and durable at {durable:.4f}"
        group = case.groups.get(told.turn)
        turns = group.turns if group else (told.turn,)
        if len(turns) != told.asked.n:
            yield f"{told.ask}: {told.asked.n} choices were told, {len(turns)} generations were announced"
        for turn, choice in zip(turns, told.choices, strict=False):
            committed = case.turns.get(turn)
            if committed is None or committed.session != told.session:
                yield f"{told.ask}: turn {turn} was told and is not on the disk"
            elif choice is not None and (why := _differs(choice, committed)):
                yield f"{told.ask}: turn {turn} was told otherwise than committed: {why}"


def _differs(choice: tuple[Any, ...], committed: Turn) -> str:
    text, reasoning, calls, finish, logprobs = choice
    record = committed.record
    reply = record.reply
    if (text, reasoning) != (reply.text, reply.reasoning):
        return f"text {text!r}, {reasoning!r}; committed {reply.text!r}, {reply.reasoning!r}"
    if [call[1:] for call in calls] != [(call.name, call.arguments) for call in reply.tool_calls]:
        return f"calls {calls!r}; committed {reply.tool_calls!r}"
    wanted = "length" if record.finish != "stop" else "tool_calls" if reply.tool_calls else "stop"
    if finish != wanted:
        return f"finish {finish!r}; committed {record.finish!r}"
    if logprobs is not None and list(logprobs) != array("f", record.logprobs).tolist():
        return "other logprobs"
    return ""


def check_one_answer(case: Case) -> Iterator[str]:
    """Who asks once is told one answer, however often it has to ask for it; and byte for byte the same one."""
    by_ask: dict[str, list[Told]] = defaultdict(list)
    for told in case.history.told:
        by_ask[told.ask].append(told)
    for ask, answers in by_ask.items():
        fresh = case.entitled(ask)
        turns = {told.turn for told in answers}
        if len(turns) > fresh:
            yield f"{ask}: asked {fresh} times, told {len(turns)} answers {sorted(turns)}"
        yield from _shared(ask, answers)
        said: dict[tuple[str, int], Any] = {}
        for told in answers:
            for index, choice in enumerate(told.choices):
                if choice is None:
                    continue
                text = said.setdefault((told.turn, index), choice)
                both = text[4] is not None and choice[4] is not None
                if text[:4] != choice[:4] or (both and text[4] != choice[4]):
                    yield f"{ask}: turn {told.turn} was told as {text!r} and as {choice!r}"


def _shared(ask: str, answers: list[Told]) -> Iterator[str]:
    """Two who ask at once, each on a connection that lives, are two; neither is the other's retry."""
    fresh = [told for told in answers if told.accepted and not told.asked.retry]
    for one in fresh:
        for other in fresh:
            both = one.asked.arrived < other.asked.arrived < one.sent
            if one is not other and both and one.turn == other.turn:
                yield f"{ask}: turn {one.turn} was told to two who asked for one each"


def check_no_resampling(case: Case) -> Iterator[str]:
    """No generation begins for a question that has an answer, or one on its way, for everybody who asked it anew."""
    by_ask: dict[str, list[Group]] = defaultdict(list)
    for group in case.history.groups:
        made = next((case.pieces[turn][0] for turn in group.turns if case.pieces.get(turn)), None)
        if made is not None:
            by_ask[case.ask_of(made)].append(group)
    for ask, groups in by_ask.items():
        for group in groups:
            fresh = case.entitled(ask, group.begun)
            older = [other for other in groups if other.begun < group.begun and _holds(case, other, group)]
            if len(older) >= fresh:
                said = ", ".join(f"{other.turns[0]} (durable {other.durable:.4f})" for other in older)
                yield (
                    f"{ask}: sampled again as {group.turns[0]} at {group.begun:.4f}, asked {fresh} times; {said}"
                )


def _holds(case: Case, other: Group, group: Group) -> bool:
    """Is `other` an answer, or still on its way, when `group` begins?"""
    if other.durable <= group.begun:
        return all(
            turn in case.turns for turn in other.turns
        )  # of a torn group, all that is left may be a part
    if other.over != NEVER and not other.cut:
        return other.over > group.begun
    if other.durable != NEVER:
        return True
    pieces = [piece for turn in other.turns for piece in case.pieces.get(turn, ())]
    last = max((min(piece.ended, case.history.end) for piece in pieces), default=other.begun)
    return last > group.begun


def check_exact(case: Case) -> Iterator[str]:
    """Every committed turn is, token for token, what the engine sampled after exactly that prompt."""
    for name, turn in case.turns.items():
        pieces = case.pieces.get(name)
        if not pieces:
            yield f"turn {name} was never sampled"
            continue
        yield from (f"turn {name}: {why}" for why in _inexact(case, turn, pieces))


def _inexact(case: Case, turn: Turn, pieces: list[Piece]) -> Iterator[str]:
    logprobs = array("f", turn.record.logprobs)
    versions = array("i", (v for v, start, end in turn.record.versions for _ in range(start, end)))
    starts = [len(piece.prompt) - len(turn.prompt) for piece in pieces]
    for number, (piece, start) in enumerate(zip(pieces, starts, strict=True)):
        if piece.prompt != turn.prompt + turn.ids[:start] or start < 0:
            yield f"piece {number} was sampled after another prompt"
            return
        end = min(starts[number + 1 :], default=len(turn.ids))
        got = piece.ids[: end - start]
        if got != turn.ids[start:end]:
            yield f"ids {start}:{end} are {turn.ids[start:end].tolist()}, the engine sampled {got.tolist()}"
        elif piece.bare and piece.told and not piece.reported and end > start:
            yield f"versions {start}:{end} are {versions[start:end].tolist()}, sampled by an engine that had restarted"
        elif piece.logprobs[: end - start] != logprobs[start:end]:
            yield f"the logprobs of ids {start}:{end} are not the engine's"
        else:
            true = piece.versions[: end - start]
            # Without a report what was told counts: before, or, of a stream, as its tokens came: a trainer that swaps
            # weights without a pause tells it a moment after they are there, and what was sampled before may come
            # later. One that came behind a cut is unheard.
            unheard = turn.record.finish == CUT or not piece.reported
            heard = max((v for v, at in case.history.versions.items() if at <= piece.ended), default=0)
            spans = ((min(piece.told, one), max(heard, one)) if unheard else (one, one) for one in true)
            pairs = zip(versions[start:end], spans, strict=True)
            if any(not low <= one <= high for one, (low, high) in pairs):
                yield f"versions {start}:{end} are {versions[start:end].tolist()}, sampled by {true.tolist()}"
    if turn.record.finish == CUT:  # what was there when it was cut: no more is known of its end
        return
    last = pieces[-1]
    wanted = "stop" if turn.ids and turn.ids[-1] in codec().stop_ids else "length"
    if turn.record.finish != wanted or (last.answered and len(turn.ids) != starts[-1] + len(last.ids)):
        yield f"it ended with {turn.record.finish}, the engine with {wanted}"


def check_weights(case: Case) -> Iterator[str]:
    """While new turns are held none begins, and none is labelled with weights that were replaced before it began."""
    for group in case.history.groups:
        if any(held < group.begun < let_go for held, let_go in case.history.pauses):
            yield f"turn {group.turns[0]} began at {group.begun:.4f}, in a pause"
    for piece in case.history.pieces:
        known = [v for v, heard in case.history.versions.items() if heard + UNDER_WAY_S < piece.started]
        if piece.told < max(known, default=0):
            yield (
                f"turn {piece.turn}: sampled from {piece.started:.4f} for version {piece.told}, "
                f"although {max(known)} was told by then"
            )


def check_rows(case: Case) -> Iterator[str]:
    """Every trajectory is exact, each sampled token is trained once, and nothing that was told is missing."""
    first: dict[str, list[dict[str, Any]]] = {}
    for session, rows in case.history.rows:
        if session in first:
            if rows != first[session]:
                yield f"{session}: its trajectories were told in two ways"
            continue
        first[session] = rows
        trained: set[str] = set()
        for row in rows:
            yield from (f"{session}/{row['trajectory_id']}: {why}" for why in _row(case, row, trained))
        seal = case.sealed.get(session)
        if seal is not None and seal.aborted:  # in a lease only if it is all that its group has
            if rows:
                yield f"{session} was aborted, and has rows"
            continue
        yield from _missing(case, session, {turn for row in rows for turn in row["turn_ids"]})
    for session, reward in case.history.rewards.items():
        for row in first.get(session, ()):
            if row["reward"] != reward:
                yield f"{session}: rewarded {reward}, its trajectory says {row['reward']}"


def _row(case: Case, row: dict[str, Any], trained: set[str]) -> Iterator[str]:
    seal = case.sealed.get(row["session_id"])
    every = seal is not None and seal.shared_nodes == "every"
    whole = row["prompt_ids"] + row["response_ids"]
    head = len(row["prompt_ids"])
    masked = 0
    parent: str | None = None
    for name, end in zip(row["turn_ids"], row["turn_ends"], strict=True):
        turn, pieces = case.turns.get(name), case.pieces.get(name)
        if turn is None or not pieces:
            yield f"turn {name} is not on the disk, or was never sampled"
            return
        start = end - len(turn.ids)
        if turn.record.parent != parent:
            yield f"turn {name} does not extend {parent}"
        parent = name
        if (
            whole[: head + start] != pieces[0].prompt.tolist()
            or row["response_ids"][start:end] != turn.ids.tolist()
        ):
            yield f"the ids up to turn {name} are not what the engine saw and said"
        mine = every or name not in trained
        trained.add(name)
        masked += len(turn.ids) if mine else 0
        mask, told = row["loss_mask"][start:end], row["response_logprobs"][start:end]
        versions = [v for v, a, b in turn.record.versions for _ in range(a, b)]
        if mask != [int(mine)] * len(turn.ids):
            yield f"turn {name}: mask {mask}, although it is {'' if mine else 'not '}trained here"
        if mine and (
            told != array("f", turn.record.logprobs).tolist() or row["versions"][start:end] != versions
        ):
            yield f"turn {name}: other logprobs or versions than committed"
    if sum(row["loss_mask"]) != masked:
        yield f"{sum(row['loss_mask'])} ids have mask 1, {masked} were sampled"
    if row["turn_ends"] and row["turn_ends"][-1] != len(row["response_ids"]):
        yield "something follows the last sample"


def _missing(case: Case, session: str, here: set[str]) -> Iterator[str]:
    """What the agent had heard to its end before anybody asked for the session's end, is in a trajectory."""
    until = case.history.finalizing.get(session, NEVER)
    for told in case.history.told:
        if told.session == session and told.accepted and told.heard < until:
            group = case.groups[told.turn]
            if not any(turn in here for turn in group.turns):
                yield f"{session}: turn {told.turn} ({told.ask}) was told and is in no trajectory"


def check_ends(case: Case) -> Iterator[str]:
    """A driver that was told of an end can rely on it."""
    for session in case.history.finalized:
        if session not in case.sealed or case.sealed[session].aborted:
            yield f"{session} was finalized, and the disk does not say so"
    for name, pieces in case.pieces.items():
        session = case.groups[name].session
        for piece in pieces:
            if piece.ended > case.history.ended.get(session, NEVER):
                yield f"{session} is over, and turn {name} is sampled still"
    for session in case.history.aborted:
        if session not in case.sealed or not case.sealed[session].aborted:
            yield f"{session} was aborted, and the disk does not say so"
    given = {session for session, record in case.history.ever if isinstance(record, Rewarded)}
    for session in case.history.rewarded - given:
        yield f"{session} was rewarded, and the disk does not say so"


def check_leases(case: Case) -> Iterator[str]:
    """No session is acked twice, none that is good is left over, and no two trainers hold the same one at once."""
    acked: dict[str, str] = {}
    leased: dict[str, Leased] = {}
    ended: dict[str, float] = {}
    for _, record in case.history.ever:
        if isinstance(record, Acked):
            yield from _acked(record, acked)
        if isinstance(record, Acked | Nacked):
            ended.setdefault(record.lease, record.at)
        if isinstance(record, Leased):
            leased.setdefault(record.lease, record)
    for lease, sessions in case.history.acked.items():
        for session in sessions:
            if acked.get(session) != lease:
                yield f"{session}: the ack of lease {lease} was taken, the disk says {acked.get(session)}"
    for session in case.history.finalized:
        seal = case.sealed.get(session)
        if seal is not None and not seal.aborted and seal.failure_class != "infra" and session not in acked:
            yield f"{session} is good, and was never acked"
    yield from _overlaps(case, leased, ended)


def _acked(record: Acked, acked: dict[str, str]) -> Iterator[str]:
    for session in record.sessions:
        if acked.get(session, record.lease) != record.lease:
            yield f"{session} was acked twice: {acked[session]}, {record.lease}"
        acked[session] = record.lease


def _overlaps(case: Case, leased: dict[str, Leased], ended: dict[str, float]) -> Iterator[str]:
    for lease, told_at, until, sessions in case.history.leases:
        mine = leased.get(lease)
        if mine is None or mine.sessions != sessions or mine.until != until:
            yield f"lease {lease} was told at {told_at:.4f} and is not on the disk"
            continue
        for other in leased.values():
            shared = set(other.sessions) & set(sessions)
            early = mine.at <= other.at < min(until, ended.get(lease, NEVER))
            if other.lease != lease and shared and early:
                yield f"{sorted(shared)} is held by lease {lease} until {until}, and was given to {other.lease}"
