"""What an agent's request says beside its body: session and path, retries; and the body of /complete. (pure)"""

from __future__ import annotations

import msgspec
from pydantic import ValidationError

from sandgate.contract.errors import InvalidBody
from sandgate.gateway.protocols.wire import ANYTHING, limited, read
from sandgate.gateway.service.schemas import REWARD_INFO_BYTES_MAX, Complete

Headers = list[tuple[bytes, bytes]]


class _Complete(msgspec.Struct):
    reward_info: msgspec.Raw = msgspec.Raw(b"{}")


_COMPLETE = msgspec.json.Decoder(_Complete)


def parse_complete(raw: bytes) -> Complete:
    """The body of /complete; empty is fine. Raises InvalidBody, for too many values before they become objects."""
    raw_info = read(_COMPLETE, raw).reward_info if raw.strip() else b"{}"
    info, field = bytes(raw_info), "reward_info"
    limited(sum(map(info.count, (b",", b"[", b"{"))), REWARD_INFO_BYTES_MAX, "values", field)
    try:
        return Complete.model_validate({field: read(ANYTHING, info, field)})
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "body"
        raise InvalidBody(f"{where}: {first['msg']}", field=where) from error


def split(path: str) -> tuple[str | None, str]:
    """The session that the path names (or None), and the rest of it: `/sessions/s1/v1/x` -> ("s1", "/v1/x"). /v1/v1
    counts as /v1: Anthropic clients send it where the base URL already ends in /v1."""
    session = None
    if path.startswith("/sessions/"):
        session, _, rest = path[10:].partition("/")
        path = "/" + rest
    if path.startswith("/v1/v1/"):
        path = path[3:]
    return session, path


def is_retry(headers: Headers) -> bool:
    """Whether the client says that it sends this request again (Stainless SDKs: openai, anthropic)."""
    for name, value in headers:
        if name == b"x-stainless-retry-count":
            return value.strip() not in (b"", b"0")
    return False
