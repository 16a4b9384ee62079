"""A program in another environment (a trainer's own) as one test of this run: it ends in time, with all it started."""

from __future__ import annotations

import os
import re
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
MODULES = re.compile(r"^\s*Extension modules: .*$", re.MULTILINE)
"""What faulthandler adds to the stacks: thousands of characters that push the stacks out of a log's tail."""
TEST = re.compile(r"^\S+\.py::.*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Said:
    """How a program ended."""

    code: int
    """Negative: the signal that ended it."""
    text: str
    """What it printed, stdout and stderr; a Python with faulthandler (pytest's has it) that hung wrote every stack."""
    late: bool = False
    """It was not done within its time and ended by us, by SIGABRT; a C++ library's own failure looks like that too."""

    @property
    def why(self) -> str:
        """For a log: the end of what it said, how it ended, and the last test that a `pytest -v` named."""
        tests = TEST.findall(self.text)
        how = "was not done within its time" if self.late else f"ended with {self.code}"
        last = f"; the last test it named: {tests[-1]}" if tests else ""
        return f"{MODULES.sub('', self.text)[-20_000:]}\nit {how}{last}"


def run(words: Sequence[str | Path], *, env: Mapping[str, str], within_s: float) -> Said:
    """Runs it in this clone's folder. What it printed goes through a file, as a daemon that it leaves behind (Ray's)
    would hold a pipe open for ever, and its process group ends with it."""
    with tempfile.TemporaryFile() as file:
        process = subprocess.Popen(
            words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=dict(env), cwd=ROOT,
            start_new_session=True,
        )  # fmt: skip
        late = False
        try:
            process.wait(within_s)
        except subprocess.TimeoutExpired:
            late = True
            process.send_signal(signal.SIGABRT)
            with suppress(subprocess.TimeoutExpired):
                process.wait(STACKS_S)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        file.seek(0)
        return Said(process.returncode, file.read().decode("utf-8", "replace"), late)
