"""EngineConnection: one HTTP/1.1 connection to an engine, one request after the other; answers are read as they come.

Every turn and every event of its stream passes here, which is why it is no general client (docs/adr/0021). httptools
(llhttp) parses, and a reader of a stream is woken once for what comes within some ms.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import cast

import httptools

HELD_BYTES = 256 * 1024
"""Unread bytes of an answer at which the engine is told to wait (by TCP)."""


class Broken(Exception):
    """The connection broke, or what came is not HTTP: the answer is not whole."""


class EngineConnection(asyncio.Protocol):
    """Made by `loop.create_connection`. `send` begins a request; `head` and `read` or `chunks` give its answer; then
    the next may be sent if `reusable`. What arrived before the connection broke is given first."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._parser = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport
        self.closed = False
        self._asked = False
        """A request is under way; what comes without one makes the connection useless."""
        self._begin()

    def _begin(self) -> None:
        self.status = 0
        """Of the answer; 0 until its headers are here."""
        self.retry_after: str | None = None
        self._whole = self._framed = self._keep = False
        self._failed: Broken | None = None
        self._body: list[bytes] = []
        self._size = 0
        self._full = False
        self._waiter: asyncio.Future[None] | None = None
        self._patient = False
        """Whoever waits has no need of each byte."""

    @property
    def transport(self) -> asyncio.Transport:
        """The socket's."""
        return self._transport

    @property
    def reusable(self) -> bool:
        """The answer is whole, was read, and the server keeps the connection."""
        return self._whole and self._keep and not (self._body or self.closed or self._failed)

    def send(self, head: bytes, body: bytes) -> None:
        """Begins a request: its line and headers up to the empty line, and its body."""
        self._begin()
        self._asked = True
        self._transport.write(head + body)

    async def head(self) -> None:
        """Waits for the answer's headers. Raises Broken."""
        while not self.status:
            if self._failed is not None:
                raise self._failed
            await self._more()

    async def read(self, most: int = -1) -> bytes:
        """The whole body, or about its first `most` bytes. Raises Broken."""
        parts, size = [], 0
        async for part in self.chunks():
            parts.append(part)
            size += len(part)
            if 0 <= most <= size:
                break
        return b"".join(parts)[: most if most >= 0 else None]

    async def chunks(self, gather_s: float = 0.0) -> AsyncIterator[bytes]:
        """The body as it arrives, cut anywhere: the first bytes of some at once, then what came within `gather_s`
        together; the end is not waited with. Raises Broken."""
        due = 0.0
        while True:
            while not self._body:
                if self._failed is not None:
                    raise self._failed
                if self._whole:
                    return
                await self._more()
            if gather_s and (left := due - self._loop.time()) > 0:
                await self._gather(left)
            data = self._taken()
            due = self._loop.time() + gather_s
            yield data

    def close(self) -> None:
        """Ends the connection now, whatever is under way."""
        self.closed = True
        self._transport.abort()

    # -- waiting ------------------------------------------------------------------------------------------------

    async def _more(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    async def _gather(self, seconds: float) -> None:
        """Returns after `seconds`, or when nothing more will come, or no more fits."""
        if self._whole or self._full or self._failed is not None:
            return
        self._patient = True
        timer = self._loop.call_later(seconds, self._wake)
        try:
            await self._more()
        finally:
            timer.cancel()
            self._patient = False

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _taken(self) -> bytes:
        data = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        self._body.clear()
        self._size = 0
        if self._full:
            self._full = False
            self._transport.resume_reading()
        return data

    def _fail(self, why: str) -> None:
        if self._failed is None:
            self._failed = Broken(why)
        self._wake()

    # -- asyncio.Protocol ---------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if not self._asked:  # a server that says goodbye (408), or one that is out of step
            self.close()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._fail(f"what came is not HTTP: {error}")
            self.close()

    def connection_lost(self, exc: Exception | None) -> None:
        ours, self.closed = self.closed, True
        if self.status and not self._framed and exc is None and not ours:
            self._whole = True  # an answer without a length ends with its connection
            self._wake()
        elif not self._whole:
            self._fail(f"the connection broke: {exc}" if exc else "the server closed the connection")

    # -- httptools ----------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        if self._whole:  # an answer that nobody asked for
            self._keep = False

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(name) == 11 and name.lower() == b"retry-after":
            self.retry_after = value.decode("latin-1")
        elif name[:1] in b"CcTt" and name.lower() in (b"content-length", b"transfer-encoding"):
            self._framed = True

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200 and not self._whole:
            self.status, self._keep = status, self._parser.should_keep_alive()
            self._wake()

    def on_body(self, data: bytes) -> None:
        if self._whole:
            return
        self._body.append(data)
        self._size += len(data)
        if self._size > HELD_BYTES and not self._full:
            self._full = True
            self._transport.pause_reading()
        if self._full or not self._patient:
            self._wake()

    def on_message_complete(self) -> None:
        if self.status:  # not one of 100 to 199, behind which the answer comes
            self._whole, self._asked = True, False
            self._wake()
