"""Error bodies in Anthropic's form: type and message, which SDKs and agents read. (pure)"""

from __future__ import annotations

from typing import Any

import msgspec

from sandgate.contract.errors import (
    Forbidden,
    NotFound,
    Overloaded,
    PromptTooLong,
    SandgateError,
    TooLarge,
    Unauthorized,
    Unavailable,
    Unsupported,
)


class ThreadUnsupported(Unsupported):
    """400 for a message thread: the SDK then sends the whole conversation, if the error has these details."""


_KINDS: tuple[tuple[type[SandgateError], str], ...] = (
    (Unauthorized, "authentication_error"),
    (Forbidden, "permission_error"),
    (NotFound, "not_found_error"),
    (TooLarge, "request_too_large"),
    (Overloaded, "rate_limit_error"),
    (Unavailable, "overloaded_error"),
)
"""(error class, type): the first that fits counts; other 4xx are invalid_request_error, 5xx api_error."""


def error_object(error: SandgateError, request: str | None = None) -> dict[str, Any]:
    """`{"type": "error", "error": {"type", "message"}, "request_id"}`."""
    kind = "api_error" if error.status >= 500 else "invalid_request_error"
    kind = next((its for error_class, its in _KINDS if isinstance(error, error_class)), kind)
    told: dict[str, Any] = {"type": kind, "message": _words(error)}
    if isinstance(error, ThreadUnsupported):
        told["details"] = {"error_code": "thread_unsupported_request", "unsupported": ["thread"]}
    return {"type": "error", "error": told, "request_id": request}


def error_json(error: SandgateError, request: str | None = None) -> bytes:
    """`error_object` as bytes."""
    return msgspec.json.encode(error_object(error, request))


def _words(error: SandgateError) -> str:
    if isinstance(error, PromptTooLong):  # Claude Code looks for these words to start its compaction
        return f"prompt is too long: {error.tokens} tokens > {error.limit} maximum"
    return str(error)
