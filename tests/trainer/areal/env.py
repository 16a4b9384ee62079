"""AReaL's real package, in an environment of its own: scripts/trainer-env.sh areal."""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.environments import python_of

ROOT = Path(__file__).parents[3]
WARM = Path(__file__).parent / "warm.py"
STOP_S = 10.0
PROGRAM_S = 100.0
"""Of one program, less than the tests' limit: one that hangs is told of with the places where it waits."""


@dataclass(frozen=True, slots=True)
class Areal:
    """A process with AReaL's packages in it, which forks for each program."""

    process: subprocess.Popen[str]
    folder: Path
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def run(
        self, *argv: str | Path, path: tuple[Path, ...] = (), seconds: float = PROGRAM_S, **env: str
    ) -> tuple[int, str, str]:
        """Exit code, stdout, stderr. `path`: goes before the environment's own packages. Nothing of ours is on it
        otherwise. Raises AssertionError if the process itself died."""
        out, err = (self.folder / f"{next(self.numbers)}.{kind}" for kind in ("out", "err"))
        order = {
            "argv": [str(word) for word in argv],
            "path": [str(one) for one in path],
            "seconds": seconds,
            "env": environment(**env),
            "out": str(out),
            "err": str(err),
        }
        assert self.process.stdin is not None
        self.process.stdin.write(f"{json.dumps(order)}\n")
        self.process.stdin.flush()
        return int(self._said("ENDED")), out.read_text(), err.read_text()

    async def arun(
        self, *argv: str | Path, path: tuple[Path, ...] = (), seconds: float = PROGRAM_S, **env: str
    ) -> tuple[int, str, str]:
        """The same, while this loop goes on."""
        return await asyncio.to_thread(functools.partial(self.run, *argv, path=path, seconds=seconds, **env))

    def _said(self, word: str) -> str:
        """What comes after this word on its line; AReaL logs on others."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(word):
                return line.removeprefix(word).strip()
        raise AssertionError(f"AReaL's process ended: {(self.folder / 'log').read_text()[-3000:]}")


@contextmanager
def running(folder: Path) -> Iterator[Areal]:
    """Built, started and imported."""
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [python(), "-P", WARM],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment(),
            start_new_session=True,  # so that a program that hangs is found, too
        )  # fmt: skip
        with process:
            made = Areal(process, folder)
            try:
                made._said("READY")
                yield made
                assert process.stdin is not None
                process.stdin.close()
                process.wait(STOP_S)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def python() -> Path:
    """Its interpreter."""
    return python_of("trainer-env.sh", "areal")


def environment(**more: str) -> dict[str, str]:
    """Of a process in it: nothing of ours on its path, no hub, no trainer's metrics."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return {**kept, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **more}
