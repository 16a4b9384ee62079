"""Errors: the exception tree, with the reason code and HTTP status of each.

The *reason* is API (metrics labels, ``x-sandgate-reason``, conditions); the text is for people.

SandgateError
 +- BadRequest            400  the caller must change the request
 |   +- InvalidBody            a field is missing, of the wrong type or out of bounds
 |   +- Unsupported            a known field that cannot be honoured
 |   +- PromptTooLong          the rendered prompt exceeds the window
 |   +- LimitReached           the session used up its turns or tokens
 |   +- RefusedByEngine        the engine refuses what the request asks for
 |   +- BadManifest            a RolloutJob manifest does not say what it must
 +- Unauthorized          401  no key, or one that does not verify
 +- Forbidden             403  a good key, for something else
 +- NotFound              404  no such session, model, lease, path
 +- Conflict              409  the same name with another meaning
 +- Gone                  410  the session has ended
 +- TooLarge              413  the body exceeds the limit
 +- Overloaded            429  come back after ``retry_after``
 +- EngineFailed          502  the engine answered wrongly
 |   +- ModelNotServed         it has no model of that name
 |   +- TokenizerMismatch      its vocabulary is another one
 +- Unavailable           503  come back after ``retry_after``
 |   +- Paused                 a weight update holds new turns
 |   +- Draining               this process is shutting down
 |   +- JournalUnavailable     a turn cannot be made durable now
 |   +- EngineUnavailable      no replica answers
 |   +- MediaUnavailable       a host of images does not give one now
 +- RecordError                a stored record cannot be trusted
     +- NewerRecord            written by a newer version
     +- CorruptRecord          damaged
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar


class SandgateError(Exception):
    """Root of the tree. `reason` is API; `status` the HTTP status; `retry_after` seconds or None."""

    reason: ClassVar[str] = "Internal"
    status: ClassVar[int] = 500
    retry_after: float | None = None

    def __reduce__(self) -> tuple[Callable[..., SandgateError], tuple[Any, ...]]:
        """Errors cross processes (Ray, pools of workers); Python would call `__init__` with the message alone."""
        return _as_it_was, (type(self), self.args, self.__dict__)


def _as_it_was(kind: type[SandgateError], args: tuple[Any, ...], state: dict[str, Any]) -> SandgateError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class BadRequest(SandgateError):
    """400: the caller must change the request; retrying cannot help."""

    reason, status = "BadRequest", 400

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class InvalidBody(BadRequest):
    """A field is missing, of the wrong type or out of bounds. `field` is its path (``messages[0].role``)."""

    reason = "InvalidBody"


class Unsupported(BadRequest):
    """A known field asks for what cannot be honoured here."""

    reason = "Unsupported"


class ToolsNotSupported(Unsupported):
    """The model would never see the tools, or never be read to have called one."""

    reason = "ToolsNotSupported"


class PromptTooLong(BadRequest):
    """The rendered prompt leaves no room for a single token in the model's window."""

    reason = "PromptTooLong"

    def __init__(self, *, tokens: int, limit: int) -> None:
        super().__init__(f"prompt has {tokens} tokens; this model takes {limit}", field="messages")
        self.tokens, self.limit = tokens, limit


class LimitReached(BadRequest):
    """The session used up what its job allows (turns, total tokens), or its share of a journal that is nearly full."""

    reason = "LimitReached"

    def __init__(self, what: str, *, used: int, limit: int) -> None:
        super().__init__(f"session limit reached: {what} {used} of {limit}", field=what)
        self.what, self.used, self.limit = what, used, limit


class RefusedByEngine(BadRequest):
    """The engine refuses what this request asks for; the words are its own."""

    reason = "RefusedByEngine"


class BadManifest(BadRequest):
    """A manifest does not say what it must. `field` is its path (``spec.groupSize``)."""

    reason = "BadManifest"


class Unauthorized(SandgateError):
    """401: no key, or one that does not verify or has expired."""

    reason, status = "Unauthorized", 401


class Forbidden(SandgateError):
    """403: the key is good, but for another session or scope."""

    reason, status = "Forbidden", 403


class NotFound(SandgateError):
    """404: no such session, model, lease or path."""

    reason, status = "NotFound", 404


class Conflict(SandgateError):
    """409: the same name was used with another meaning."""

    reason, status = "Conflict", 409

    def __init__(self, message: str, *, field: str | None = None) -> None:
        """`field`: the one of the request whose value must be another, if it is one."""
        super().__init__(message)
        self.field = field


class Gone(SandgateError):
    """410: the session has ended."""

    reason, status = "SessionEnded", 410


class TooLarge(SandgateError):
    """413: the body exceeds the limit."""

    reason, status = "TooLarge", 413


class Overloaded(SandgateError):
    """429: too many at once; `retry_after` seconds."""

    reason, status = "Overloaded", 429

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineFailed(SandgateError):
    """502: the engine refused or answered what cannot be trusted."""

    reason, status = "EngineFailed", 502


class ModelNotServed(EngineFailed):
    """The engine does not serve the model that it was asked for: spec.model.name, or spec.engine.model, is wrong."""

    reason = "ModelNotServed"


class TokenizerMismatch(EngineFailed):
    """Engine and gateway do not have the same vocabulary: spec.model.tokenizer is another model's."""

    reason = "TokenizerMismatch"


class Unavailable(SandgateError):
    """503: not now; `retry_after` seconds."""

    reason, status = "Unavailable", 503

    def __init__(self, message: str, *, retry_after: float = 1.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Paused(Unavailable):
    """A weight update held this turn for longer than the pause timeout."""

    reason = "Paused"


class Draining(Unavailable):
    """This process is shutting down and takes no new turns."""

    reason = "Draining"


class JournalUnavailable(Unavailable):
    """The journal cannot make a turn durable (disk full, read-only, corrupt)."""

    reason = "JournalUnavailable"


class EngineUnavailable(Unavailable):
    """No engine replica answers."""

    reason = "EngineUnavailable"


class MediaUnavailable(Unavailable):
    """A host of images (`media.allowedHosts`) does not give one that a request names, and may give it later."""

    reason = "MediaUnavailable"

    def __init__(self, message: str, *, retry_after: float = 1.0, unreached: bool = False) -> None:
        super().__init__(message, retry_after=retry_after)
        self.unreached = unreached
        """The host itself was not reached, which no address in it can bring about."""


class RecordError(SandgateError):
    """A stored record cannot be trusted."""

    reason = "RecordError"


class NewerRecord(RecordError):
    """Written by a newer version of the software: refused, never half understood."""

    reason = "NewerRecord"

    def __init__(self, *, seen: int, known: int) -> None:
        super().__init__(f"record has schema {seen}; this version knows up to {known}")
        self.seen, self.known = seen, known


class CorruptRecord(RecordError):
    """Damaged, or of a length that cannot be right."""

    reason = "CorruptRecord"
