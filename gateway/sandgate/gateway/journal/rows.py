"""Rows of every journal: checksums, damaged tails, size limits, retries after a failed write. (pure)"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sandgate.contract.errors import CorruptRecord, InvalidBody, JournalUnavailable, TooLarge
from sandgate.gateway.journal.records import Record, decode, encode

MIB = 1 << 20
RECORD_BYTES_MAX = 64 * MIB
"""Size limit of one record. A turn is 8 bytes a sampled token plus its reply: a million tokens are about 12 MiB."""
QUEUE_BYTES_MAX = 256 * MIB
"""Limit of bytes that wait for the disk. A disk that lags further behind does not catch up by itself soon."""
RETRY_S = 1.0
"""Seconds between two attempts at a journal that failed, and the Retry-After of calls that are refused meanwhile."""
assert RECORD_BYTES_MAX < QUEUE_BYTES_MAX, "any record fits an empty queue"

Row = tuple[int, Any, Any, Any]
"""(sequence, session, body, checksum), as read: a damaged row header can make a number of a blob."""


def checksum(seq: int, session: str, body: bytes) -> int:
    """CRC-32 over session, a zero byte, body and sequence (8 bytes LE): a damaged row shows, and so does a moved one.

    Releases the GIL for bodies over 5 KiB.
    """
    crc = zlib.crc32(body, zlib.crc32(session.encode("utf-8", "surrogatepass") + b"\0"))
    return zlib.crc32(seq.to_bytes(8, "little", signed=True), crc)


def sound(row: Row) -> bool:
    """Whether the row is as it was written."""
    seq, session, body, crc = row
    return isinstance(session, str) and isinstance(body, bytes) and checksum(seq, session, body) == crc


def read(row: Row) -> tuple[int, str, Record]:
    """(sequence, session, record) of a row. Raises CorruptRecord, which names the sequence, and NewerRecord."""
    if not sound(row):
        raise CorruptRecord(f"record {row[0]}: the checksum does not hold")
    try:
        return row[0], row[1], decode(row[2])
    except CorruptRecord as error:
        raise CorruptRecord(f"record {row[0]}: {error}") from error


def cut_from(rows: Iterable[Row]) -> int | None:
    """The first sequence of a damaged tail; None if all rows are sound. Rows come in order.

    Raises CorruptRecord if a sound row follows a damaged one: that is no torn write, and more than the end is lost.
    """
    first: int | None = None
    for row in rows:
        if not sound(row):
            first = row[0] if first is None else first
        elif first is not None:
            raise CorruptRecord(
                f"record {first}: the checksum does not hold, and record {row[0]} after it is sound"
            )
    return first


def bodies(session: str, records: tuple[Record, ...]) -> tuple[bytes, ...]:
    """The records' encoded bytes. Raises InvalidBody for a session name that is not text, TooLarge."""
    if not session.isascii():
        try:
            session.encode()
        except UnicodeEncodeError as error:
            raise InvalidBody("session id is not valid Unicode", field="session_id") from error
    out = tuple(encode(record) for record in records)
    for body in out:
        if len(body) > RECORD_BYTES_MAX:
            raise TooLarge(f"a journal record of {len(body)} bytes; at most {RECORD_BYTES_MAX}")
    return out


def encoded(lines: Mapping[str, Record]) -> tuple[tuple[str, bytes], ...]:
    """(session, the record's bytes) of each line; as `bodies`."""
    return tuple((name, body) for name, line in lines.items() for body in bodies(name, (line,)))


def beyond(beginning: str) -> str:
    """The first name after all that begin like that."""
    return beginning[:-1] + chr(ord(beginning[-1]) + 1)


@dataclass(slots=True)
class JournalHealth:
    """Whether the journal takes writes. After a failure one attempt per RETRY_S is let through; others are refused."""

    detail: str = ""
    """Why the journal takes no writes; empty when it does."""
    retry_at: float = field(default=0.0)

    @property
    def good(self) -> bool:
        return not self.detail

    def due(self, now: float) -> bool:
        """Whether an attempt may be made. If so, claims it: the next one is due RETRY_S later."""
        if self.good:
            return True
        if now < self.retry_at:
            return False
        self.retry_at = now + RETRY_S
        return True

    def admit(self, now: float) -> None:
        """Raises JournalUnavailable while no attempt is due."""
        if not self.due(now):
            raise JournalUnavailable(self.detail, retry_after=max(0.1, self.retry_at - now))

    def fail(self, detail: str, now: float) -> None:
        self.detail, self.retry_at = detail or "unknown error", now + RETRY_S

    def heal(self) -> None:
        self.detail = ""
