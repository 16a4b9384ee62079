"""A call of a gateway's control API as data: the request, how its answer is read, what its errors mean. (pure)

Who sends it: sandgate.gateway.client. The calls themselves: sandgate.contract.control_api.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Generic, TypeAlias, TypeVar, cast

from sandgate.contract.attach import NoRun
from sandgate.contract.errors import (
    CorruptRecord,
    EngineFailed,
    InvalidBody,
    Overloaded,
    SandgateError,
    Unavailable,
)

Json = Any
T = TypeVar("T")
U = TypeVar("U")

JSON: Final = "application/json"
REASON_HEADER: Final = "x-sandgate-reason"
"""Of an answer that is an error: `SandgateError.reason`."""
ANSWER_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of an answer: ten thousand events, or the handles of CREATE_BATCH sessions, have about 1 MB."""
PAGE_BYTES_MAX: Final = 64 * 1024 * 1024
"""Of a page of sessions or tasks: what their creators say about them has no other bound than a body's."""
ROWS_BYTES_MAX: Final = 1024 * 1024 * 1024
"""Of an answer that holds rows or a tree: 64 samples of 128,000 tokens have 330 MB as JSON."""
ERROR_BYTES_MAX: Final = 256 * 1024
"""Of an answer that is an error."""
ERROR_CHARS_MAX: Final = 2_000
"""Of an answer that is quoted in an error."""


@dataclass(frozen=True, slots=True)
class ControlAnswer:
    """An answer with a status below 400, or one that the call reads itself."""

    status: int
    headers: Mapping[str, str]
    """Looked up whatever their case."""
    body: bytes

    @property
    def json(self) -> Json:
        """None without a body. Raises ValueError for one that is not JSON."""
        try:
            return json.loads(self.body) if self.body else None
        except RecursionError as error:
            raise ValueError("nested too deeply") from error


Read: TypeAlias = Callable[[ControlAnswer], T]
"""What an answer means. Raises InvalidBody, or what Python raises for missing keys and wrong types: `outcome` makes
that a CorruptRecord."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlCall(Generic[T]):
    """One request. Every call may be sent twice: that does what sending it once does."""

    method: str
    path: str
    read: Read[T]
    json: Json = None
    params: Mapping[str, str] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    wait_s: float = 0.0
    """How long the gateway may hold the answer back on purpose; added to the client's own time-out."""
    also: tuple[int, ...] = ()
    """Statuses of 400 and more that `read` understands."""
    most: int = ANSWER_BYTES_MAX
    """Bytes of its answer."""

    def reading(self, read: Read[U]) -> ControlCall[U]:
        """The same request, its answer read otherwise."""
        return replace(cast(ControlCall[U], self), read=read)


def outcome(call: ControlCall[T], answer: ControlAnswer) -> T:
    """What the answer means. Raises the contract's error for its reason, CorruptRecord if it is not what was agreed."""
    if answer.status >= 400 and answer.status not in call.also:
        raise error_of(answer.status, answer.headers, answer.body)
    try:
        return call.read(answer)
    except InvalidBody as error:
        raise CorruptRecord(f"{call.method} {call.path}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CorruptRecord(f"{call.method} {call.path} answered something else: {error!r}") from error


def may_retry(error: SandgateError) -> bool:
    """429 and 503 say so themselves; a bad gateway between us may have let the request through, which does no harm."""
    return isinstance(error, Overloaded | Unavailable | EngineFailed) and not isinstance(error, NoRun)


def error_of(status: int, headers: Mapping[str, str], raw: bytes) -> SandgateError:
    """The exception that an answer stands for: by its reason, else by its status."""
    try:
        said = json.loads(raw)["error"]
        message, field_name = str(said["message"])[:ERROR_CHARS_MAX], said.get("param")
    except (ValueError, KeyError, TypeError, RecursionError):
        message = f"HTTP {status}: {raw[:ERROR_CHARS_MAX].decode('utf-8', 'replace').strip()}"
        field_name = None
    by_reason, by_status = _classes()
    kind = by_reason.get(headers.get(REASON_HEADER, "")) or by_status.get(status)
    if kind is None:
        kind = EngineFailed if 502 <= status <= 504 else SandgateError
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    error.__dict__.update(field=field_name, retry_after=_seconds(headers.get("Retry-After")))
    return error


def _classes() -> tuple[dict[str, type[SandgateError]], dict[int, type[SandgateError]]]:
    """By reason, and per status the most general class."""
    by_reason: dict[str, type[SandgateError]] = {}
    by_status: dict[int, type[SandgateError]] = {}
    kinds = [SandgateError]
    for kind in kinds:
        by_reason.setdefault(kind.reason, kind)
        by_status.setdefault(kind.status, kind)
        kinds += kind.__subclasses__()
    return by_reason, by_status


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:
        return None
