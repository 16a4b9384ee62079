"""Connections from agents and drivers to the gateway's ASGI app: slow, cut at any byte, dead with their process."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from tests.simulation.history import Asked
from tests.simulation.loop import LIFE

if TYPE_CHECKING:
    from tests.simulation.world import World

LATENCY_S = (0.0, 0.0, 0.001, 0.005, 0.05)
NOTICE_S = (0.0, 0.001, 0.02, 0.4)
"""From a cut until the server knows of it."""


class Cut(Exception):
    """The connection could not be made, broke, or the client gave up waiting. `heard`: what had arrived."""

    def __init__(self, why: str, heard: Heard) -> None:
        super().__init__(why)
        self.heard = heard


@dataclass(slots=True)
class Heard:
    """An answer, maybe in part."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    whole: bool = False
    marks: list[tuple[int, float]] = field(default_factory=list)
    """(bytes in all, when the server let go of the last of them)."""

    def sent_at(self, count: int) -> float:
        """When the server let go of byte number `count`."""
        return next((at for size, at in self.marks if size >= count), float("inf"))


@dataclass(slots=True, eq=False)
class Exchange:
    """One request on a connection of its own. `life`: the process at the other end."""

    world: World
    rng: Random
    life: int
    pieces: list[bytes | None]
    """Of the body; None: it never comes."""
    wire: asyncio.Queue[tuple[MutableMapping[str, Any] | None, float]] = field(default_factory=asyncio.Queue)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    """The server knows that the client is gone, or the exchange is over."""
    asked: Asked | None = None
    """What to note it in, if it is a question."""
    status: int = 0
    dead: bool = False
    over: bool = False

    async def receive(self) -> MutableMapping[str, Any]:
        """ASGI, as uvicorn does it: the body, then nothing until the client is gone or the answer is out."""
        if self.pieces and self.pieces[0] is not None and not self.closed.is_set():
            await asyncio.sleep(self.rng.choice(LATENCY_S))
            if not self.closed.is_set():
                piece = self.pieces.pop(0)
                if self.asked is not None and not self.pieces:
                    self.asked.arrived = self.world.loop.time()
                    self.world.moment("begin")
                return {"type": "http.request", "body": piece, "more_body": bool(self.pieces)}
        await self.closed.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Waits while the client is slow, then lets go; what goes to a closed connection is dropped in silence."""
        if self.rng.random() < 0.1:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.rng.choice(LATENCY_S)):
                    await self.closed.wait()
        if self.dead or self.closed.is_set():
            if self.asked is not None and self.asked.missed == self.world.loop.time():
                self.asked.answered = (
                    True  # cut in this very moment: the app cannot know yet, as with a dead socket
                )
            return
        self.wire.put_nowait((message, self.world.loop.time()))
        self.status = message.get("status", self.status)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            self.over = True
            self.closed.set()
            if self.asked is not None and self.status == 200 and b'"error":' not in message.get("body", b""):
                self.asked.answered = True
            self.world.moment("told")

    def hang_up(self, after_s: float) -> None:
        """By the client; the server hears of it later."""
        self.world.loop.call_later(after_s, self._noticed, context=contextvars.Context())

    def _noticed(self) -> None:
        self.closed.set()
        if self.asked is not None and not self.over:
            self.asked.missed = min(self.asked.missed, self.world.loop.time())

    def lost(self) -> None:
        """The process at the other end is gone: what it sent may still arrive, or not."""
        if not self.dead:
            self.dead = True
            if self.asked is not None and not self.over:
                self.asked.missed = min(self.asked.missed, self.world.loop.time())
            sent = [self.wire.get_nowait() for _ in range(self.wire.qsize())]
            for message in sent[: self.rng.randint(0, len(sent))]:
                self.wire.put_nowait(message)
            self.wire.put_nowait((None, 0.0))


@dataclass(slots=True, kw_only=True)
class Manner:
    """How a client behaves on this connection."""

    cut_at: int | None = None
    """Byte of the body after which the connection breaks; 0 = before the answer's head."""
    cut_in_body: bool = False
    """It breaks while the request is still being sent."""
    patience_s: float = 45.0


class Network:
    """To whichever life answers now."""

    def __init__(self, world: World, rng: Random) -> None:
        self._world, self._rng = world, rng
        self.open: dict[Exchange, None] = {}

    def lose(self, life: int) -> None:
        """Every connection of that process breaks."""
        for exchange in [one for one in self.open if one.life == life]:
            exchange.lost()

    async def request(
        self,
        method: str,
        path: str,
        headers: dict[str, str],
        body: bytes,
        manner: Manner,
        asked: Asked | None = None,
    ) -> Heard:
        """The whole answer. Raises Cut."""
        heard = Heard()
        rng, world = self._rng, self._world
        await asyncio.sleep(rng.choice(LATENCY_S))
        front, life = world.front, world.life
        if front is None:
            raise Cut("connection refused", heard)
        at = rng.randrange(len(body)) if body and (manner.cut_in_body or rng.random() < 0.1) else len(body)
        pieces: list[bytes | None] = [body[:at]] if at == len(body) else [body[:at], body[at:]]
        if manner.cut_in_body:
            pieces[1:] = [None]
        exchange = Exchange(world, rng, life, pieces, asked=asked)
        self.open[exchange] = None
        scope = _scope(method, path, headers, len(body))
        context = contextvars.copy_context()
        context.run(LIFE.set, life)
        server = world.loop.create_task(_serve(front, scope, exchange), name=f"serve {path}", context=context)
        server.add_done_callback(lambda task: world.served(task, path), context=contextvars.Context())
        try:
            async with asyncio.timeout(manner.patience_s):
                await self._read(exchange, heard, manner)
        except TimeoutError:
            raise Cut("the client lost patience", heard) from None
        finally:
            del self.open[exchange]
            if asked is not None:
                asked.left = world.loop.time()
            if not exchange.over:
                exchange.hang_up(rng.choice(NOTICE_S))
        return heard

    async def _read(self, exchange: Exchange, heard: Heard, manner: Manner) -> None:
        if manner.cut_in_body:
            await asyncio.sleep(self._rng.choice(LATENCY_S))
            raise Cut("cut while sending", heard)
        while True:
            message, sent = await exchange.wire.get()
            if message is None:
                raise Cut("connection reset", heard)
            if manner.cut_at == 0:
                raise Cut("cut before the answer", heard)
            if self._rng.random() < 0.3:
                await asyncio.sleep(self._rng.choice(LATENCY_S))
            if message["type"] == "http.response.start":
                heard.status = message["status"]
                heard.headers = {name.decode(): value.decode() for name, value in message["headers"]}
                continue
            heard.body += message.get("body", b"")
            heard.marks.append((len(heard.body), sent))
            if manner.cut_at is not None and len(heard.body) >= manner.cut_at:
                del heard.body[manner.cut_at :]
                raise Cut(f"cut at byte {manner.cut_at}", heard)
            if not message.get("more_body"):
                heard.whole = True
                return


async def _serve(front: Any, scope: dict[str, Any], exchange: Exchange) -> None:
    try:
        await front(scope, exchange.receive, exchange.send)
    finally:
        if not exchange.over:
            exchange.lost()


def _scope(method: str, path: str, headers: dict[str, str], length: int) -> dict[str, Any]:
    path, _, query = path.partition("?")
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "scheme": "http",
        "query_string": query.encode(),
        "headers": [
            (b"content-length", str(length).encode()),
            *((name.encode(), value.encode()) for name, value in headers.items()),
        ],
        "client": ("sim", 1),
        "server": ("sim", 80),
    }
