"""A whole gateway on loopback: the real web server, core, codec and journal; only the sampling is scripted.

async with gateway(["receipt 44"]) as g:
    agent = await g.session()
    answer = await agent.ask("buy 7 kiwi")
"""

from __future__ import annotations

import asyncio
import functools
import json
import socket
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import openai

from sandgate.contract.keys import Key, Scope, mint
from sandgate.gateway import app
from sandgate.gateway.config import Config, EngineConfig, Limits, ModelConfig, SamplingConfig, SessionLimits
from sandgate.gateway.engine.api import Delta, Engine, EngineStatus, GenerationResult, Prompt
from sandgate.gateway.engine.scripted.engine import Gate, Reply, Script, ScriptedEngine
from sandgate.gateway.journal.memory import MemoryStore
from sandgate.gateway.journal.store import Store
from sandgate.gateway.service.gateway_service import GatewayService
from sandgate.gateway.tokens.api import Codec
from sandgate.gateway.tokens.codec import TemplateCodec
from sandgate.gateway.tokens.load import load_codec, read_checkpoint

MODEL = Path(__file__).resolve().parents[2] / "examples" / "shop" / "model"
SECRET = bytes(range(32))
WITHIN_S = 20.0
"""A wait for something that does not come fails its test after this long; passing tests never wait for it."""
NEVER_S = 3600.0
"""A period that no test lives to see."""

BUY: Any = {
    "type": "function",
    "function": {
        "name": "buy",
        "description": "buy some",
        "parameters": {
            "type": "object",
            "properties": {"item": {"type": "string"}, "n": {"type": "integer"}},
        },
    },
}
"""A tool."""


@functools.cache
def codec() -> TemplateCodec:
    """Of the shop example's model, by the verified bridge: the same on every machine."""
    found = load_codec(MODEL, renderer="template")
    assert isinstance(found, TemplateCodec)
    return found


@functools.cache
def _vocab() -> Any:
    return read_checkpoint(MODEL).vocab


def ids(text: str) -> list[int]:
    """Token ids of `text`, special tokens read as such; no end of turn."""
    return list(_vocab().encode_whole(text))


def text(told: Sequence[int]) -> str:
    """What these ids say, special tokens too."""
    return str(_vocab().decode(told))


def call_text(name: str, **arguments: Any) -> str:
    """As the model writes a tool call."""
    said = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{said}\n</tool_call>"


def engine(script: Script, **more: Any) -> ScriptedEngine:
    """Says what the script says, in the shop model's tokens."""
    return ScriptedEngine(
        script,
        **{
            "encode": ids,
            "decode": _vocab().decode,
            "eos_ids": codec().stop_ids,
            "max_model_len": 4096,
            **more,
        },
    )


def user(text: str) -> dict[str, Any]:
    """A message."""
    return {"role": "user", "content": text}


async def eventually(condition: Callable[[], bool], what: str) -> None:
    """Returns in the turn of the event loop in which `condition` holds; the loop is not blocked meanwhile."""
    try:
        async with asyncio.timeout(WITHIN_S):
            while not condition():  # noqa: ASYNC110 - what is waited for has no event of its own
                await asyncio.sleep(0)
    except TimeoutError:
        raise AssertionError(f"never so: {what}") from None


async def rest() -> None:
    """Let everything that can go on go on until it waits for something outside; a request takes some 20 steps."""
    for _ in range(200):
        await asyncio.sleep(0)


async def within(event: asyncio.Event, what: str = "event") -> None:
    """Wait for it, not for ever."""
    try:
        async with asyncio.timeout(WITHIN_S):
            await event.wait()
    except TimeoutError:
        raise AssertionError(f"never came: {what}") from None


class Latch:
    """For MemoryStore's `gate`: commits wait while it is shut."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self.reached = asyncio.Event()
        """Somebody waits at it."""

    def shut(self) -> None:
        self._open.clear()
        self.reached.clear()

    def open(self) -> None:
        self._open.set()

    async def __call__(self) -> None:
        if not self._open.is_set():
            self.reached.set()
            await self._open.wait()


class Stubborn:
    """An engine whose abort takes until `let_go` is set; else as the one inside."""

    def __init__(self, inner: ScriptedEngine) -> None:
        self.inner, self.facts = inner, inner.facts
        self.aborting, self.let_go = asyncio.Event(), asyncio.Event()

    async def generate(
        self, prompt: Prompt, on_delta: Callable[[Delta], None] | None = None
    ) -> GenerationResult:
        try:
            return await self.inner.generate(prompt, on_delta)
        except asyncio.CancelledError:
            self.aborting.set()
            await self.let_go.wait()
            raise

    def status(self) -> list[EngineStatus]:
        return self.inner.status()

    async def aclose(self) -> None:
        await self.inner.aclose()


@dataclass(slots=True)
class Agent:
    """One session, as its agent sees it."""

    handle: dict[str, Any]
    http: httpx.AsyncClient
    """Bare HTTP with the agent's key; paths are below the session."""
    _clients: list[Any] = field(default_factory=list)

    @property
    def id(self) -> str:
        return str(self.handle["session_id"])

    def openai(self, **more: Any) -> openai.AsyncOpenAI:
        """The real SDK. Without retries, unless asked for."""
        made = openai.AsyncOpenAI(
            base_url=self.handle["base_url"],
            api_key=self.handle["api_key"],
            http_client=openai.DefaultAsyncHttpxClient(verify=False),
            **{"max_retries": 0, **more},
        )
        self._clients.append(made)
        return made

    def body(self, *messages: Any, **more: Any) -> dict[str, Any]:
        """Of a chat completion; a plain string is a user message."""
        said = [user(one) if isinstance(one, str) else one for one in messages]
        return {"model": "shop", "messages": said, **more}

    async def post(
        self, *messages: Any, headers: dict[str, str] | None = None, **more: Any
    ) -> httpx.Response:
        """A chat completion; whole, streamed or not."""
        return await self.http.post("v1/chat/completions", json=self.body(*messages, **more), headers=headers)

    async def ask(self, *messages: Any, **more: Any) -> dict[str, Any]:
        """The assistant's message."""
        answer = await self.post(*messages, **more)
        assert answer.status_code == 200, answer.text
        message: dict[str, Any] = answer.json()["choices"][0]["message"]
        return message

    async def aclose(self) -> None:
        for made in self._clients:
            await made.close()
        await self.http.aclose()


@dataclass(slots=True)
class Running:
    """A gateway that serves."""

    core: GatewayService
    front: Any
    origin: str
    engine: Any
    store: Store
    admin: httpx.AsyncClient
    folder: Path
    config: Config
    requests: set[Any]
    """Requests that the web server is working on."""
    connections: set[Any]
    servers: list[Any]
    """asyncio.Server, which listen."""
    agents: list[Agent] = field(default_factory=list)

    async def session(self, **spec: Any) -> Agent:
        """A new session and its agent."""
        made = await self.admin.post("/v1/sessions", json=spec)
        assert made.status_code == 201, made.text
        return self.agent(made.json())

    def agent(self, handle: dict[str, Any]) -> Agent:
        """Of a session that exists."""
        base = f"{self.origin}/sessions/{handle['session_id']}/"
        http = client(base, handle["api_key"])
        self.agents.append(Agent(handle, http))
        return self.agents[-1]

    async def tree(self, agent: Agent) -> list[dict[str, Any]]:
        """The session's turns, as the control API tells them."""
        answer = await self.admin.get(f"/v1/sessions/{agent.id}/tree")
        assert answer.status_code == 200, answer.text
        turns: list[dict[str, Any]] = answer.json()["turns"]
        return turns

    async def finalize(self, agent: Agent, **body: Any) -> list[dict[str, Any]]:
        """The session's trajectories."""
        answer = await self.admin.post(f"/v1/sessions/{agent.id}/finalize", json=body)
        assert answer.status_code == 200, answer.text
        rows: list[dict[str, Any]] = answer.json()["trajectories"]
        return rows

    def call(self) -> Any:
        """The only call in the making."""
        (calls,) = self.core.turns.registry.calls.values()
        (call,) = calls
        return call

    @property
    def generations(self) -> int:
        count: int = self.engine.generations
        return count


def client(base: str, key: str = "") -> httpx.AsyncClient:
    """Bare HTTP; no certificates are read, which would take longer than most tests."""
    return httpx.AsyncClient(
        base_url=base, headers=bearer(key) if key else {}, timeout=WITHIN_S, verify=False
    )


def bearer(key: str) -> dict[str, str]:
    """Headers."""
    return {"authorization": f"Bearer {key}"}


def admin_key(scope: Scope = Scope.ADMIN, **more: Any) -> str:
    """A key that any gateway of these tests takes."""
    return mint(SECRET, Key(scope, **more))


def config_in(
    folder: Path,
    *,
    limits: dict[str, Any] | None = None,
    sampling: dict[str, Any] | None = None,
    session_limits: dict[str, Any] | None = None,
    wait: bool = False,
    max_model_len: int = 4096,
    **more: Any,
) -> Config:
    """Times are such that nothing happens by itself within a test."""
    secret = folder / "secret"
    secret.write_text(SECRET.hex())
    patient = {"keepalive_s": NEVER_S, "linger_s": NEVER_S, "pause_hold_s": NEVER_S, "drain_s": 5.0}
    return Config(
        engine=EngineConfig(urls=("http://127.0.0.1:9",), wait=wait),
        model=ModelConfig(name="shop", tokenizer=str(MODEL), max_model_len=max_model_len),
        secret_file=str(secret),
        limits=Limits(**{**patient, **(limits or {})}),
        sampling=SamplingConfig(**(sampling or {})),
        session_limits=SessionLimits(**(session_limits or {})),
        **{"job": "shop-job", "journal": str(folder / "journal.sqlite"), **more},
    )


@asynccontextmanager
async def gateway(
    script: Script | Engine = ("done",),
    *,
    store: Store | None = None,
    folder: Path | None = None,
    now: Callable[[], float] | None = None,
    steady: Callable[[], float] | None = None,
    model: Codec | None = None,
    **settings: Any,
) -> AsyncIterator[Running]:
    """Serve on a free port of loopback, in this event loop. `steady`: by default `now`, where that is given. `model`:
    another than the shop example's. `settings`: of `config_in`."""
    async with AsyncExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        config = config_in(folder, **settings)
        if store is None:
            store = MemoryStore()
            stack.push_async_callback(store.aclose)
        source: Any = script if hasattr(script, "generate") else engine(script)
        sock = stack.enter_context(socket.socket())
        sock.bind(("127.0.0.1", 0))
        origin = f"http://127.0.0.1:{sock.getsockname()[1]}"
        clock = {} if now is None else {"now": now, "steady": steady or now}
        running = await stack.enter_async_context(
            app.gateway(config, origin=origin, engine=source, store=store, codec=model or codec(), **clock)
        )
        server = app.web_server(running.app)
        server.config.load()
        server.lifespan = server.config.lifespan_class(server.config)
        await server.startup([sock])  # serve() would do, but looks for its end ten times a second only
        stack.push_async_callback(_stop, server)
        stack.push_async_callback(source.aclose)
        admin = client(origin, admin_key())
        stack.push_async_callback(admin.aclose)
        state = server.server_state
        up = Running(
            running.core,
            running.app,
            origin,
            source,
            store,
            admin,
            folder,
            config,
            state.tasks,
            state.connections,
            server.servers,
        )
        stack.push_async_callback(_leave, up)
        yield up


async def _stop(server: Any) -> None:
    """Clients are gone by now, so every request ends; shutdown() would look for that ten times a second."""
    for listening in server.servers:
        listening.close()
    state = server.server_state
    await eventually(lambda: not state.connections and not state.tasks, "all requests have ended")


async def _leave(up: Running) -> None:
    for agent in up.agents:
        await agent.aclose()


def events(raw: bytes | str) -> list[Any]:
    """The JSON of each event of an SSE body, without the [DONE]."""
    text = raw.decode() if isinstance(raw, bytes) else raw
    lines = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def said(raw: bytes | str, index: int = 0) -> str:
    """The text that an SSE body says in choice `index`."""
    deltas = [
        choice["delta"]
        for event in events(raw)
        for choice in event.get("choices", ())
        if choice["index"] == index
    ]
    return "".join(delta.get("content") or "" for delta in deltas)


class Wire:
    """A request over a bare socket, to be cut at will."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.seen = b""

    @classmethod
    async def chat(cls, agent: Agent, body: dict[str, Any], **headers: str) -> Wire:
        """Send a chat completion; nothing is read yet."""
        url = httpx.URL(agent.handle["base_url"] + "/chat/completions")
        raw = json.dumps(body).encode()
        lines = [
            f"POST {url.raw_path.decode()} HTTP/1.1",
            f"host: {url.host}",
            f"authorization: Bearer {agent.handle['api_key']}",
            f"content-length: {len(raw)}",
            *[f"{name.replace('_', '-')}: {value}" for name, value in headers.items()],
        ]
        reader, writer = await asyncio.open_connection(url.host, url.port)
        writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + raw)
        await writer.drain()
        return cls(reader, writer)

    async def until(self, text: bytes) -> bytes:
        """Read until `text` was seen; returns everything seen."""
        async with asyncio.timeout(WITHIN_S):
            while text not in self.seen:
                chunk = await self.reader.read(65536)
                assert chunk, f"the connection ended before {text!r}; seen: {self.seen!r}"
                self.seen += chunk
        return self.seen

    async def until_said(self, text: str) -> bytes:
        """Read until the stream has said `text`."""
        async with asyncio.timeout(WITHIN_S):
            while said(self.seen.rpartition(b"\n\n")[0]) != text:
                self.seen += await self.reader.read(65536)
        return self.seen

    async def cut(self) -> None:
        """Break the connection."""
        self.writer.transport.abort()
        await asyncio.sleep(0)


def replies(*texts: str | Reply | Sequence[int]) -> list[Any]:
    """A script."""
    return list(texts)


def gated(text: str, at: int = 0) -> tuple[Reply, Gate]:
    """A reply that waits after `at` tokens, and what lets it go on."""
    gate = Gate()
    return Reply(text, gate=gate, gate_at=at), gate
