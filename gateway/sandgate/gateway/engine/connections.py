"""Connections: those to engines that wait for a next request; how one is opened, and how its host is watched."""

from __future__ import annotations

import asyncio
import base64
import functools
import socket
import ssl
from typing import Any, NamedTuple

from yarl import URL

from sandgate.gateway.engine.connection import EngineConnection

DEAD_PEER = (
    (socket.TCP_KEEPIDLE, 15),
    (socket.TCP_KEEPINTVL, 5),
    (socket.TCP_KEEPCNT, 3),
    (socket.TCP_USER_TIMEOUT, 30_000),
)
"""Seconds, seconds, count, ms: a host that vanished without a RST is noticed after 30 s, however long a generation is
silent. The last one is for a request that it never acknowledged: Linux sends no probes then, and resends for 15 min."""


class Place(NamedTuple):
    """Where a request goes."""

    host: str
    port: int
    tls: bool
    head: str
    """Request line and Host, and the URL's user, if it names one."""


@functools.lru_cache(4096)
def place_of(url: str) -> Place:
    """Of a URL that is posted to."""
    told = URL(url)
    head = f"POST {told.raw_path_qs} HTTP/1.1\r\nHost: {told.host_port_subcomponent}\r\n"
    if told.user is not None:
        user = f"{told.user}:{told.password or ''}"
        head += f"Authorization: Basic {base64.b64encode(user.encode()).decode()}\r\n"
    return Place(told.raw_host or "", told.port or 0, told.scheme == "https", head)


class Connections:
    """Idle ones, by server; the last that came is the first that goes."""

    def __init__(self, keep_s: float, connect_s: float) -> None:
        self._keep_s, self._connect_s = keep_s, connect_s
        self._idle: dict[tuple[str, int, bool], list[tuple[float, EngineConnection]]] = {}
        self._sweeping: asyncio.TimerHandle | None = None
        self._closed = False
        self._busy: set[EngineConnection] = set()

    async def take(self, place: Place) -> EngineConnection:
        """An idle connection, or a new one. Raises OSError (TimeoutError after `connect_s`), UnicodeError."""
        loop = asyncio.get_running_loop()
        idle = self._idle.get(place[:3], [])
        connection = None
        while idle and connection is None:
            since, kept = idle.pop()
            if kept.closed or since + self._keep_s < loop.time():
                kept.close()
            else:
                connection = kept
        if connection is None:
            tls = ssl.create_default_context() if place.tls else None
            async with asyncio.timeout(self._connect_s):
                opened = loop.create_connection(EngineConnection, place.host, place.port, ssl=tls)
                transport, connection = await opened
            watch_peer(transport.get_extra_info("socket"))
        self._busy.add(connection)
        return connection

    def give_back(self, place: Place, connection: EngineConnection) -> None:
        """Keeps it for the next, if its answer was read to the end; else ends it."""
        self._busy.discard(connection)
        if not connection.reusable or self._closed:
            connection.close()
            return
        loop = asyncio.get_running_loop()
        self._idle.setdefault(place[:3], []).append((loop.time(), connection))
        if self._sweeping is None:
            self._sweeping = loop.call_later(self._keep_s, self._sweep)

    def close(self) -> None:
        """Ends all, also those in use."""
        self._closed = True
        if self._sweeping is not None:
            self._sweeping.cancel()
        for connection in (*self._busy, *(kept for idle in self._idle.values() for _, kept in idle)):
            connection.close()
        self._idle.clear()

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        old = loop.time() - self._keep_s
        for server, idle in list(self._idle.items()):
            for since, connection in idle:
                if since <= old:
                    connection.close()
            self._idle[server] = [one for one in idle if one[0] > old]
            if not self._idle[server]:
                del self._idle[server]
        self._sweeping = loop.call_later(self._keep_s, self._sweep) if self._idle else None


def keepalive_socket(info: Any) -> socket.socket:
    """A socket for aiohttp."""
    family, kind, protocol, _, _ = info
    sock = socket.socket(family=family, type=kind, proto=protocol)
    watch_peer(sock)
    return sock


def watch_peer(sock: Any) -> None:
    """Has the kernel notice a host that vanished (`DEAD_PEER`)."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in DEAD_PEER:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
