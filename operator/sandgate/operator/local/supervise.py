"""Keeps a process running: restarts it when it ends, after pauses that grow, and gives up in the end."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from sandgate.contract.errors import Unavailable
from sandgate.sandbox.process import Guard, ProcessExit, ProcessSpec, SandboxProcess, StartFailed

SETTLED_S = 10.0
"""A process that lived that long, or answered, was well; the next failure is a first one again."""
PAUSE_S, PAUSE_S_MAX = 0.05, 5.0
"""Before a restart, doubled with each failure in a row. Callers wait meanwhile, so the first one is at once."""
FAILURES_MAX = 8
"""In a row; then something is wrong that a restart does not mend."""

PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "USER", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
PASSED_PREFIXES = (
    "XDG_",
    "HF_",
    "CUDA_",
    "NVIDIA_",
    "PYTHON",
    "COVERAGE_",
    "OMP_",
    "VLLM_",
    "TORCH",
    "SSL_CERT_",
)
SECRETS = ("TOKEN", "KEY", "SECRET", "PASSWORD")
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
"""For everything that a run starts: what it needs is on this machine, and a wrong path is told at once, not after
minutes of asking a hub for it. An `env` of the manifest may say otherwise."""


def own_env() -> dict[str, str]:
    """Of our environment, what a gateway or an engine needs; no credentials, and no hub."""
    passed = {
        name: value
        for name, value in os.environ.items()
        if (name in PASSED or name.startswith(PASSED_PREFIXES)) and not any(word in name for word in SECRETS)
    }
    return passed | OFFLINE


class Supervised:
    """A process that is meant to run for as long as the job."""

    def __init__(
        self,
        name: str,
        spec: Callable[[], ProcessSpec],
        guard: Guard,
        *,
        on_restart: Callable[[str, str, int], None],
        ready: Callable[[], Awaitable[None]] | None = None,
        answers: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        """`spec` is asked before each start. `on_restart(name, why, restarts)`. `ready`: awaited after each restart.
        `answers`: "" once it does; one that is killed after that, however soon and often, does not count as failing."""
        self.name, self._spec, self._guard = name, spec, guard
        self._on_restart, self._ready, self._answers = on_restart, ready, answers
        self.restarts = 0
        self.ended_at: float | None = None
        """When it last ended by itself."""
        self.back_at: float | None = None
        """When it answered after that."""
        self.process: SandboxProcess | None = None
        self.task: asyncio.Task[None] | None = None
        """Runs until `stop`; raises Unavailable when the process keeps ending."""

    async def start(self) -> None:
        """The first start; from now on it is started again whenever it ends. Raises Unavailable."""
        await self._start()
        self.task = asyncio.get_running_loop().create_task(self._keep())

    async def _start(self) -> None:
        try:
            self.process = await SandboxProcess.start(self._spec(), self._guard)
        except StartFailed as error:
            raise Unavailable(f"{self.name} cannot be started: {error}") from error

    async def _keep(self) -> None:
        failures = 0
        while True:
            assert self.process is not None
            ended, answered = await self._life(self.process)
            well = answered or ended.at - self.process.started_at > SETTLED_S
            failures = 1 if well else failures + 1
            if failures >= FAILURES_MAX:
                raise Unavailable(f"{self.name} ended {failures} times in a row: {says(ended)}")
            self.restarts += 1
            self.ended_at, self.back_at = ended.at, None
            self._on_restart(self.name, says(ended), self.restarts)
            await asyncio.sleep(min(PAUSE_S * (1 << failures), PAUSE_S_MAX) if failures > 1 else 0.0)
            await self._start()
            if self._ready is not None:
                await self._ready()

    async def _life(self, process: SandboxProcess) -> tuple[ProcessExit, bool]:
        """(how it ended, did it ever answer)."""
        if self._answers is None:
            return await process.wait(), False
        answering = asyncio.ensure_future(self._first_answer(self._answers))
        try:
            ended = await process.wait()
            return ended, answering.done() and answering.exception() is None
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)

    async def _first_answer(self, answers: Callable[[], Awaitable[str]]) -> None:
        await self.first_ready(answers, math.inf)
        self.back_at = time.time()

    def stepped(self, by: float) -> None:
        """The clock jumped: what it did was as long ago as before."""
        self.ended_at = None if self.ended_at is None else self.ended_at + by
        self.back_at = None if self.back_at is None else self.back_at + by

    async def stop(self, grace_s: float) -> None:
        """SIGTERM, then SIGKILL; it is not started again."""
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        if self.process is not None:
            await self.process.stop(grace_s)

    async def first_ready(self, check: Callable[[], Awaitable[str]], within_s: float) -> None:
        """Wait until `check` says "" (ready). Raises Unavailable with its last word, or at once if the process ends."""
        assert self.process is not None
        end = time.monotonic() + within_s
        ended = asyncio.ensure_future(self.process.wait())
        try:
            while why := await check():
                if ended.done():
                    raise Unavailable(f"{self.name} ended while it started: {says(ended.result())}")
                if time.monotonic() > end:
                    raise Unavailable(f"{self.name} is not ready after {within_s:g} s: {why}")
                await asyncio.wait([ended], timeout=0.05)
        finally:
            ended.cancel()


def says(ended: ProcessExit) -> str:
    """How a process ended, in a line."""
    how = (
        "killed for memory"
        if ended.oom
        else f"signal {ended.signal}"
        if ended.signal
        else f"exit code {ended.code}"
    )
    last = ended.tail.splitlines()[-1] if ended.tail else ""
    return f"{how}: {last}" if last else how


def log_path(folder: Path, name: str) -> Path:
    """Its output."""
    return folder / f"{name}.log"
