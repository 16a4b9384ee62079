"""How a model call's answer reaches its client: by messages of ASGI, or straight to the connection if there is one.

uvloop hands each write to the kernel at once, and each wakes the client: so the head of an answer goes out with what
comes behind it. And a message of ASGI for each piece, checked by uvicorn as anybody's, costs as much as encoding it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from sandgate.gateway.web.agent_requests import Headers
from sandgate.gateway.web.answers import Send

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

ANSWER = "sandgate.answer"
"""The key under which a request's ASGI scope has its DirectAnswer."""


class Answer(Protocol):
    """One answer, status 200 unless it is told by `send`. What is written to a client that has gone is dropped."""

    @property
    def send(self) -> Send:
        """ASGI's, for all other answers."""
        ...

    @property
    def started(self) -> bool:
        """Some of it is out, or is held to go out."""
        ...

    @property
    def ended(self) -> bool:
        """It is out to its end."""
        ...

    def gone(self) -> asyncio.Future[Any]:
        """Done when the client has gone; for a request whose body was read. Cancel it behind the answer."""
        ...

    async def whole(self, headers: Headers, body: bytes) -> None:
        """All of it. `headers`: with its length."""
        ...

    async def begin(self, headers: Headers, body: bytes, *, held: bool) -> None:
        """The beginning of a stream. `held`: more comes at once, which it may wait for."""
        ...

    async def part(self, body: bytes) -> None:
        """More, when the client has read most of what came before."""
        ...

    async def end(self, body: bytes) -> None:
        """The last of it."""
        ...


class AsgiAnswer:
    """Through any ASGI server."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive, self._send = receive, send
        self.started = self.ended = False

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """See `Answer.send`."""
        self.started = True
        self.ended = message["type"] == "http.response.body" and not message.get("more_body")
        await self._send(message)

    def gone(self) -> asyncio.Future[Any]:
        """See `Answer.gone`."""
        return asyncio.ensure_future(self._receive())

    async def whole(self, headers: Headers, body: bytes) -> None:
        """See `Answer.whole`."""
        await self.send({"type": "http.response.start", "status": 200, "headers": headers})
        await self.end(body)

    async def begin(self, headers: Headers, body: bytes, *, held: bool) -> None:
        """See `Answer.begin`."""
        await self.send({"type": "http.response.start", "status": 200, "headers": headers})
        await self.part(body)

    async def part(self, body: bytes) -> None:
        """See `Answer.part`."""
        await self.send({"type": "http.response.body", "body": body, "more_body": True})

    async def end(self, body: bytes) -> None:
        """See `Answer.end`."""
        await self.send({"type": "http.response.body", "body": body})


class Losable(Protocol):
    """What is asked of a connection."""

    lost: asyncio.Future[None] | None
    """It sets this when it is lost. Its requests are worked on one after the other, so one is enough."""


class DirectAnswer:
    """Straight to uvicorn's transport: what `RequestResponseCycle.send` does for a POST that was answered 200, without
    the messages. The cycle's state is kept, so that either may write the next piece."""

    __slots__ = ("_connection", "_cycle", "_held", "send")

    def __init__(self, connection: Losable, cycle: RequestResponseCycle) -> None:
        self._connection, self._cycle = connection, cycle
        self._held = b""
        self.send: Send = cycle.send  # type: ignore[assignment]  # uvicorn names the messages' types

    @property
    def started(self) -> bool:
        """See `Answer.started`."""
        return self._cycle.response_started

    @property
    def ended(self) -> bool:
        """See `Answer.ended`."""
        return self._cycle.response_complete

    def gone(self) -> asyncio.Future[Any]:
        """See `Answer.gone`."""
        cycle = self._cycle
        gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if cycle.disconnected:
            gone.set_result(None)
            return gone
        cycle.flow.resume_reading()  # a body that was long stopped it, and then nobody would see the client go
        self._connection.lost = gone
        return gone

    async def whole(self, headers: Headers, body: bytes) -> None:
        """See `Answer.whole`."""
        if await self._writable():
            self._write(self._head(headers), body)
            self._ended()

    async def begin(self, headers: Headers, body: bytes, *, held: bool) -> None:
        """See `Answer.begin`."""
        if await self._writable():
            self._cycle.chunked_encoding = True
            head = self._head(headers, b"transfer-encoding: chunked\r\n")
            if held:
                self._held = head + chunk(body)
            else:
                self._write(head, chunk(body))

    async def part(self, body: bytes) -> None:
        """See `Answer.part`."""
        if await self._writable():
            self._write(chunk(body))

    async def end(self, body: bytes) -> None:
        """See `Answer.end`."""
        if await self._writable():
            self._write(chunk(body), LAST)
            self._ended()

    async def _writable(self) -> bool:
        cycle = self._cycle
        if cycle.flow.write_paused and not cycle.disconnected:
            await cycle.flow.drain()
        return not cycle.disconnected

    def _head(self, headers: Headers, framing: bytes = b"") -> bytes:
        cycle = self._cycle
        cycle.response_started, cycle.waiting_for_100_continue = True, False
        lines = [b"%b: %b\r\n" % header for header in (*cycle.default_headers, *headers)]
        closing = b"" if cycle.keep_alive else b"connection: close\r\n"
        return b"".join([STATUS_LINE[200], *lines, closing, framing, b"\r\n"])

    def _write(self, *pieces: bytes) -> None:
        self._cycle.transport.write(b"".join([self._held, *pieces]))
        self._held = b""

    def _ended(self) -> None:
        cycle = self._cycle
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()


LAST = b"0\r\n\r\n"


def chunk(body: bytes) -> bytes:
    """One chunk of HTTP/1.1; of nothing nothing, for an empty one would be the end."""
    return b"%x\r\n%b\r\n" % (len(body), body) if body else b""
