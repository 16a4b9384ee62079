"""Turn: a committed turn as the tree keeps it: the journal's record with its arrays unpacked. (pure)"""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass
from typing import Any

from sandgate.contract.trajectory import Floats, Ids
from sandgate.gateway.journal.records import TurnCommitted
from sandgate.gateway.journal.reply import Reply
from sandgate.gateway.media.spans import Span

_SWAP = sys.byteorder == "big"
"""The journal is little-endian everywhere."""


def unpack_ids(raw: bytes) -> Ids:
    """int32 LE -> array('i')."""
    out = array("i")
    out.frombytes(raw)
    if _SWAP:
        out.byteswap()
    return out


def unpack_floats(raw: bytes) -> Floats:
    """float32 LE -> array('f')."""
    out = array("f")
    out.frombytes(raw)
    if _SWAP:
        out.byteswap()
    return out


def pack(values: Ids | Floats) -> bytes:
    """Inverse of `unpack_ids` and `unpack_floats`."""
    if _SWAP:
        values = values[:]
        values.byteswap()
    return values.tobytes()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Turn:
    """One sampled turn. Fields mean what they mean in `TurnCommitted`; arrays must not be changed."""

    id: str
    number: int
    """0, 1, ... in order of commit within the session."""
    parent: str | None
    fork: str | None
    digest: bytes
    index: int
    context: Ids
    ids: Ids
    logprobs: Floats
    versions: tuple[tuple[int, int, int], ...]
    finish: str
    stop_reason: str | int | None
    reply: Reply
    prompt_key: bytes
    head_key: bytes
    blocks: tuple[bytes, ...]
    sampling: dict[str, Any]
    engine: str
    build: str
    logprobs_mode: str
    renderer: str
    prompt_tokens: int
    cached_tokens: int
    resampled: bool
    resumed: int
    notes: tuple[str, ...]
    top: tuple[bytes, ...]
    """The top logprobs of each token, packed (journal.top_logprobs), if they were asked for. Never in the tree, where
    they would take megabytes a turn: only an answer has them, from the engine or read back from the journal."""
    pieces: bytes
    at: float
    created: int
    role: str
    """Empty in old journals."""
    role_why: str
    thread: str
    parent_thread: str
    media: tuple[Span, ...]
    """Placeholders of pictures in `context`."""


def turn_of(record: TurnCommitted, number: int) -> Turn:
    """The record as a turn."""
    return Turn(
        id=record.turn,
        number=number,
        parent=record.parent,
        fork=record.fork,
        digest=record.digest,
        index=record.index,
        context=unpack_ids(record.context),
        ids=unpack_ids(record.ids),
        logprobs=unpack_floats(record.logprobs),
        versions=record.versions,
        finish=record.finish,
        stop_reason=record.stop_reason,
        reply=record.reply,
        prompt_key=record.prompt_key,
        head_key=record.head_key,
        blocks=record.blocks,
        sampling=record.sampling,
        engine=sys.intern(record.engine),
        build=sys.intern(record.build),
        logprobs_mode=sys.intern(record.logprobs_mode),
        renderer=sys.intern(record.renderer),
        prompt_tokens=record.prompt_tokens,
        cached_tokens=record.cached_tokens,
        resampled=record.resampled,
        resumed=record.resumed,
        notes=record.notes,
        top=(),
        pieces=record.pieces,
        at=record.at,
        created=record.created or int(record.at),
        role=sys.intern(record.role),
        role_why=sys.intern(record.role_why),
        thread=sys.intern(record.thread),
        parent_thread=sys.intern(record.parent_thread),
        media=record.media,
    )
