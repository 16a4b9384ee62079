"""The body of an answer, read with bounds: a gateway that was taken over costs its client no more than this."""

from __future__ import annotations

import asyncio

import httpx

from sandgate.contract.control_call import ERROR_BYTES_MAX
from sandgate.contract.errors import InvalidBody, Unavailable

BODY_S = 600.0
"""From the head of an answer with rows to its end: a gigabyte at 2 MB/s."""
PLAIN = {"accept-encoding": "identity"}
"""A packed answer has no size before it is unpacked; where gateways stand, the wire is not what is short."""


async def body_of(response: httpx.Response, where: str, most: int, within_s: float) -> bytes:
    """All of it. Raises InvalidBody: more than `most` bytes (of an error: ERROR_BYTES_MAX), packed, or a redirect;
    Unavailable: it does not end within `within_s`; httpx.HTTPError."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise InvalidBody(f"{where}: the answer is packed, which was not asked for")
    if 300 <= response.status_code < 400:
        raise InvalidBody(f"{where} redirects (HTTP {response.status_code}); that is not followed")
    most = most if response.status_code < 400 else min(most, ERROR_BYTES_MAX)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(within_s):
            async for chunk in response.aiter_bytes():
                chunks.append(chunk)
                size += len(chunk)
                if size > most:
                    raise InvalidBody(f"{where}: the answer has more than {most} bytes")
    except TimeoutError:
        raise Unavailable(f"{where}: the answer did not end within {within_s:g} s") from None
    return b"".join(chunks)
