"""Small answers of the ASGI app: status, JSON body, and headers, ids of requests among them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from sandgate.contract.errors import SandgateError
from sandgate.gateway.web.agent_requests import Headers

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON_TYPE = (b"content-type", b"application/json")
REQUEST = "req_"
"""What ids of requests begin with."""


def request_headers(request: str) -> Headers:
    """The id of a request, as Anthropic's and as OpenAI's SDKs read it."""
    return [(b"request-id", request.encode()), (b"x-request-id", request.encode())]


async def respond(
    send: Send, status: int, body: bytes, error: SandgateError | None = None, *, request: str | None = None
) -> None:
    """Sends a JSON answer; the request's id, and for an error its reason and when to come back, as headers."""
    headers: Headers = [JSON_TYPE, (b"content-length", str(len(body)).encode())]
    if request is not None:
        headers += request_headers(request)
    if error is not None:
        headers.append((b"x-sandgate-reason", error.reason.encode()))
        if error.retry_after is not None:
            headers.append((b"retry-after", str(max(1, round(error.retry_after))).encode()))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
