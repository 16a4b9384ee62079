"""Limits that uvicorn lacks: size and deadline of headers, deadline of a refused body, clients that read too slowly.

Connections are counted, too (see web/connections.py).
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from sandgate.gateway.web.answer_writers import ANSWER, DirectAnswer
from sandgate.gateway.web.connections import ConnectionTable

HEAD_S = 20.0
"""Seconds from the connection, or a request's first byte, to the end of its headers. Clients send them in one
packet."""
HEAD_BYTES = 128 * 1024
"""Size limit of headers, about: a key is under 2 KiB, and no client's headers come near this."""
REST_S = 5.0
"""Seconds for the rest of a body whose request was answered without it. A refused client reads its answer when it has
sent everything; one that sends for ever is cut."""
READ_BYTES_MIN = 1024 * 1024
"""A client that reads so many bytes of an answer in `write_s` may go on: rows of half a gigabyte take a while. A piece
of a stream is far less."""
CONNECTION = "sandgate.connection"
"""The key under which a request's ASGI scope has its connection."""


class LimitedConnection(HttpToolsProtocol):
    """A connection that is cut when its client never finishes its headers, or a body that was refused, or does not read
    its answer. Each such connection would hold a descriptor, and memory that the client can grow."""

    _in_head, _head_bytes = True, 0
    _whole = True
    """Whether the request at hand was received to its end."""
    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    """A timer that runs while the transport's write buffer is over its high-water mark."""
    lost: asyncio.Future[None] | None = None

    def __init__(self, connections: ConnectionTable, write_s: float, **more: Any) -> None:
        super().__init__(**more)
        self._connections, self._write_s = connections, write_s

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        self._connections.enter(self)
        self._set_deadline(HEAD_S)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast("dict[str, Any]", self.scope)[CONNECTION] = self
        self._in_head, self._head_bytes, self._whole = True, 0, False
        self._set_deadline(HEAD_S)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._clear_deadline()
        super().on_headers_complete()
        cast("dict[str, Any]", self.scope)[ANSWER] = DirectAnswer(self, self.cycle)

    def on_message_complete(self) -> None:
        self._clear_deadline()
        self._whole = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._whole and not self.pipeline:
            self._set_deadline(REST_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._clear_deadline()
        self._stop_watching()
        self._connections.leave(self)
        super().connection_lost(exc)
        if self.lost is not None and not self.lost.done():
            self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self._cut()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self._stop_watching()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """As uvicorn's own, but a client that does not read the rest of its answer is cut: a close would wait for
        ever."""
        if self.transport.get_write_buffer_size():
            self.cut()
        super().timeout_keep_alive_handler()

    def busy(self) -> bool:
        """Whether a request of this connection is being worked on."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def cut(self) -> None:
        """Ends the connection now; what it was still to be sent is lost."""
        self._clear_deadline()
        self.transport.abort()

    def show(self, name: str, *, bounded: bool) -> None:
        """The client showed a good key of this name. Raises Overloaded (see ConnectionTable)."""
        self._connections.show(self, name, bounded=bounded)

    def _watch(self, waiting: int) -> None:
        """Checks in `write_s` seconds whether the client has read enough of the `waiting` bytes."""
        self._stop_watching()
        self._unread = self.loop.call_later(self._write_s, self._check_reading, waiting)

    def _check_reading(self, before: int) -> None:
        waiting = self.transport.get_write_buffer_size()
        if before - waiting < READ_BYTES_MIN:
            self.cut()
        else:
            self._watch(waiting)

    def _stop_watching(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _set_deadline(self, within_s: float) -> None:
        self._clear_deadline()
        self._deadline = self.loop.call_later(within_s, self._cut)

    def _clear_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _cut(self) -> None:
        self._clear_deadline()
        if not self.transport.is_closing():
            self.transport.close()
