"""The real TRL, in an environment of its own, whose Python runs tests/trainer/trl."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support import elsewhere
from tests.support.environments import python_of

ROOT = Path(__file__).parents[2]
HERE = ROOT / "tests" / "trainer" / "trl"
ROOMS = ("contract", "gateway", "operator", "sandbox", "trainer")
RUN_S = 900.0
"""Three minutes; importing TRL is 7 s of each run, and of each process of those in several."""


def environment() -> str:
    """The environment's Python."""
    return str(python_of("trainer-env.sh", "trl"))


def environ(**more: str) -> dict[str, str]:
    """With this clone's rooms; nothing of ours is installed there."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    rooms = os.pathsep.join([*(str(ROOT / room) for room in ROOMS), str(ROOT)])
    return kept | {
        "PYTHONPATH": rooms,
        "HF_HUB_OFFLINE": "1",
        "TRL_EXPERIMENTAL_SILENCE": "1",
        "OMP_NUM_THREADS": "1",
        **more,
    }


@pytest.mark.slow
@pytest.mark.timeout(RUN_S + 30.0)
@pytest.mark.skipif(sys.platform != "linux", reason="the lock holds wheels for Linux")
def test_in_trls_own_environment() -> None:
    """All of them in one process: the import of TRL is what they cost most."""
    words = [environment(), "-m", "pytest", "-v", "-c", str(HERE / "pytest.ini"), str(HERE)]
    said = elsewhere.run(words, env=environ(), within_s=RUN_S)
    assert said.code == 0, said.why
    assert " passed" in said.text
