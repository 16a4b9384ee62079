"""The real verl, TransferQueue and Ray, in an environment of their own, whose Python runs tests/trainer/verl.

All files in one process: importing verl and starting Ray are most of the time."""

from __future__ import annotations

import os
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.support import elsewhere
from tests.support.environments import python_of

ROOT = Path(__file__).parents[2]
HERE = ROOT / "tests" / "trainer" / "verl"
ROOMS = ("contract", "gateway", "operator", "sandbox", "trainer")
RUN_S = 1_300.0
"""Four minutes; seven beside three others at work on two cores. Each of its tests has a limit of its own, and the run
ends after a few that met theirs: it says which, where a limit of the whole would only say that it was met."""
FAILURES = 2
"""So many tests may fail."""


def environment() -> str:
    """The environment's Python."""
    return str(python_of("trainer-env.sh", "verl"))


def environ() -> dict[str, str]:
    """What its programs find: this clone's rooms, and a Ray that asks for nothing."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return kept | {
        "PYTHONPATH": os.pathsep.join([*(str(ROOT / room) for room in ROOMS), str(ROOT), str(HERE)]),
        "RAY_AUTH_MODE": "disabled",  # else Ray writes a token into the home of whoever runs the tests
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "0",  # else 15: beside another worker's tests its actors hardly run
        "HF_HUB_OFFLINE": "1",
        # At 95 % of the machine's memory, whoever holds it, Ray ends workers: TransferQueue's storage, for which the
        # next test waited for ever.
        "RAY_memory_monitor_refresh_ms": "0",
    }


def run(*words: str) -> elsewhere.Said:
    """A program of the environment, with this clone's rooms."""
    return elsewhere.run([environment(), *words], env=environ(), within_s=RUN_S)


@pytest.fixture(scope="module")
def told(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[tuple[str, str]]]:
    """File -> its tests, each with what it said if it failed. Only of the files that this run asks for."""
    wanted = sorted(
        str(item.callspec.params["name"])
        for item in request.session.items
        if isinstance(item, pytest.Function) and item.originalname == "test_in_verls_own_environment"
    )
    report = tmp_path_factory.mktemp("verl") / "report.xml"
    files = [str(HERE / f"{name}.py") for name in wanted]
    options = [
        "-v",
        "--durations=5",
        f"--maxfail={FAILURES}",
        "-c",
        str(HERE / "pytest.ini"),
        f"--junit-xml={report}",
    ]
    said = run("-m", "pytest", *options, *files)
    assert said.code in (0, 1), said.why
    assert report.exists(), said.why  # a test met its limit
    found: dict[str, list[tuple[str, str]]] = {name: [] for name in wanted}
    for case in ET.parse(report).iter("testcase"):
        words = "".join(
            text for kind in ("failure", "error") for one in case.iter(kind) for text in one.itertext()
        )
        name = f"{case.get('classname')}.{case.get('name')}"
        file = next((part for part in name.split(".") if part in found), wanted[0])
        found[file].append((name, words))
    return found


@pytest.mark.slow
@pytest.mark.timeout(RUN_S + 30.0)
@pytest.mark.skipif(sys.platform != "linux", reason="the lock holds wheels for Linux")
@pytest.mark.parametrize("name", sorted(path.stem for path in HERE.glob("check_*.py")))
def test_in_verls_own_environment(name: str, told: dict[str, list[tuple[str, str]]]) -> None:
    assert told[name], "it ran no test: others failed before its turn"
    failed = [f"{test}\n{words}" for test, words in told[name] if words]
    assert not failed, "\n\n".join(failed)[-20_000:]
