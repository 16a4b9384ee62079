"""Runs a program of the model: in a process of its own that may use little, and is dead before the answer counts.

An example's walls, for a model that can write no harm: in a cluster the pod is the sandbox.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

RUNNER = Path(__file__).resolve().with_name("runner.py")
WALL_S = 60.0
"""A process that may use two seconds and is not back by then got no processor: the machine's doing."""
CODE_CHARS_MAX = 400


class SandboxLost(Exception):
    """What runs programs is gone, through no fault of a program."""


class Sandbox:
    """Where the tools of one episode run."""

    def touch(self) -> None:
        """Before each use of a tool. Raises SandboxLost."""

    def outputs(self, code: str, inputs: Sequence[int]) -> list[int | None] | str:
        """x after `code` for each input (None: too large), or why there is none. Raises SandboxLost."""
        if len(code) > CODE_CHARS_MAX:
            return "too long"
        try:
            done = subprocess.run(
                [sys.executable, "-I", "-S", str(RUNNER)],
                input=json.dumps([code, list(inputs)]),
                capture_output=True,
                text=True,
                timeout=WALL_S,
                close_fds=False,  # they are not inherited anyway, and a large trainer starts it quicker so
                check=False,
            )
        except (subprocess.TimeoutExpired, OSError) as error:
            raise SandboxLost(f"{type(error).__name__}") from error
        try:
            found: list[int | None] | str = json.loads(done.stdout)
        except ValueError:  # killed by a limit
            return "killed"
        return found
