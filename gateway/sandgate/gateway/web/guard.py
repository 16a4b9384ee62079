"""What the web server does not bound by itself: how long, and how large, a request's head may be."""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_S = 20.0
"""From the connection, or a request's first byte, to the end of its headers. Clients send them in one packet."""
HEAD_BYTES = 128 * 1024
"""About; a key is under 2 KiB, and no client's headers come near this."""


class Guarded(HttpToolsProtocol):
    """Cuts connections that never finish a head: each would hold a descriptor, and memory that it can grow."""

    _head_bytes = 0
    _deadline: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's own
        super().connection_made(transport)
        self._expect_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._expect_head()

    def on_headers_complete(self) -> None:
        self._head_is_here()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_is_here()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._deadline is not None:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self._cut()

    def _expect_head(self) -> None:
        self._head_is_here()
        self._head_bytes = 0
        self._deadline = self.loop.call_later(HEAD_S, self._cut)

    def _head_is_here(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _cut(self) -> None:
        self._head_is_here()
        if not self.transport.is_closing():
            self.transport.close()
