"""Ids of tool calls that clients get, derived from turn ids. (pure)

All are derived from the turn's id, never drawn: a replay after a crash answers with the same bytes. They have the
forms that no known client rewrites: at most 40 characters of [A-Za-z0-9_-] (rule N8).
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b

CALL_BYTES = 12
"""24 hex digits: what OpenAI's and Anthropic's own ids carry, and enough never to meet in a session."""


@lru_cache(maxsize=8192)
def call_mark(turn: str, index: int) -> str:
    """24 hex digits that name call number `index` of `turn`; the part of a call id that every dialect shares."""
    return blake2b(f"{turn}/{index}".encode(), digest_size=CALL_BYTES, person=b"sandgate-call").hexdigest()


def call_id(turn: str, index: int, prefix: str = "call_") -> str:
    """`call_` (chat, responses) or `toolu_` (messages) + `call_mark`."""
    return prefix + call_mark(turn, index)


@lru_cache(maxsize=8192)
def item_mark(turn: str, number: int) -> str:
    """24 hex digits that name output item `number` of `turn` (Responses)."""
    return blake2b(f"{turn}/{number}".encode(), digest_size=CALL_BYTES, person=b"sandgate-item").hexdigest()


def item_id(turn: str, number: int, prefix: str) -> str:
    """`rs_`, `msg_`, `fc_` or `ctc_` + `item_mark`."""
    return prefix + item_mark(turn, number)


def mark_of(call: str) -> str:
    """The mark in a call id that may have any dialect's prefix; of a foreign id, whatever follows its last `_`."""
    return call.rpartition("_")[2]
