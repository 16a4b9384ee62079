"""Between a client and an API server: answers faults of its own, cuts connections, stands still. Plain HTTP, as
`kubectl proxy`: it has the right to everything that its access has."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web
from aiohttp.connector import NEEDS_CLEANUP_CLOSED

from sandgate.operator.kubernetes.access import Access

KEPT = ("Content-Type", "Accept", "User-Agent")


@dataclass(frozen=True)
class Fault:
    """One answer that the API server never gave. Status 0: the connection is closed instead; `late`: but first the
    API server does what was asked for."""

    status: int = 0
    retry_after: str = ""
    late: bool = False
    raw: str = ""
    """Body; a Status in JSON when empty."""


@dataclass
class Relay:
    """`url` is where clients go. Faults are used up in order by the requests that `hits` picks."""

    access: Access
    url: str = ""
    faults: deque[Fault] = field(default_factory=deque)
    hits: Callable[[web.BaseRequest], bool] = lambda request: True
    seen: list[str] = field(default_factory=list)
    """METHOD path?query of every request."""
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)
    tokens: list[str] = field(default_factory=list)
    watches: list[web.BaseRequest] = field(default_factory=list)
    """Those that are open."""
    error: dict[str, Any] | None = None
    """Told to the next watch as its first event."""
    _going: asyncio.Event = field(default_factory=asyncio.Event)

    def freeze(self) -> None:
        """Nothing gets through any more, in either direction; connections stay, and nobody is told."""
        self._going.clear()

    def thaw(self) -> None:
        """Go on, with requests that waited too; an answer that was under way is lost, and its connection breaks."""
        self._going.set()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        self.seen.append(f"{request.method} {request.path_qs}")
        self.tokens.append(request.headers.get("Authorization", ""))
        async with self.arrived:
            self.arrived.notify_all()
        body = await request.read()
        await self._going.wait()
        fault = self.faults.popleft() if self.faults and self.hits(request) else None
        if fault is not None and not fault.late:
            return self._fault(request, fault)
        headers = {name: request.headers[name] for name in KEPT if name in request.headers}
        async with self.http.request(
            request.method,
            self.access.server + request.path_qs,
            data=body or None,
            headers=headers,
        ) as answer:
            if fault is not None:
                await answer.read()
                return self._fault(request, fault)
            response = web.StreamResponse(status=answer.status)
            response.content_type = answer.content_type
            await response.prepare(request)
            watch = "watch" in request.query
            if watch:
                self.watches.append(request)
                async with self.arrived:
                    self.arrived.notify_all()
            try:
                if self.error is not None and watch:
                    event, self.error = {"type": "ERROR", "object": self.error}, None
                    await response.write(json.dumps(event).encode() + b"\n")
                async for chunk in answer.content.iter_any():
                    if not self._going.is_set():
                        await self._going.wait()
                        return self._fault(request, Fault())
                    await response.write(chunk)
            finally:
                self.watches = [one for one in self.watches if one is not request]
            await response.write_eof()
            return response

    def _fault(self, request: web.BaseRequest, fault: Fault) -> web.StreamResponse:
        if not fault.status:
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        said: dict[str, Any] = {"kind": "Status", "code": fault.status, "message": "a fault"}
        headers = {"Retry-After": fault.retry_after} if fault.retry_after else {}
        return web.Response(
            status=fault.status,
            text=fault.raw or json.dumps(said),
            headers=headers,
            content_type="application/json",
        )

    def cut(self) -> int:
        """Break the connections of all watches; how many."""
        for request in self.watches:
            assert request.transport is not None
            request.transport.abort()
        return len(self.watches)

    async def watched(self, count: int) -> None:
        """Return when so many watches are open."""
        async with self.arrived:
            await self.arrived.wait_for(lambda: len(self.watches) >= count)

    async def close(self) -> None:
        """Nobody listens any more; what is open breaks, and what waits is never done."""
        await self.runner.cleanup()

    http: aiohttp.ClientSession = field(init=False)
    runner: web.ServerRunner = field(init=False)


@asynccontextmanager
async def relay(access: Access) -> AsyncIterator[Relay]:
    """On a free port of 127.0.0.1, while the block runs."""
    one = Relay(access)
    one.thaw()
    connector = aiohttp.TCPConnector(
        limit=0, ssl=access.tls or True, enable_cleanup_closed=NEEDS_CLEANUP_CLOSED
    )
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout()) as one.http:
        one.runner = web.ServerRunner(web.Server(one.handle, access_log=None), shutdown_timeout=0.1)
        await one.runner.setup()
        try:
            await web.TCPSite(one.runner, "127.0.0.1", 0).start()
            one.url = f"http://127.0.0.1:{one.runner.addresses[0][1]}"
            yield one
        finally:
            await one.close()
    # Our sockets are closed in the loop's next turns, those of clients who see that in later ones.
    for _ in range(8):
        await asyncio.to_thread(int)
