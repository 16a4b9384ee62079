"""The gateway as a Ray actor: the whole of it, on a port of its own, in the actor's event loop."""

from __future__ import annotations

import asyncio
import secrets
import socket
import tempfile
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from sandgate.contract import control_api
from sandgate.contract.control_call import ControlAnswer
from sandgate.contract.errors import Unavailable
from sandgate.contract.keys import Key, Scope, mint
from sandgate.contract.session import SessionHandle
from sandgate.contract.trajectory import Json
from sandgate.gateway.app import gateway, web_server
from sandgate.gateway.config import Config, EngineConfig, Limits, Listen, ModelConfig, SessionLimits
from sandgate.trainer.client import lease_call
from sandgate.trainer.client.gateway_manager import HttpGateway, Outcome
from sandgate.trainer.client.rollout_client import AsyncRolloutClient

SECRET_BYTES = 32
KEPT_S = 600.0
"""Of trajectories that were given, and that nobody said they have: their trainer died, or asks again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """What a gateway in Ray is told."""

    model: str
    tokenizer: str
    """Folder with tokenizer.json and the chat template, readable on the actor's node."""
    engine_urls: tuple[str, ...] = ()
    """vLLM servers; empty if the engine comes from `engine`."""
    engine: Callable[[], Any] | None = field(default=None, repr=False)
    """Makes the engine inside the actor."""
    host: str = ""
    """What agents reach the actor's node by; empty = the node's address in Ray."""
    max_model_len: int = 0
    """Tokens of prompt and answer; 0 = the engine's."""
    job: str = ""
    limits: dict[str, Json] = field(default_factory=dict)
    """`limits` of its configuration."""
    session_limits: dict[str, Json] = field(default_factory=dict)


class AgentGateway:
    """Make it with `gateway_actor`. Its journal lives as long as the actor: a trainer that dies takes its sessions with
    it, and verl starts their prompts anew."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        self._stack = AsyncExitStack()
        self._door: HttpGateway | None = None
        self._starting = asyncio.Lock()
        self._core: Any = None
        self._told: dict[str, float] = {}
        """Session -> when its trajectories were given last; not forgotten yet."""

    async def start(self) -> str:
        """Serve; the origin. Idempotent. Raises what the gateway raises when it cannot start."""
        async with self._starting:
            if self._door is None:
                try:
                    self._door = await self._serve()
                except BaseException:
                    await self._stack.aclose()
                    raise
        return str(self._core.origin)

    async def _serve(self) -> HttpGateway:
        made = self.settings
        folder = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="sandgate-ray-")))
        secret = secrets.token_bytes(SECRET_BYTES)
        (folder / "secret").touch(mode=0o600)
        (folder / "secret").write_text(secret.hex())
        listener = self._stack.enter_context(socket.create_server(("", 0), family=socket.AF_INET))
        port = listener.getsockname()[1]
        origin = f"http://{made.host or _node_address()}:{port}"
        config = Config(
            listen=Listen(port=port),
            origin=origin,
            journal=str(folder / "journal.sqlite"),
            engine=EngineConfig(urls=made.engine_urls, wait=not made.engine_urls),
            model=ModelConfig(name=made.model, tokenizer=made.tokenizer, max_model_len=made.max_model_len),
            job=made.job,
            secret_file=str(folder / "secret"),
            limits=msgspec.convert(made.limits, Limits),
            session_limits=msgspec.convert(made.session_limits, SessionLimits),
        )
        engine = made.engine() if made.engine is not None else None
        running = await self._stack.enter_async_context(gateway(config, origin=origin, engine=engine))
        self._core = running.core
        server = web_server(running.app)
        serving = asyncio.get_running_loop().create_task(server.serve([listener]))

        async def stop() -> None:
            server.should_exit = True
            await serving

        self._stack.push_async_callback(stop)
        key = mint(secret, Key(Scope.ADMIN))
        client = AsyncRolloutClient(f"http://127.0.0.1:{port}", key)
        door = HttpGateway(await self._stack.enter_async_context(client))
        await client.status()  # the socket listens already: answered as soon as the server accepts
        return door

    @property
    def _gateway(self) -> HttpGateway:
        if self._door is None:
            raise Unavailable("the gateway actor was not started")
        return self._door

    async def create_session(self, session_id: str, spec: dict[str, Json] | None = None) -> SessionHandle:
        """Open it; starts the gateway if need be."""
        await self.start()
        return await self._gateway.create_session(session_id, **(spec or {}))

    async def finalize_session(
        self, session_id: str, reward: float | None = None, outcome: Outcome = None
    ) -> ControlAnswer:
        """Its trajectories, as the gateway has written them in a thread: whoever asked decodes them, not this loop,
        which streams turns. The same again until `forget`, which whoever has them calls: an answer may be lost on its
        way. One that nobody calls is forgotten after KEPT_S."""
        body = await self._gateway.ending(session_id, reward, outcome)
        call = control_api.finalize(session_id, body | {"trajectories": True})
        said = await self._gateway.client.call(lease_call.raw(call))
        self._told[session_id] = now = time.monotonic()
        for name in [name for name, at in self._told.items() if at < now - KEPT_S]:
            await self.forget(name)
        return ControlAnswer(said.status, {"content-type": said.headers.get("content-type", "")}, said.body)

    async def forget(self, session_id: str) -> None:
        """Its trajectories are with the trainer: it goes, here and from the journal. Idempotent."""
        if self._told.pop(session_id, None) is not None:
            await self._forget(session_id)

    async def limit_reached(self, session_id: str) -> str | None:
        """See `SessionGateway`."""
        return await self._gateway.limit_reached(session_id)

    async def abort_session(self, session_id: str) -> None:
        """Cancel, discard, forget. Harmless for a session that is not here."""
        if self._core is not None and session_id in self._core.sessions.live:
            await self._gateway.abort_session(session_id)
            self._told.pop(session_id, None)
            await self._forget(session_id)

    async def wait_for_completion(self, session_id: str, timeout: float) -> bool:
        """Has the agent called /complete, `timeout` seconds from now at the latest?"""
        return await self._gateway.wait_for_completion(session_id, timeout)

    async def sessions(self) -> int:
        """How many it holds."""
        return len(self._core.sessions.live) if self._core is not None else 0

    async def policy_version(self, version: int, labelled: bool | None = None) -> None:
        """For engines that report none; `labelled`: see `AsyncRolloutClient.policy_version`."""
        await self._gateway.client.policy_version(version, labelled=labelled)

    async def stop(self) -> None:
        """Close the port and the journal. Idempotent."""
        async with self._starting:
            self._door = None
            await self._stack.aclose()

    async def _forget(self, session_id: str) -> None:
        """Nobody leases from this gateway, so nobody would ever acknowledge, and it would grow with every step."""
        sessions = self._core.sessions
        await sessions.store.retire([session_id])
        sessions.live.pop(session_id, None)
        sessions.book.forget([session_id])


def _node_address() -> str:
    import ray  # type: ignore[import-not-found]

    return str(ray.util.get_node_ip_address())
