"""A real gateway process under attack: how much memory it took, and whether it still answers others.

async with victim(tmp_path) as v:
    agent = await v.session()
    await v.forget_peak()
    ...
    assert v.grown_mb() < 64
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from sandgate.gateway.engine.scripted.script import Player
from sandgate.gateway.engine.scripted.server import ScriptedServer
from tests.support.gateway import WITHIN_S, bearer, client, codec, ids
from tests.support.process import Process

MIB = 1 << 20
PATIENCE_S = 60.0
"""For an answer to a hostile request on a busy machine; what is judged is never this."""


@dataclass
class Victim:
    """The process, seen from outside."""

    process: Process
    admin: httpx.AsyncClient
    before_kb: int = 0
    agents: list[httpx.AsyncClient] = field(default_factory=list)

    @property
    def origin(self) -> str:
        return self.process.origin

    async def session(self, **spec: Any) -> httpx.AsyncClient:
        """Bare HTTP of a new session's agent; paths are below the session."""
        made = await self.admin.post("/v1/sessions", json=spec)
        assert made.status_code == 201, made.text
        handle = made.json()
        http = client(f"{self.origin}/sessions/{handle['session_id']}/", handle["api_key"])
        http.timeout = httpx.Timeout(PATIENCE_S)
        self.agents.append(http)
        return http

    def forget_peak(self) -> None:
        """`grown_mb` counts from here."""
        Path(f"/proc/{self._pid}/clear_refs").write_text("5")
        self.before_kb = self._kb("VmRSS")

    def grown_mb(self) -> float:
        """The most that the process held since `forget_peak`, above what it held then."""
        return (self._kb("VmHWM") - self.before_kb) / 1024

    def peak_mb(self) -> float:
        """The most that the process held since `forget_peak`, all of it."""
        return self._kb("VmHWM") / 1024

    def held_kb(self) -> int:
        """What it holds now."""
        return self._kb("VmRSS")

    @property
    def _pid(self) -> int:
        assert self.process.life is not None
        return self.process.life.pid

    def _kb(self, name: str) -> int:
        status = Path(f"/proc/{self._pid}/status").read_text()
        return int(status.partition(f"{name}:")[2].split()[0])

    def connections(self) -> int:
        """Sockets that it holds, its engine's and its listening one's included."""
        names: list[str] = []
        for path in Path(f"/proc/{self._pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):  # closed since it was listed
                names.append(str(path.readlink()))
        return sum(name.startswith("socket:") for name in names)

    async def slowest_while(self, attack: Awaitable[Any]) -> float:
        """Seconds that the slowest of many looks at /healthz took while the attack went on."""
        worst, running = 0.0, asyncio.ensure_future(attack)
        async with client(self.origin) as http:
            while not running.done():
                began = time.perf_counter()
                assert (await http.get("/healthz", timeout=PATIENCE_S)).status_code == 200
                worst = max(worst, time.perf_counter() - began)
        await running
        return worst


@asynccontextmanager
async def victim(
    folder: Path, script: Sequence[str] | Callable[[Any, int], str] = ("done",), **settings: Any
) -> AsyncIterator[Victim]:
    """Started, with an engine that says what the script says; `settings`: of `config_in`."""
    player = Player(script, encode=ids, eos_ids=codec().stop_ids, max_model_len=4096)
    async with (
        ScriptedServer(player, model="shop") as engine,
        Process(folder, engine.url, **settings) as process,
    ):
        await process.start()
        async with process.admin() as admin:
            up = Victim(process, admin)
            try:
                yield up
            finally:
                for agent in up.agents:
                    await agent.aclose()


class Wires:
    """Bare connections to a gateway, all cut in the end. `async with Wires(origin) as wires`."""

    def __init__(self, origin: str) -> None:
        self._url = httpx.URL(origin)
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Wires:
        return self

    async def __aexit__(self, *_: object) -> None:
        for writer in self._writers:
            writer.transport.abort()
        for writer in self._writers:
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def open(self, sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """One more, with something sent."""
        reader, writer = await asyncio.open_connection(self._url.host, self._url.port)
        self._writers.append(writer)
        if sent:
            writer.write(sent)
        return reader, writer

    async def deaf(self, sent: bytes) -> asyncio.StreamReader:
        """One more, of which the kernel takes little that is not read; what it is told is read only when asked for."""
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, (self._url.host, self._url.port))
            reader, writer = await asyncio.open_connection(sock=sock, limit=1024)
        except BaseException:
            sock.close()
            raise
        self._writers.append(writer)
        writer.write(sent)
        return reader

    async def status(self, sent: bytes) -> int:
        """Of the answer to what is sent on one more."""
        reader, _ = await self.open(sent)
        return await status_of(reader)


async def status_of(reader: asyncio.StreamReader) -> int:
    """Of the answer that comes next."""
    async with asyncio.timeout(WITHIN_S):
        return int((await reader.readline()).split()[1])


def chat(**more: Any) -> bytes:
    """Body of a chat completion that is fine but for `more`."""
    return json.dumps({"model": "shop", "messages": [{"role": "user", "content": "hi"}], **more}).encode()


def head(method: str, path: str, key: str = "", **headers: str) -> bytes:
    """A request's head over a bare socket."""
    said = {"host": "x", **(bearer(key) if key else {}), **headers}
    lines = [f"{method} {path} HTTP/1.1", *(f"{n.replace('_', '-')}: {text}" for n, text in said.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"
