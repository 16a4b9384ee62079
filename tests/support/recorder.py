"""A proxy that passes bytes on unchanged and writes down what went through: in front of an engine, or of a gateway.

    async with Recorder(vllm.url) as recorder:
        ... recorder.url is the engine ...
        recorder.generations

As a program, for jobs that start their engine themselves: `python -m tests.support.recorder URL PORT`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import re
import sys
import time
from array import array
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import aiohttp
from aiohttp import web

from sandgate.gateway.engine.logprobs import ASKS

HOP = {"host", "connection", "keep-alive", "transfer-encoding", "content-length", "upgrade", "te", "trailer"}
"""Headers of one connection, not of the message."""
GENERATE = "/inference/v1/generate"
CHAT = re.compile(r".*/sessions/(?P<session>[^/]+)/v1/chat/completions")
STOP_S = 1.0
"""For handlers that are still busy when the proxy ends."""


@dataclass(eq=False)
class Exchange:
    """One request and its answer, as they went through."""

    headers: Mapping[str, str]
    """Any case."""
    raw: bytes
    """The request's body."""
    status: int = 0
    body: bytearray = field(default_factory=bytearray)
    passed_on: bool = False
    """The whole answer was written to whoever asked, and the connection held."""
    at: float = field(default_factory=time.time)
    """Unix seconds, as in journals."""
    over_at: float = math.inf
    """From then on nothing more will come of it."""

    @cached_property
    def asked(self) -> Any:
        """The request's JSON."""
        return json.loads(self.raw)


@dataclass(eq=False)
class Generation(Exchange):
    """Of `/inference/v1/generate`: what the engine was told, and what it sampled."""

    @property
    def turn(self) -> str:
        """The gateway names requests `<turn id>-<8 characters>`, and `...-r1` after a lost connection."""
        return self.headers["X-Request-Id"].split("-")[0]

    @property
    def prompt(self) -> array[int]:
        return array("i", self.asked["token_ids"])

    @property
    def temperature(self) -> float:
        return float(self.asked["sampling_params"]["temperature"])

    @property
    def streamed(self) -> bool:
        return bool(self.asked.get("stream"))

    def _choices(self) -> list[Any]:
        if not self.streamed:
            return list(json.loads(self.body)["choices"])
        events = [line[6:] for line in self.body.decode().splitlines() if line.startswith("data: ")]
        assert events[-1] == "[DONE]"
        return [choice for event in events[:-1] for choice in json.loads(event)["choices"]]

    @cached_property
    def ids(self) -> array[int]:
        return array("i", [token for choice in self._choices() for token in choice["token_ids"]])

    @cached_property
    def logprobs(self) -> array[float]:
        """float32, each that of the sampled id."""
        entries = [entry for choice in self._choices() for entry in choice["logprobs"]["content"]]
        assert [entry["token_id"] for entry in entries] == self.ids.tolist()
        return array("f", [entry["logprob"] for entry in entries])

    @property
    def finish(self) -> str:
        return str(self._choices()[-1]["finish_reason"])


@dataclass(eq=False)
class Chat(Exchange):
    """Of `/v1/chat/completions`: what an agent asked, and what it was told."""

    session: str = ""

    @property
    def told(self) -> Any:
        """The JSON answer."""
        return json.loads(self.body)

    @property
    def turn(self) -> str:
        return str(self.told["id"]).removeprefix("chatcmpl-")


Hook = Callable[[str, Exchange], Awaitable[web.Response | None]]
"""Called at "asked" (before anything is passed on), "answered" (the head of the answer is here; of a short answer
usually all) and "told" (all of it is passed on). An answer given at "asked" is sent instead of asking."""


async def _nothing(moment: str, exchange: Exchange) -> web.Response | None:
    return None


class Recorder:
    """Listens on a free port of loopback. `hook` may be set at any time."""

    def __init__(self, target: str, port: int = 0) -> None:
        self.target, self._port = target.rstrip("/"), port
        self.exchanges: list[Exchange] = []
        self.hook: Hook = _nothing

    @property
    def generations(self) -> list[Generation]:
        """In the order they were asked for."""
        return [one for one in self.exchanges if isinstance(one, Generation)]

    @property
    def chats(self) -> list[Chat]:
        return [one for one in self.exchanges if isinstance(one, Chat)]

    async def __aenter__(self) -> Recorder:
        self._http = aiohttp.ClientSession(
            auto_decompress=False,
            timeout=aiohttp.ClientTimeout(total=None),
            # A kept-alive connection that its server closes just now would look like a broken engine.
            connector=aiohttp.TCPConnector(force_close=True, limit=0),
            trust_env=False,
        )
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{tail:.*}", self._pass)
        # Cancelled when whoever asks is gone: then the engine must learn it, as it would without us.
        self._runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=STOP_S)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()
        await self._http.close()

    def _record(self, request: web.Request, raw: bytes) -> Exchange | None:
        """None for polls, probes and measurements: they are not kept."""
        found: Exchange
        about = (request.headers, raw)
        named = request.headers.get("X-Request-Id", ASKS)  # probes are not named
        if request.path == GENERATE and not named.startswith(ASKS):
            found = Generation(*about)
        elif match := CHAT.fullmatch(request.path):
            found = Chat(*about, session=match["session"])
        else:
            return None
        self.exchanges.append(found)
        return found

    def _to(self, request: web.Request) -> str:
        """`/to/PORT/...` goes to that port of this machine; everything else to the target."""
        path = request.raw_path
        if match := re.match(r"/to/(\d+)(/.*)", path):
            return f"http://127.0.0.1:{match[1]}{match[2]}"
        return self.target + path

    async def _pass(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        exchange = self._record(request, raw)
        try:
            if exchange is not None and (instead := await self.hook("asked", exchange)) is not None:
                exchange.status = instead.status
                return instead
            return await self._ask(request, raw, exchange)
        finally:
            if exchange is not None:
                exchange.over_at = time.time()

    async def _ask(self, request: web.Request, raw: bytes, exchange: Exchange | None) -> web.StreamResponse:
        headers = {name: text for name, text in request.headers.items() if name.lower() not in HOP}
        try:
            async with self._http.request(
                request.method, self._to(request), data=raw, headers=headers, allow_redirects=False
            ) as answer:
                return await self._answer(request, exchange, answer)
        except aiohttp.ClientError:
            # Whoever asks sees what it would have seen without us: a broken connection.
            if request.transport is not None:
                request.transport.abort()
            return web.Response(status=502)

    async def _answer(
        self, request: web.Request, exchange: Exchange | None, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        if exchange is not None:
            exchange.status = answer.status
            await self.hook("answered", exchange)
        kept = {name: text for name, text in answer.headers.items() if name.lower() not in HOP}
        response = web.StreamResponse(status=answer.status, headers=kept)
        if answer.content_length is not None:
            response.content_length = answer.content_length
        await response.prepare(request)
        async for chunk in answer.content.iter_any():
            if exchange is not None:
                exchange.body += chunk
            await response.write(chunk)
        await response.write_eof()
        if exchange is not None:
            exchange.passed_on = True
            await self.hook("told", exchange)
        return response


async def main(target: str, port: int) -> None:
    """Until it is killed."""
    async with Recorder(target, port):
        await asyncio.Event().wait()


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(main(sys.argv[1], int(sys.argv[2])))
