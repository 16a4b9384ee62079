"""Answers of gateways, read with bounds: a gateway that was taken over costs its trainer no more than this."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx

from sandgate.contract.errors import InvalidBody, Unavailable
from sandgate.gateway.client import ERROR_BYTES_MAX, ROWS_BYTES_MAX

BODY_S = 600.0
"""From the head of an answer to its end: a gigabyte of rows at 2 MB/s."""
PLAIN = {"accept-encoding": "identity"}
"""A packed answer has no size before it is unpacked; where gateways stand, the wire is not what is short."""


class _Taken:
    """The bytes of one body."""

    def __init__(self, response: httpx.Response) -> None:
        where = f"{response.request.method} {response.request.url}"
        if response.headers.get("content-encoding", "identity") != "identity":
            raise InvalidBody(f"{where}: the answer is packed, which was not asked for")
        if 300 <= response.status_code < 400:
            raise InvalidBody(f"{where} redirects (HTTP {response.status_code}); that is not followed")
        self.most = ROWS_BYTES_MAX if response.status_code < 400 else ERROR_BYTES_MAX
        self.where, self.chunks, self.size = where, list[bytes](), 0
        self.until = time.monotonic() + BODY_S

    def take(self, chunk: bytes) -> None:
        self.chunks.append(chunk)
        self.size += len(chunk)
        if self.size > self.most:
            raise InvalidBody(f"{self.where}: the answer has more than {self.most} bytes")
        if time.monotonic() > self.until:
            raise self.slow()

    def slow(self) -> Unavailable:
        return Unavailable(f"{self.where}: the answer did not end within {BODY_S:g} s")

    def all(self) -> bytes:
        return b"".join(self.chunks)


async def fetch(http: httpx.AsyncClient, request: dict[str, Any]) -> tuple[httpx.Response, bytes]:
    """The answer and its body. Raises InvalidBody: too large, packed or a redirect; Unavailable: it does not end;
    httpx.HTTPError."""
    async with http.stream(**request) as response:
        taken = _Taken(response)
        try:
            async with asyncio.timeout(BODY_S):
                async for chunk in response.aiter_bytes():
                    taken.take(chunk)
        except TimeoutError:
            raise taken.slow() from None
        return response, taken.all()
