"""HTTP client for engines: time-outs, keep-alive, dead peers; many long answers from few hosts. Generations go over
connections of our own (see `EngineConnection`), probes and control over aiohttp."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp

from sandgate.gateway.engine.connection import Broken, EngineConnection
from sandgate.gateway.engine.connections import Connections, keepalive_socket, place_of

CONNECT_S = 5.0
"""Seconds to open a connection; engines are beside their gateways, so a SYN without answer is a dead host."""

KEEPALIVE_S = 3.0
"""Seconds an idle connection is kept: less than uvicorn's 5 s (VLLM_HTTP_TIMEOUT_KEEP_ALIVE), so that we close first
and never send a request into a connection that the engine is closing."""

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

    __slots__ = ("_connection",)

    def __init__(self, connection: EngineConnection) -> None:
        self._connection = connection

    @property
    def status(self) -> int:
        """Of HTTP."""
        return self._connection.status

    @property
    def retry_after(self) -> str | None:
        """The header of that name."""
        return self._connection.retry_after

    async def body(self) -> bytes:
        """The whole body; of a refusal the first 64 kB."""
        return await self._connection.read(-1 if self.status == 200 else REFUSAL_BYTES_MAX)

    def chunks(self, gather_s: float = 0.0) -> AsyncIterator[bytes]:
        """See `EngineConnection.chunks`."""
        return self._connection.chunks(gather_s)


class Transport:
    """The HTTP client. Make it inside a running loop; `aclose` it."""

    def __init__(self, *, api_key: str = "", reuse: bool = True) -> None:
        """`reuse` False: `ask` opens a connection each time. One that the server is closing loses what is sent, and
        aiohttp sends only a GET again: uvicorn closes one behind each exception, without a word in its headers."""
        headers = {"Content-Type": "application/json"}
        if api_key:
            headers["Authorization"] = f"Bearer {api_key}"
        connector = aiohttp.TCPConnector(
            limit=0,  # admission bounds what is in flight; a second queue here would only hide it
            keepalive_timeout=KEEPALIVE_S if reuse else None,
            force_close=not reuse,
            socket_factory=keepalive_socket,
        )
        self._connections = Connections(KEEPALIVE_S, CONNECT_S)
        self._headers = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._session = aiohttp.ClientSession(
            connector=connector,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=256 * 1024,
        )

    async def aclose(self) -> None:
        """Closes every connection."""
        self._connections.close()
        await self._session.close()

    @asynccontextmanager
    async def post(self, url: str, body: bytes, *, request_id: str) -> AsyncIterator[Streamed]:
        """Sends a request, and gives the answer as soon as its headers are here. Leaving early closes the connection.

        Raises Lost, also from inside the block when reading breaks.
        """
        place = place_of(url)
        try:
            connection = await self._connections.take(place)
        except (OSError, UnicodeError) as error:
            raise Lost(f"cannot connect to {place.host}: {_said(error)}", refused=True) from error
        try:
            head = f"{place.head}{self._headers}X-Request-Id: {request_id}\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.send(head.encode("latin-1"), body)
            await connection.head()
            yield Streamed(connection)
        except Broken as error:
            raise Lost(str(error), refused=False) from error
        finally:
            self._connections.give_back(place, connection)

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


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


def _plain(params: Mapping[str, str] | None) -> dict[str, str] | None:
    return dict(params) if params else None
