"""Top logprobs of tokens (OpenAI's `top_logprobs`), packed as in the journal. (pure)

An alternative takes 15 bytes, where tuples of Python's numbers would take a hundred.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sandgate.contract.errors import CorruptRecord

Top = tuple[tuple[int, float], ...]
"""The alternatives of one token: (id, logprob), best first."""

_ONE: msgspec.msgpack.Decoder[Top] = msgspec.msgpack.Decoder(Top)
_ALL: msgspec.msgpack.Decoder[tuple[msgspec.Raw, ...]] = msgspec.msgpack.Decoder(tuple[msgspec.Raw, ...])
NONE = msgspec.Raw(msgspec.msgpack.encode(()))


def packed(top: Top) -> bytes:
    """The alternatives of one token as bytes."""
    return msgspec.msgpack.encode(top)


def unpacked(raw: bytes) -> Top:
    """Inverse of `packed`."""
    return _ONE.decode(raw)


def joined(tops: Sequence[bytes]) -> msgspec.Raw:
    """The packed alternatives of all tokens of a turn, as its record has them."""
    return msgspec.Raw(msgspec.msgpack.encode([msgspec.Raw(top) for top in tops])) if tops else NONE


def parted(raw: msgspec.Raw) -> tuple[bytes, ...]:
    """Inverse of `joined`. Raises CorruptRecord."""
    try:
        return tuple(bytes(top) for top in _ALL.decode(raw))
    except msgspec.MsgspecError as error:
        raise CorruptRecord(f"no alternatives of tokens: {error}") from error
