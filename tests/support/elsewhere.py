"""A program in another environment (a trainer's own) as one test of this run: it ends in time, with all it started."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STACKS_S = 5.0
"""For the program to write where it hangs."""


@dataclass(frozen=True, slots=True)
class Said:
    """How a program ended."""

    code: int
    """Negative: the signal that ended it. -6 (SIGABRT): it was not done within its time."""
    text: str
    """What it printed, stdout and stderr; a Python with faulthandler (pytest's has it) that hung wrote every stack."""


def run(words: Sequence[str | Path], *, env: Mapping[str, str], within_s: float) -> Said:
    """Runs it in this clone's folder. What it printed goes through a file, as a daemon that it leaves behind (Ray's)
    would hold a pipe open for ever, and its process group ends with it."""
    with tempfile.TemporaryFile() as file:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=dict(env), cwd=ROOT,
            start_new_session=True,
        )  # fmt: skip
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(STACKS_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        file.seek(0)
        return Said(process.returncode, file.read().decode("utf-8", "replace"))
