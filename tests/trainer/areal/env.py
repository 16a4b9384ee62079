"""AReaL's real package, in an environment of its own: scripts/trainer-env.sh areal."""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BUILD_S = 600.0
"""20 s with a warm download cache; 3 GB of download without."""


@functools.cache
def python() -> Path:
    """Its interpreter; the environment is built if there is none. Skips where it cannot be."""
    built = subprocess.run(
        [ROOT / "scripts" / "trainer-env.sh", "areal"],
        capture_output=True, text=True, timeout=BUILD_S, check=False,
    )  # fmt: skip
    if built.returncode:
        pytest.skip(f"AReaL's environment cannot be built: {built.stderr.strip()[-500:]}")
    return Path(built.stdout.splitlines()[-1]) / "bin" / "python"


def environment(**more: str) -> dict[str, str]:
    """Of a process in it: nothing of ours on its path, no hub, no trainer's metrics."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return {**kept, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **more}
