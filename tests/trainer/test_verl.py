"""The real verl, TransferQueue and Ray, in an environment of their own, whose Python runs tests/trainer/verl."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HERE = ROOT / "tests" / "trainer" / "verl"
ROOMS = ("contract", "gateway", "operator", "sandbox", "trainer")
BUILD_S = 900.0
"""Two minutes with an ordinary connection; 50 s with a warm cache, then milliseconds."""
RUN_S = 600.0
"""A minute or two; importing verl and starting Ray are most of it."""


def environment() -> str:
    """The environment's Python; built if it is not there."""
    script = [str(ROOT / "scripts" / "trainer-env.sh"), "verl"]
    built = subprocess.run(script, capture_output=True, text=True, timeout=BUILD_S, check=False)
    assert built.returncode == 0, built.stderr
    return f"{built.stdout.splitlines()[-1]}/bin/python"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """A program of the environment, with this clone's rooms."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    env = kept | {
        "PYTHONPATH": os.pathsep.join([*(str(ROOT / room) for room in ROOMS), str(ROOT), str(HERE)]),
        "RAY_AUTH_MODE": "disabled",  # else Ray writes a token into the home of whoever runs the tests
        "RAY_USAGE_STATS_ENABLED": "0",
        "HF_HUB_OFFLINE": "1",
    }
    return subprocess.run(
        [environment(), *words], capture_output=True, text=True, timeout=RUN_S, env=env, cwd=ROOT, check=False
    )


@pytest.mark.slow
@pytest.mark.timeout(BUILD_S + RUN_S)
@pytest.mark.skipif(sys.platform != "linux", reason="the lock holds wheels for Linux")
@pytest.mark.parametrize("name", sorted(path.stem for path in HERE.glob("check_*.py")))
def test_in_verls_own_environment(name: str) -> None:
    said = run("-m", "pytest", "-q", "-c", str(HERE / "pytest.ini"), str(HERE / f"{name}.py"))
    assert said.returncode == 0, said.stdout[-10_000:] + said.stderr[-2_000:]
    assert " passed" in said.stdout
