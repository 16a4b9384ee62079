"""Error bodies in OpenAI's form: message, type and code, which SDKs and agents read. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from sandgate.contract.errors import (
    Forbidden,
    Gone,
    NotFound,
    Overloaded,
    PromptTooLong,
    SandgateError,
    TooLarge,
    ToolsNotSupported,
    Unauthorized,
    Unsupported,
)
from sandgate.gateway.protocols.base import ModelNotFound, PreviousNotFound

_KINDS: tuple[tuple[type[SandgateError], str, str | None], ...] = (
    (PromptTooLong, "invalid_request_error", "context_length_exceeded"),
    (PreviousNotFound, "invalid_request_error", "previous_response_not_found"),
    (ToolsNotSupported, "invalid_request_error", "tools_not_supported"),
    (Unsupported, "invalid_request_error", "unsupported_value"),
    (Unauthorized, "authentication_error", "invalid_api_key"),
    (Forbidden, "permission_error", None),
    (ModelNotFound, "invalid_request_error", "model_not_found"),
    (NotFound, "not_found_error", None),
    (Gone, "invalid_request_error", "session_ended"),
    (TooLarge, "invalid_request_error", "request_too_large"),
    (Overloaded, "rate_limit_error", "rate_limit_exceeded"),
)
"""(error class, type, code): the first that fits counts; other 4xx are invalid_request_error, 5xx server_error."""


def error_json(error: SandgateError, fields: Mapping[str, str] = MappingProxyType({})) -> bytes:
    """`{"error": {"message", "type", "param", "code"}}`. `fields`: what this dialect calls some of chat's."""
    told = error_object(error)
    return msgspec.json.encode({"error": {**told, "param": fields.get(told["param"] or "", told["param"])}})


def error_object(error: SandgateError) -> dict[str, str | None]:
    """`{"message", "type", "param", "code"}`."""
    kind, code = "server_error" if error.status >= 500 else "invalid_request_error", None
    for error_class, its_kind, its_code in _KINDS:
        if isinstance(error, error_class):
            kind, code = its_kind, its_code
            break
    return {"message": _words(error), "type": kind, "param": getattr(error, "field", None), "code": code}


def _words(error: SandgateError) -> str:
    if isinstance(error, PromptTooLong):  # agents look for these words to start their compaction
        return (
            f"This model's maximum context length is {error.limit} tokens. However, your messages resulted in "
            f"{error.tokens} tokens. Please reduce the length of the messages."
        )
    return str(error)
