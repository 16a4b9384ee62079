"""Sends the calls of contract.control_api to one gateway, each again until it is answered.

Every call may be repeated, so the client repeats by itself, on a broken connection, 429, 502, 503 and 504: a gateway
that restarts is a pause, not an error. Nothing but the gateway's origin is ever asked: no proxy of the environment, no
redirect, no cookie.
"""

from __future__ import annotations

import asyncio
import functools
import json
import random
import ssl
import time
import uuid
from asyncio import sleep
from collections.abc import AsyncIterator, Awaitable, Callable
from types import TracebackType
from typing import Any, Self, TypeVar

import aiohttp
import httpx
from httpx_aiohttp import AiohttpTransport

from sandgate.contract import control_api
from sandgate.contract.control_call import (
    ANSWER_BYTES_MAX,
    JSON,
    ControlAnswer,
    ControlCall,
    may_retry,
    outcome,
)
from sandgate.contract.errors import InvalidBody, SandgateError, Unauthorized, Unavailable
from sandgate.gateway.client.bounded_body import BODY_S, PLAIN, body_of
from sandgate.gateway.client.retries import Retries

T = TypeVar("T")

TIMEOUT_S = 30.0
"""For the head of an answer that is not held back on purpose; finalizing a session of 100k tokens takes well under
one."""
CONNECT_S = 5.0
PAGES_MAX = 50_000
"""Of one listing; a page has a thousand sessions. A job that runs for weeks has millions, and a gateway tells of the
retired ones too; what all pages take together is the caller's affair."""
LISTING_S = 600.0
"""From the first page of a listing to the last, but for what the caller does between them; each takes milliseconds."""


class ControlClient:
    """One gateway's control API. Use as `async with`, or call `aclose`."""

    def __init__(
        self,
        base_url: str,
        key: str = "",
        *,
        timeout_s: float = TIMEOUT_S,
        retries: Retries | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        newer_key: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        """`base_url`: the gateway's origin. `key`: scope trainer or admin. `transport`: another way there. `newer_key`
        is asked when the gateway does not take the key any more (it expired); the call is sent again if it gives
        another one. What it raises is raised, or waited for, as what a gateway says."""
        self.origin = base_url.rstrip("/")
        self._transport = transport or gateway_transport()
        self._key, self._newer_key, self._asking = key, newer_key, asyncio.Lock()
        self._timeout_s, self._retries = timeout_s, retries or Retries()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close connections. Leases that were not acked are offered again when they expire."""
        await self._transport.aclose()

    async def call(
        self, call: ControlCall[T], retries: Retries | None = None, *, timeout_s: float | None = None
    ) -> T:
        """Carry out one call; `retries` and `timeout_s` of its own, or the client's. Raises what the gateway says,
        Unavailable when it does not answer, CorruptRecord for an answer that is something else."""
        attempt, retries, began, renewed = 0, retries or self._retries, time.monotonic(), False
        timeout_s = self._timeout_s if timeout_s is None else timeout_s
        while True:
            attempt += 1
            key = self._key
            try:
                try:
                    return outcome(call, await self._once(call, timeout_s))
                except Unauthorized:
                    if renewed or not await self._renewed(key):
                        raise
                    renewed = True
                    continue
            except (httpx.HTTPError, aiohttp.ClientError, OSError) as lost:
                error = self._unanswered(call, lost)
            except SandgateError as said:
                if not may_retry(said):
                    raise
                error = said
            spent_s = time.monotonic() - began - call.wait_s
            pause = retries.delay(attempt, error, random.random(), spent_s)
            if pause is None:
                raise error
            await sleep(pause)

    async def _renewed(self, refused: str) -> bool:
        """Whether there is another key than the one that was refused. Calls that meet it together ask once."""
        if self._newer_key is None:
            return False
        async with self._asking:
            if self._key == refused:
                try:
                    async with asyncio.timeout(self._timeout_s):
                        self._key = await self._newer_key()
                except TimeoutError as late:
                    why = f"{self.origin}: nobody gave a newer key within {self._timeout_s:g} s"
                    raise Unavailable(why, retry_after=0.0) from late
        return self._key != refused

    async def _pages(self, *, state: str = "", job: str = "") -> AsyncIterator[dict[str, Any]]:
        """All sessions in order of id, page by page. Raises InvalidBody for pages without an end."""
        after, left_s = "", LISTING_S
        for _ in range(PAGES_MAX):
            began = time.monotonic()
            page = await self.call(control_api.sessions(state, job, after))
            left_s -= time.monotonic() - began
            for session in page.sessions:
                yield session
            if page.next is None:
                return
            if not isinstance(page.next, str) or page.next <= after or left_s < 0:
                break
            after = page.next
        raise InvalidBody(f"{self.origin}: its list of sessions does not end", field="next")

    async def _once(self, call: ControlCall[Any], timeout_s: float) -> ControlAnswer:
        where = f"{call.method} {self.origin}{call.path}"
        async with asyncio.timeout(timeout_s + call.wait_s):
            response = await self._transport.handle_async_request(self._request(call))
        try:
            within_s = BODY_S if call.most > ANSWER_BYTES_MAX else timeout_s
            raw = await body_of(response, where, call.most, within_s)
        finally:
            await response.aclose()
        return ControlAnswer(response.status_code, response.headers, raw)

    def _request(self, call: ControlCall[Any]) -> httpx.Request:
        headers = {**PLAIN, **call.headers}
        if self._key:
            if not (self._key.isascii() and self._key.isprintable()):  # httpx would say where, and quote it
                raise Unauthorized("the key holds a character that no key has: is it cut off, or not a key?")
            headers["authorization"] = f"Bearer {self._key}"
        content: bytes | None = None
        if call.json is not None:
            headers["content-type"] = JSON
            content = json.dumps(call.json, allow_nan=False).encode()
        return httpx.Request(
            call.method,
            self.origin + call.path,
            params=call.params,
            headers=headers,
            content=content,
            extensions={"timeout": {"connect": CONNECT_S}},
        )

    def _unanswered(self, call: ControlCall[Any], error: Exception) -> SandgateError:
        why = str(error) or type(error).__name__
        lost = Unavailable(f"{self.origin} does not answer {call.method} {call.path}: {why}", retry_after=0.0)
        lost.__cause__ = error
        return lost


def gateway_transport() -> httpx.AsyncBaseTransport:
    """HTTP by aiohttp, which costs a fifth of what httpx's own pool does with 32 calls at once. As many connections as
    there are calls."""

    def session() -> aiohttp.ClientSession:
        connector = aiohttp.TCPConnector(limit=0, ssl=_tls())
        return aiohttp.ClientSession(
            connector=connector, trust_env=False, cookie_jar=aiohttp.DummyCookieJar(), timeout=_UNBOUNDED
        )

    return _GatewayTransport(verify=_tls(), client=session)


class _GatewayTransport(AiohttpTransport):
    """A call after `aclose` is a RuntimeError, also where it would be the first: it would open what nobody closes."""

    _over = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._over:
            raise RuntimeError("Session is closed")  # aiohttp's words for one that was used
        return await super().handle_async_request(request)

    async def aclose(self) -> None:
        self._over = True
        await super().aclose()


def new_lease_id() -> str:
    """Of a lease that is asked for."""
    return f"l-{uuid.uuid4().hex[:24]}"


def new_reward_id() -> str:
    """Of a reward that is given."""
    return f"r-{uuid.uuid4().hex[:24]}"


_UNBOUNDED = aiohttp.ClientTimeout(total=None)
"""Each call has its own."""


@functools.cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
