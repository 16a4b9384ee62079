"""For your tests: a real gateway on loopback, in front of an engine that says what you script.

    async with gateway(["hello"]) as running:
        session = await running.client.create_session(uid="q1")
        client = AsyncOpenAI(base_url=session.base_url, api_key=session.api_key)
        ...
        rows = await running.client.finalize(session.session_id, reward=1.0)

The gateway is a process of its own, as in production; the engine runs in your event loop, so a script may be any
callable.
With pytest, `pytest_plugins = ["sandgate.trainer.pytest_plugin"]` gives the fixture `sandgate_gateway`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import signal
import socket
import sys
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from sandgate.contract.errors import SandgateError, Unavailable
from sandgate.contract.keys import Key, Scope, mint
from sandgate.gateway.client import Retries
from sandgate.gateway.engine.scripted.engine import Player, Reply, Script
from sandgate.gateway.engine.scripted.server import ScriptedServer
from sandgate.trainer import tinymodel
from sandgate.trainer.client.rollout_client import AsyncRolloutClient

MODEL = "tiny"
START_S = 30.0
"""A loaded CI machine needs a few seconds to import the gateway."""
STOP_S = 10.0
SECRET_FILE = "secret"
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class RunningGateway:
    """A gateway that answers."""

    origin: str
    admin_key: str
    client: AsyncRolloutClient
    """With the admin key."""
    player: Player
    """The engine: pause it, label its weights, count its generations."""
    folder: Path
    """Journal, config, log; deleted afterwards unless it was given."""
    model: str = MODEL


def replies(script: Script) -> Script:
    """Texts end their turn by themselves, as a model's do."""

    def closed(line: object) -> object:
        if isinstance(line, str):
            return Reply([*tinymodel.encode(line), tinymodel.END])
        return line

    if callable(script):
        return lambda ids, number: closed(script(ids, number))  # type: ignore[return-value]
    return [closed(line) for line in script]  # type: ignore[misc]


def tiny_player(script: Script) -> Player:
    """Plays it in the tokens of `tinymodel`."""
    return Player(
        replies(script),
        encode=tinymodel.encode,
        decode=tinymodel.decode,
        eos_ids=[tinymodel.END],
        vocab_size=tinymodel.VOCAB_SIZE,
    )


@asynccontextmanager
async def gateway(
    script: Script,
    *,
    folder: Path | None = None,
    job: str = "",
    settings: dict[str, object] | None = None,
) -> AsyncIterator[RunningGateway]:
    """Start engine and gateway, yield, stop both. `script`: see `ScriptedEngine` (gateway.engine.scripted.engine); a
    text ends its turn by itself. `folder`: kept, and a second gateway on it goes on with the first one's sessions.
    `settings`: further keys of the gateway's config. Raises Unavailable with the gateway's log if it does not start.
    """
    async with contextlib.AsyncExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sandgate-")))
        player = tiny_player(script)
        engine = await stack.enter_async_context(ScriptedServer(player, model=MODEL))
        origin, key = await stack.enter_async_context(_process(folder, engine.url, job, settings or {}))
        client = await stack.enter_async_context(AsyncRolloutClient(origin, key, retries=Retries(attempts=3)))
        yield RunningGateway(origin, key, client, player, folder)


@asynccontextmanager
async def _process(
    folder: Path, engine_url: str, job: str, settings: dict[str, object]
) -> AsyncIterator[tuple[str, str]]:
    """The gateway's process: its origin and an admin key."""
    secret = _secret(folder)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        origin = f"http://127.0.0.1:{listener.getsockname()[1]}"
        config = {
            "listen": {"fd": listener.fileno()},
            "origin": origin,
            "journal": str(folder / "journal.sqlite"),
            "engine": {"urls": [engine_url]},
            "model": {"name": MODEL, "tokenizer": str(tinymodel.write_tiny_model(folder / "model"))},
            "job": job,
            "secret_file": str(folder / SECRET_FILE),
        }
        (folder / "gateway.json").write_text(json.dumps(config | settings))
        with (folder / "gateway.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "sandgate.gateway.app", "--config", str(folder / "gateway.json"),
                pass_fds=[listener.fileno()], stdout=log, stderr=log,
            )  # fmt: skip
    try:
        key = mint(secret, Key(Scope.ADMIN))
        await _ready(origin, key, process, folder / "gateway.log")
        yield origin, key
    finally:
        await _stop(process)


async def _ready(origin: str, key: str, process: asyncio.subprocess.Process, log: Path) -> None:
    why = f"it does not answer after {START_S} s"
    with contextlib.suppress(TimeoutError):
        async with (
            asyncio.timeout(START_S),
            AsyncRolloutClient(origin, key, retries=Retries(attempts=1)) as client,
        ):
            while process.returncode is None:
                with contextlib.suppress(SandgateError):
                    await client.status()
                    return
                await asyncio.sleep(POLL_S)
            why = f"it ended with {process.returncode}"
    raise Unavailable(f"the gateway did not start: {why}\n{_text(log)}")


def _text(log: Path) -> str:
    return log.read_text("utf-8", "replace")


def _secret(folder: Path) -> bytes:
    """The folder's signing secret, made if it has none."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / SECRET_FILE
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(32))
    return bytes.fromhex(path.read_text())


async def _stop(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
