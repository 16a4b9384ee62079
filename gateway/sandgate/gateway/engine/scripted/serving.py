"""What every scripted server shares: a socket, a life as a context manager, and health. (aiohttp)"""

from __future__ import annotations

import asyncio
import socket
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from aiohttp import web

from sandgate.gateway.engine.scripted.script import Player

BODY_BYTES_MAX = 64 * 1024 * 1024
"""A prompt of some million ids."""

ACCEPT_STEPS = 3
"""Turns of the loop from asyncio's accept of a connection until our server knows it, and closes it at its end."""


class ScriptedServing(ABC):
    """A player behind some engine's wire. A client that goes away aborts its generation, as engines do."""

    def __init__(self, player: Player, *, model: str, host: str, port: int) -> None:
        self.player, self.model = player, model
        self.healthy = True
        self.mute: asyncio.Event | None = None
        """/health is answered when it is set: until then the server hangs, as far as anybody can see."""
        self._host, self._port = host, port
        self._runner: web.AppRunner | None = None
        self._socket: socket.socket | None = None

    @abstractmethod
    def routes(self) -> list[web.RouteDef]:
        """What it serves."""

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=BODY_BYTES_MAX)
        app.add_routes(self.routes())
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.5)
        await self._runner.setup()
        self._socket = socket.create_server((self._host, self._port), backlog=128)
        await web.SockSite(self._runner, self._socket).start()
        self._port = self._socket.getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.player.abort_all()
        if self._runner is None or self._socket is None:
            return
        # asyncio loses a connection that it accepted just before its server closes: accept no more, let them in, close.
        asyncio.get_running_loop().remove_reader(self._socket.fileno())
        for _ in range(ACCEPT_STEPS):
            await asyncio.sleep(0)
        await self._runner.cleanup()
        self._runner = self._socket = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://{self._host}:{self._port}"
