"""A client that costs little: one HTTP/1.1 connection per conversation, parsed by hand, timed to the byte."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import cast


@dataclass(slots=True)
class Timed:
    """One exchange. Times in seconds since the request was written."""

    status: int
    body: bytes
    """De-chunked."""
    first_s: float
    """Until the first byte of the body."""
    whole_s: float


class Connection(asyncio.Protocol):
    """One request at a time."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._pieces: list[bytes] = []
        self._answer: asyncio.Future[Timed] | None = None
        self._began = self._first = 0.0
        self._status, self._length, self._chunked, self._have = 0, 0, False, 0

    @staticmethod
    async def open(origin: str) -> Connection:
        host, port = origin.removeprefix("http://").split(":")
        _, one = await asyncio.get_running_loop().create_connection(Connection, host, int(port))
        return one

    def connection_made(self, transport: asyncio.BaseTransport) -> None:

        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(ConnectionError(f"closed in the middle of an answer: {exc}"))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    async def ask(self, method: str, path: str, body: bytes = b"", key: str = "") -> Timed:
        assert self._transport is not None, "the connection is closed"
        head = f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
        head += f"Content-Type: application/json\r\nAuthorization: Bearer {key}\r\n\r\n"
        self._answer = asyncio.get_running_loop().create_future()
        self._status, self._have, self._first = 0, 0, 0.0
        self._pieces = []
        self._began = time.perf_counter()
        self._transport.write(head.encode() + body)
        return await self._answer

    def data_received(self, data: bytes) -> None:
        if self._status == 0:
            data = b"".join([*self._pieces, data])
            end = data.find(b"\r\n\r\n")
            if end < 0:
                self._pieces = [data]
                return
            self._head(data[:end].lower())
            self._pieces, data = [], data[end + 4 :]
        if data and not self._first:
            self._first = time.perf_counter()
        self._pieces.append(data)
        self._have += len(data)
        done = data.endswith(b"0\r\n\r\n") if self._chunked else self._have >= self._length
        if done and self._answer is not None and not self._answer.done():
            now = time.perf_counter()
            body = b"".join(self._pieces)
            body = dechunk(body) if self._chunked else body
            first = (self._first or now) - self._began
            self._answer.set_result(Timed(self._status, body, first, now - self._began))

    def _head(self, head: bytes) -> None:
        self._status = int(head[9:12])
        self._chunked = b"transfer-encoding: chunked" in head
        at = head.find(b"content-length:")
        self._length = int(head[at + 15 :].split(b"\r", 1)[0]) if at >= 0 else 0


def dechunk(data: bytes) -> bytes:
    """The payload of a complete chunked body."""
    out, at = [], 0
    while at < len(data):
        end = data.index(b"\r\n", at)
        size = int(data[at:end], 16)
        out.append(data[end + 2 : end + 2 + size])
        at = end + 4 + size
    return b"".join(out)
