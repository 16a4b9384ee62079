"""HTTP client for engines (aiohttp): connect time-out, keep-alive, dead peers; many long answers from few hosts."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

CONNECT_S = 5.0
"""Seconds to open a connection; engines are beside their gateways, so a SYN without answer is a dead host."""

KEEPALIVE_S = 3.0
"""Seconds an idle connection is kept: less than uvicorn's 5 s (VLLM_HTTP_TIMEOUT_KEEP_ALIVE), so that we close first
and never send a request into a connection that the engine is closing."""

DEAD_PEER = (
    (socket.TCP_KEEPIDLE, 15),
    (socket.TCP_KEEPINTVL, 5),
    (socket.TCP_KEEPCNT, 3),
    (socket.TCP_USER_TIMEOUT, 30_000),
)
"""Seconds, seconds, count, ms: a host that vanished without a RST is noticed after 30 s, however long a generation is
silent. The last one is for a request that it never acknowledged: Linux sends no probes then, and resends for 15 min."""

REFUSAL_BYTES_MAX = 64 * 1024
"""Limit of bytes read of an error body; the text that is passed on is far shorter."""


class Lost(Exception):
    """The connection could not be opened, or broke. `refused`: nothing was sent, so nothing can have been sampled."""

    def __init__(self, message: str, *, refused: bool) -> None:
        super().__init__(message)
        self.refused = refused


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """Status, body and Retry-After of a short exchange."""

    status: int
    body: bytes
    retry_after: str | None = None


class Streamed:
    """An answer whose body is still coming."""

    __slots__ = ("_response", "retry_after", "status")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.retry_after = response.headers.get("Retry-After")

    async def body(self) -> bytes:
        """The whole body; of a refusal the first 64 kB."""
        if self.status == 200:
            return await self._response.read()
        return await self._response.content.read(REFUSAL_BYTES_MAX)

    def chunks(self) -> AsyncIterator[bytes]:
        """The body's bytes as they arrive, cut anywhere."""
        return self._response.content.iter_any()


class Transport:
    """The HTTP client. Make it inside a running loop; `aclose` it."""

    def __init__(self, *, api_key: str = "") -> None:
        headers = {"Content-Type": "application/json"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        connector = aiohttp.TCPConnector(
            limit=0,  # admission bounds what is in flight; a second queue here would only hide it
            keepalive_timeout=KEEPALIVE_S,
            socket_factory=_keepalive_socket,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=256 * 1024,
        )

    async def aclose(self) -> None:
        """Closes every connection."""
        await self._session.close()

    @asynccontextmanager
    async def post(self, url: str, body: bytes, *, request_id: str) -> AsyncIterator[Streamed]:
        """Sends a request, and gives the answer as soon as its headers are here. Leaving early closes the connection.

        Raises Lost, also from inside the block when reading breaks.
        """
        try:
            async with self._session.post(url, data=body, headers={"X-Request-Id": request_id}) as response:
                yield Streamed(response)
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise Lost(str(error), refused=True) from error
        except (aiohttp.ClientError, ConnectionError, asyncio.IncompleteReadError) as error:
            raise Lost(f"{type(error).__name__}: {error}", refused=False) from error

    async def ask(
        self,
        method: str,
        url: str,
        *,
        body: bytes | None = None,
        params: Mapping[str, str] | None = None,
        timeout_s: float = 10.0,
    ) -> HttpAnswer:
        """A short exchange: probes, control. Raises Lost, also at the timeout."""
        try:
            async with asyncio.timeout(timeout_s):
                async with self._session.request(method, url, data=body, params=_plain(params)) as response:
                    return HttpAnswer(
                        response.status, await response.read(), response.headers.get("Retry-After")
                    )
        except TimeoutError:
            raise Lost(f"no answer within {timeout_s:g} s", refused=False) from None
        except (aiohttp.ClientError, ConnectionError) as error:
            refused = isinstance(error, aiohttp.ClientConnectorError)
            raise Lost(f"{type(error).__name__}: {error}", refused=refused) from error


def _plain(params: Mapping[str, str] | None) -> dict[str, str] | None:
    return dict(params) if params else None


def _keepalive_socket(info: Any) -> socket.socket:
    family, kind, protocol, _, _ = info
    sock = socket.socket(family=family, type=kind, proto=protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in DEAD_PEER:
        sock.setsockopt(socket.IPPROTO_TCP, option, value)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock
