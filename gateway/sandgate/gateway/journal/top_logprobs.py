"""What a token might have been, as a client asked for it with `top_logprobs`: packed as in the journal, 15 bytes for
each, where tuples of Python's numbers would take a hundred. (pure)"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sandgate.contract.errors import CorruptRecord

Top = tuple[tuple[int, float], ...]
"""Of one token: (id, logprob), best first."""

_ONE: msgspec.msgpack.Decoder[Top] = msgspec.msgpack.Decoder(Top)
_ALL: msgspec.msgpack.Decoder[tuple[msgspec.Raw, ...]] = msgspec.msgpack.Decoder(tuple[msgspec.Raw, ...])
NONE = msgspec.Raw(msgspec.msgpack.encode(()))


def packed(top: Top) -> bytes:
    """Of one token."""
    return msgspec.msgpack.encode(top)


def unpacked(raw: bytes) -> Top:
    """Inverse of `packed`."""
    return _ONE.decode(raw)


def joined(tops: Sequence[bytes]) -> msgspec.Raw:
    """Of all tokens of a turn, as its record has them."""
    return msgspec.Raw(msgspec.msgpack.encode([msgspec.Raw(top) for top in tops])) if tops else NONE


def parted(raw: msgspec.Raw) -> tuple[bytes, ...]:
    """Inverse of `joined`. Raises CorruptRecord."""
    try:
        return tuple(bytes(top) for top in _ALL.decode(raw))
    except msgspec.MsgspecError as error:
        raise CorruptRecord(f"no alternatives of tokens: {error}") from error
