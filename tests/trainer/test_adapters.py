"""The real packages of Tinker, SkyRL and OpenRLHF, for verl's interpreter, which runs tests/trainer/adapters."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support import elsewhere
from tests.support.environments import built, python_of

ROOT = Path(__file__).parents[2]
HERE = ROOT / "tests" / "trainer" / "adapters"
ROOMS = ("contract", "gateway", "operator", "sandbox", "trainer")
RUN_S = 600.0
"""Half a minute, most of it imports."""


@pytest.mark.slow
@pytest.mark.timeout(RUN_S + 30.0)
@pytest.mark.skipif(sys.platform != "linux", reason="the lock holds wheels for Linux")
def test_beside_their_packages() -> None:
    packages = built("agent-env.sh", "tests/trainer/adapters")
    assert packages is not None, (
        "scripts/agent-env.sh tests/trainer/adapters was not run: tests/support/needs.py"
    )
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    paths = [*(ROOT / room for room in ROOMS), ROOT, packages / "lib/python3.11/site-packages"]
    env = kept | {
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    words = [
        str(python_of("trainer-env.sh", "verl")),
        "-m",
        "pytest",
        "-v",
        "-c",
        str(HERE / "pytest.ini"),
        str(HERE),
    ]
    said = elsewhere.run(words, env=env, within_s=RUN_S)
    assert said.code == 0, said.why
    assert " passed" in said.text
