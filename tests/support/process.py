"""A gateway in a process of its own, to be killed; its listening socket is the test's, so clients queue meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import httpx
import msgspec

from tests.support.gateway import WITHIN_S, admin_key, client, config_in

ROOT = Path(__file__).resolve().parents[2]


class Process:
    """One journal and one address through many lives. `async with Process(folder, engine_url) as process`; with no
    engine's URL it must be told to `wait`."""

    def __init__(
        self, folder: Path, engine_url: str, *, env: dict[str, str] | None = None, **settings: Any
    ) -> None:
        self.folder = folder
        self.module = "sandgate.gateway"
        """What the next life runs."""
        self.env = {**os.environ, **(env or {})}
        self.sock = socket.socket()
        self.sock.bind(("127.0.0.1", 0))
        self.sock.listen(128)
        self.origin = f"http://127.0.0.1:{self.sock.getsockname()[1]}"
        config = json.loads(msgspec.json.encode(config_in(folder, **settings)))
        config["listen"] = {"fd": self.sock.fileno()}
        config["engine"]["urls"] = [engine_url] if engine_url else []
        self.config = folder / "gateway.json"
        self.config.write_text(json.dumps(config))
        self.log = folder / "gateway.log"
        self.life: asyncio.subprocess.Process | None = None
        self.lives = 0

    async def __aenter__(self) -> Process:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.life is not None:
            await self.kill()
        self.sock.close()

    async def start(self) -> None:
        """Returns when it answers; clients need not wait for that."""
        self.lives += 1
        with self.log.open("ab") as log:
            self.life = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                self.module,
                "--config",
                str(self.config),
                pass_fds=[self.sock.fileno()],
                stdout=log,
                stderr=log,
                cwd=ROOT,
                env=self.env,
            )
        async with client(self.origin) as http:
            assert (await http.get("/healthz", timeout=60.0)).status_code == 200

    async def kill(self) -> None:
        """SIGKILL."""
        await self.end(signal.SIGKILL)

    async def end(self, number: signal.Signals) -> int:
        """Send a signal, wait for the end; the exit code."""
        assert self.life is not None
        life, self.life = self.life, None
        if life.returncode is None:
            life.send_signal(number)
        async with asyncio.timeout(WITHIN_S):
            return await life.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send one and go on."""
        assert self.life is not None
        self.life.send_signal(number)

    def admin(self) -> httpx.AsyncClient:
        """With an admin's key."""
        return client(self.origin, admin_key())
