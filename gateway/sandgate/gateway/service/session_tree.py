"""A session's tree as JSON for the viewer, and as trajectories for trainers. (pure)"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sandgate.contract.trajectory import Floats, Ids, Json, Trajectory
from sandgate.gateway.conversation.turn import Turn, unpack_floats, unpack_ids
from sandgate.gateway.journal.records import (
    CUT,
    Completed,
    Delivered,
    Opened,
    PicturesKept,
    Record,
    Rewarded,
    Sealed,
    TurnCommitted,
)
from sandgate.gateway.media.pictures import Picture
from sandgate.gateway.media.spans import Spans, collapse
from sandgate.gateway.service.session import Session, SessionPhase
from sandgate.gateway.tokens.api import Codec
from sandgate.gateway.trajectories.linearize import Facts, linearize

TEXT_CHARS_MAX = 200_000
"""Characters of one span in the viewer; ids are always complete."""


def tree_view(session: Session, codec: Codec | None) -> dict[str, Json]:
    """The tree as JSON. Turns come in commit order. Each has spans of (mask, ids, text): the context that it added
    (mask 0), and what was sampled (mask 1)."""
    return {**session.summary(), "turns": [_turn(session, turn, codec) for turn in session.tree.turns]}


def _turn(session: Session, turn: Turn, codec: Codec | None) -> dict[str, Json]:
    def span(mask: int, ids: list[int]) -> dict[str, Json]:
        out: dict[str, Json] = {"mask": mask, "ids": ids}
        if codec is not None:
            shown = turn.ids if mask else collapse(turn.context, turn.media)  # one placeholder per picture
            out["text"] = codec.decode(shown)[:TEXT_CHARS_MAX]
        return out

    return {
        "turn": turn.id,
        "parent": turn.parent,
        "fork": turn.fork,
        "role": turn.role,
        "role_why": turn.role_why,
        "thread": turn.thread,
        "parent_thread": turn.parent_thread,
        "finish": turn.finish,
        "stop_reason": turn.stop_reason,
        "prompt_tokens": turn.prompt_tokens,
        "sampled_tokens": len(turn.ids),
        "versions": [list(version_span) for version_span in turn.versions],
        "logprob_sum": sum(turn.logprobs),
        "delivered": _delivered(session, turn),
        "resampled": turn.resampled,
        "resumed": turn.resumed,
        "notes": list(turn.notes),
        "engine": turn.engine,
        "build": turn.build,
        "logprobs_mode": turn.logprobs_mode,
        "renderer": turn.renderer,
        "sampling": turn.sampling,
        "images": [
            {"start": span.start, "length": span.length, "digest": span.digest.hex()} for span in turn.media
        ],
        "at": turn.at,
        "spans": [span(0, turn.context.tolist()), span(1, turn.ids.tolist())],
        "logprobs": turn.logprobs.tolist(),
    }


def _delivered(session: Session, turn: Turn) -> bool | str:
    """Whether the client was sent the answer: in full, not at all, or "partly", when it let go of the stream."""
    if turn.id in session.delivered:
        return True
    return "partly" if turn.finish == CUT or turn.id in session.partly else False


def trajectories_of(session: Session, facts: Facts) -> list[Trajectory]:
    """One row per leaf of a finalized session, in order of each leaf's commit; no rows of any other session. A session
    that shows pictures has them in the journal only: `trajectories_from`."""
    if session.phase is not SessionPhase.FINALIZED or session.sealed is None:
        return []
    return linearize(
        session.tree.turns,
        session_id=session.session_id,
        spec=session.spec,
        sealed=session.sealed,
        delivered=session.delivered,
        partly=session.partly,
        rewarded=session.rewards,
        completed=session.completed.info if session.completed else None,
        facts=facts,
    )


@dataclass(frozen=True, slots=True)
class _Turn:
    """The part of a turn that its rows need."""

    id: str
    parent: str | None
    fork: str | None
    context: Ids
    ids: Ids
    logprobs: Floats
    versions: tuple[tuple[int, int, int], ...]
    finish: str
    index: int
    role: str
    role_why: str
    head_key: bytes
    sampling: dict[str, Json]
    build: str
    logprobs_mode: str
    renderer: str
    media: Spans


def trajectories_from(session_id: str, records: Iterable[Record], facts: Facts) -> list[Trajectory]:
    """The rows that `trajectories_of` gives for the session of these records, without building the tree that a live
    session needs: in a third of the time."""
    turns: dict[str, _Turn] = {}
    pictures: dict[bytes, Picture] = {}
    delivered: set[str] = set()
    partly: set[str] = set()
    rewarded: list[Rewarded] = []
    spec: dict[str, Json] = {}
    sealed: Sealed | None = None
    completed: Completed | None = None
    for record in records:
        match record:
            case TurnCommitted():
                if sealed is None and record.turn not in turns:
                    turns[record.turn] = _turn_of(record)
            case PicturesKept():
                pictures.update((picture.digest, picture) for picture in record.pictures)
            case Delivered():
                if not record.unsure:
                    (partly if record.partly else delivered).add(record.turn)
            case Rewarded():
                rewarded.append(record)
            case Opened():
                spec = record.spec
            case Completed():
                completed = completed or record
            case Sealed():
                sealed = sealed or record
    if sealed is None or sealed.aborted:
        return []
    return linearize(
        turns.values(),
        session_id=session_id,
        spec=spec,
        sealed=sealed,
        delivered=delivered,
        partly=partly,
        rewarded=rewarded,
        completed=completed.info if completed else None,
        facts=facts,
        pictures=pictures,
    )


def _turn_of(record: TurnCommitted) -> _Turn:
    return _Turn(
        record.turn,
        record.parent,
        record.fork,
        unpack_ids(record.context),
        unpack_ids(record.ids),
        unpack_floats(record.logprobs),
        record.versions,
        record.finish,
        record.index,
        record.role,
        record.role_why,
        record.head_key,
        record.sampling,
        record.build,
        record.logprobs_mode,
        record.renderer,
        record.media,
    )
