"""What the web server does not bound by itself: how long, and how large, a request's head may be, how long a body that
nobody reads goes on coming, how long an answer waits for its reader, and how many connections there are."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from sandgate.gateway.web.connections import Crowd

HEAD_S = 20.0
"""From the connection, or a request's first byte, to the end of its headers. Clients send them in one packet."""
HEAD_BYTES = 128 * 1024
"""About; a key is under 2 KiB, and no client's headers come near this."""
REST_S = 5.0
"""For the rest of a body whose request was answered without it: a client that is refused reads the answer when it has
sent all, and one that sends for ever is gone."""
READ_BYTES_MIN = 1024 * 1024
"""Whoever reads so much of an answer in `write_s` may go on: rows of half a gigabyte take a while, and a piece of a
stream is far less."""
CONNECTION = "sandgate.connection"
"""The connection, in a request's scope."""


class Guarded(HttpToolsProtocol):
    """Cuts connections that never finish a head, or a body that was refused, or that do not read their answer: each
    would hold a descriptor, and memory that it can grow."""

    _in_head, _head_bytes = True, 0
    _whole = True
    """The request at hand was received to its end."""
    _deadline: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    """Runs while more waits for the client than the transport likes to hold."""

    def __init__(self, crowd: Crowd, write_s: float, **more: Any) -> None:
        super().__init__(**more)
        self._crowd, self._write_s = crowd, write_s

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        self._crowd.enter(self)
        self._expect(HEAD_S)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        cast("dict[str, Any]", self.scope)[CONNECTION] = self
        self._in_head, self._head_bytes, self._whole = True, 0, False
        self._expect(HEAD_S)

    def on_headers_complete(self) -> None:
        self._in_head = False
        self._is_here()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_here()
        self._whole = True
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._whole and not self.pipeline:
            self._expect(REST_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_here()
        self._reads()
        self._crowd.leave(self)
        super().connection_lost(exc)

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
        self._reads()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """As uvicorn's own; but a close would wait for ever for whoever does not read the rest of an answer."""
        if self.transport.get_write_buffer_size():
            self.cut()
        super().timeout_keep_alive_handler()

    def busy(self) -> bool:
        """A request of its is being worked on."""
        cycle: RequestResponseCycle | None = self.cycle
        return cycle is not None and not cycle.response_complete

    def cut(self) -> None:
        """End it now."""
        self._is_here()
        self.transport.abort()

    def show(self, name: str, *, bounded: bool) -> None:
        """It showed a good key. Raises Overloaded (see Crowd)."""
        self._crowd.show(self, name, bounded=bounded)

    def _watch(self, waiting: int) -> None:
        """So many bytes wait for the client."""
        self._reads()
        self._unread = self.loop.call_later(self._write_s, self._look, waiting)

    def _look(self, before: int) -> None:
        waiting = self.transport.get_write_buffer_size()
        if before - waiting < READ_BYTES_MIN:
            self.cut()
        else:
            self._watch(waiting)

    def _reads(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _expect(self, within_s: float) -> None:
        self._is_here()
        self._deadline = self.loop.call_later(within_s, self._cut)

    def _is_here(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _cut(self) -> None:
        self._is_here()
        if not self.transport.is_closing():
            self.transport.close()
