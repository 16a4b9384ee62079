"""Fetches an image from a listed host: bounded, without redirects, from the very address that was checked."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from sandgate.contract.errors import InvalidBody, MediaUnavailable, Unsupported
from sandgate.gateway.media.allowed_hosts import Address, AllowedHosts
from sandgate.gateway.media.sources import BYTES_MAX

CONNECT_S, TOTAL_S = 5.0, 20.0
"""To reach a host; to have an image of it: 8 MiB at 3.4 Mbit/s."""
CHUNK = 1 << 16
AGAIN = frozenset({408, 425, 429, 500, 502, 503, 504})
"""Statuses that may be others when asked again."""
HEADERS = {"Accept": "image/png, image/jpeg, image/webp, image/gif", "Accept-Encoding": "identity"}
Lookup = Callable[[str, int], Awaitable[list[str]]]
"""Host and port -> IP addresses. Raises OSError."""


class ClosedAddress(Exception):
    """A name leads where nothing is fetched."""


async def look_up(host: str, port: int) -> list[str]:
    """By the system's resolver."""
    found = await asyncio.get_running_loop().getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG
    )
    return list(dict.fromkeys(str(where[0]) for *_, where in found))


class CheckedResolver(AbstractResolver):
    """What it returns was checked, and is what the connection is made to: nobody looks the name up again. All that a
    name stands for must be open: else it would be chance what is tried."""

    def __init__(self, allowed: AllowedHosts, lookup: Lookup) -> None:
        self.allowed, self.lookup = allowed, lookup

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        ips = await self.lookup(host, port)
        if (closed := self.allowed.refused(ips)) is not None:
            raise ClosedAddress(closed)
        return [
            ResolveResult(
                hostname=host, host=ip, port=port, proto=0, flags=socket.AI_NUMERICHOST,
                family=socket.AF_INET6 if ":" in ip else socket.AF_INET,
            )
            for ip in ips
        ]  # fmt: skip

    async def close(self) -> None:
        return None


@dataclass(slots=True)
class Fetcher:
    """Fetches from these hosts. No cookies, no credentials, no proxies of the environment, a new connection each."""

    allowed: AllowedHosts
    lookup: Lookup = look_up
    tls: ssl.SSLContext | bool = True
    connect_s: float = CONNECT_S
    total_s: float = TOTAL_S
    _http: aiohttp.ClientSession | None = field(default=None, init=False)

    def _session(self) -> aiohttp.ClientSession:
        if self._http is None:
            connector = aiohttp.TCPConnector(
                limit=0, force_close=True, use_dns_cache=False, ssl=self.tls,
                resolver=CheckedResolver(self.allowed, self.lookup),
            )  # fmt: skip
            self._http = aiohttp.ClientSession(
                connector=connector, cookie_jar=aiohttp.DummyCookieJar(), trust_env=False, auto_decompress=False,
                headers={"User-Agent": "sandgate-gateway"},
                timeout=aiohttp.ClientTimeout(total=self.total_s, sock_connect=self.connect_s),
            )  # fmt: skip
        return self._http

    async def aclose(self) -> None:
        """Drops what is under way."""
        if self._http is not None:
            await self._http.close()

    async def __call__(self, address: Address, where: str) -> bytes:
        """What is there. `where`: the request's field that names it. Raises Unsupported, InvalidBody: it is no
        use to ask again; MediaUnavailable: it may be."""
        self.allowed.check(address, where)
        try:
            return await self._get(address, where)
        except ClosedAddress as error:
            raise Unsupported(
                f"{where}: {address.origin.host} leads to {error}, where no image is fetched; "
                "spec.gateway.media.privateAddresses opens private addresses; one that is listed itself is open",
                field=where,
            ) from None
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise MediaUnavailable(
                f"{where}: {address.origin} is not reached: {_brief(error)}", unreached=True
            ) from None
        except TimeoutError:
            raise MediaUnavailable(f"{where}: {address.origin} took longer than {self.total_s:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise MediaUnavailable(
                f"{where}: {address.origin} broke off, or answers no HTTP: {_brief(error)}"
            ) from None

    async def _get(self, address: Address, where: str) -> bytes:
        origin = address.origin
        asked = URL(
            str(address), encoded=True
        )  # as it was checked and is journalled: signatures are over its spelling
        async with self._session().get(asked, headers=HEADERS, allow_redirects=False) as answer:
            if answer.status in AGAIN:
                raise MediaUnavailable(f"{where}: {origin} answers {answer.status}")
            if answer.status != 200:
                what = "a redirect, and none is followed" if 300 <= answer.status < 400 else "no image"
                raise InvalidBody(f"{where}: {origin} answers {answer.status}: {what}", field=where)
            if (answer.content_length or 0) > BYTES_MAX:
                raise too_large(where)
            raw = bytearray()
            async for chunk in answer.content.iter_chunked(CHUNK):
                raw += chunk
                if len(raw) > BYTES_MAX:
                    raise too_large(where)
            return bytes(raw)


def too_large(where: str) -> InvalidBody:
    """The error."""
    return InvalidBody(f"{where}: an image has at most {BYTES_MAX} bytes", field=where)


def _brief(error: BaseException) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
