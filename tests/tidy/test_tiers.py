"""Which tests a run has, and what becomes of those whose needs cannot be met: tests/support/tiers.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.needs import FIXTURES, NEEDS, PATHS, in_order, needs_of
from tests.support.workers import ENGINE, GROUPS, KUBERNETES, LONG, TRAINERS, group, turn

ROOT = Path(__file__).parents[2]
CONFTEST = """
from tests.support import needs, tiers
from tests.support.tiers import *

needs.NEEDS.clear()
needs.NEEDS.update({NEEDS})
needs.FIXTURES.clear()
needs.FIXTURES.update(thing=("thing",), heavy=("heavy",))
needs.PATHS.clear()
tiers.ROOT = needs.ROOT

import pytest

@pytest.fixture
def thing(): ...

@pytest.fixture
def heavy(): ...
"""
TESTS = """
import pytest

def test_that_needs_it(thing): ...
def test_that_needs_it_too(thing): ...
def test_of_the_heavy_kind(heavy): ...
def test_that_needs_nothing(): ...
"""


def test_what_is_named_exists() -> None:
    named = {name for names in (*FIXTURES.values(), *PATHS.values()) for name in names}
    assert named == set(NEEDS)
    assert [path for path in PATHS if not (ROOT / path).exists()] == []


def test_things_are_made_in_the_order_of_the_table() -> None:
    assert in_order(["helm", "engine", "helm"]) == ["engine", "helm"]


DEAR: dict[str, set[str]] = {
    "cluster": {KUBERNETES},
    "images": {KUBERNETES},
    "engine": {ENGINE, KUBERNETES, TRAINERS},
    "areal": {TRAINERS},
    "verl": {TRAINERS},
    "trl": {ENGINE, TRAINERS},
}
"""What must not be started, or unpacked, once for each worker."""


def test_tests_that_share_what_is_dear_run_on_one_worker(request: pytest.FixtureRequest) -> None:
    """Of this run: it says most where all tests run."""
    wrong = {
        item.location[0]: need
        for item in request.session.items
        for need in needs_of(item)
        if need in DEAR and group(item.nodeid) not in DEAR[need]
    }
    assert wrong == {}, "put them into GROUPS of tests/support/workers.py"


def test_groups_name_what_exists() -> None:
    named = [*LONG, *(path for paths in GROUPS.values() for path in paths)]
    assert [path for path in named if not (ROOT / path).exists()] == []


GROUPED: dict[str, tuple[str, str]] = {
    "a folder's tests are of its group": ("tests/cluster/e2e/test_shop.py::test_it[a::b]", KUBERNETES),
    "a file's tests are of its group": ("tests/trainer/test_doctor.py::test_it", ENGINE),
    "all else goes by file": ("tests/contract/test_x.py::test_it[a::b]", "tests/contract/test_x.py"),
}


@pytest.mark.parametrize(("nodeid", "name"), GROUPED.values(), ids=GROUPED)
def test_workers_take(nodeid: str, name: str) -> None:
    assert group(nodeid) == name


def test_what_takes_longest_is_handed_out_first() -> None:
    paths = [
        "tests/a.py",
        "tests/simulation/a.py",
        "tests/trainer/verl/a.py",
        "tests/e2e/a.py",
        "tests/images/a.py",
    ]
    assert sorted(paths, key=turn) == list(reversed(paths))


def run(folder: Path, needs: str, *args: str, tests: str = TESTS) -> tuple[str, str]:
    """All that pytest said, and its last line without the time."""
    folder.joinpath("conftest.py").write_text(CONFTEST.replace("{NEEDS}", needs))
    folder.joinpath("test_one.py").write_text(tests)
    folder.joinpath("pytest.ini").write_text("[pytest]\ntestpaths = .\nmarkers = endurance\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", str(folder / "pytest.ini"), "-p", "no:cacheprovider", *args],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "150"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout, done.stderr
    return done.stdout, done.stdout.splitlines()[-1].strip("= ").rpartition(" in ")[0]


READY = '"thing": needs.Need("a thing", lambda: True, list, everyday=True)'
HEAVY = '"heavy": needs.Need("a cluster", lambda: True, list)'
LACKS = '"thing": needs.Need("a thing", lambda: False, list, lambda: "a thing needs root", everyday=True)'

CHOICES: dict[str, tuple[tuple[str, ...], str]] = {
    "everyday leaves out what is heavy": ((), "3 passed, 1 deselected"),
    "all leaves out nothing": (("--tier", "all"), "4 passed"),
    "who names a path gets all of it": (("test_one.py",), "4 passed"),
    "who names a path may ask for less": (("--tier", "everyday", "test_one.py"), "3 passed, 1 deselected"),
    "beside hogs the same tests run": (("--hog", "1"), "3 passed, 1 deselected"),
}


@pytest.mark.parametrize(("args", "last"), CHOICES.values(), ids=CHOICES)
def test_a_run_has(tmp_path: Path, args: tuple[str, ...], last: str) -> None:
    said, found = run(tmp_path, f"{{{READY}, {HEAVY}}}", *args)
    assert found == last
    assert ("left out: " in said) is ("deselected" in last)


ENDURANCE = TESTS + "\n@pytest.mark.endurance\ndef test_once_more(): ...\n"


REPEATED: dict[str, tuple[tuple[str, ...], str]] = {
    "not by itself": ((), "4 passed, 1 deselected"),
    "where its path is named": (("test_one.py",), "5 passed"),
    "where its mark is asked for": (("-m", "endurance"), "1 passed, 4 deselected"),
}


@pytest.mark.parametrize(("args", "last"), REPEATED.values(), ids=REPEATED)
def test_what_ci_has_no_time_for_runs(tmp_path: Path, args: tuple[str, ...], last: str) -> None:
    found = run(tmp_path, f"{{{READY}, {HEAVY}}}", "--tier", "all", *args, tests=ENDURANCE)[1]
    assert found == last


def test_what_a_machine_lacks_is_said_up_front(tmp_path: Path) -> None:
    said, _ = run(tmp_path, f"{{{LACKS}, {HEAVY}}}", "--tier", "all")
    head, _, _ = said.partition("collected")
    assert "cannot run here: what needs thing: a thing needs root" in head


VANISHES = """
import pytest
from tests.support.needs import NEEDS, Need

def test_one(thing):
    NEEDS["thing"] = Need("a thing", lambda: False, list, everyday=True)

def test_two(thing): ...
"""


def test_what_was_there_when_the_run_began_and_vanishes_is_not_waited_for(tmp_path: Path) -> None:
    """Nobody makes it: the next test would wait for an hour."""
    assert run(tmp_path, f"{{{READY}, {HEAVY}}}", tests=VANISHES)[1] == "2 passed"


@pytest.mark.parametrize(
    ("workers", "verdict"), [("0", "1 passed, 1 deselected, 2 errors"), ("2", "1 passed, 2 errors")]
)
def test_a_build_that_fails_is_said_once_and_fails_the_tests_that_need_it(
    tmp_path: Path, workers: str, verdict: str
) -> None:
    """The builder is a process of its own: here one that fails as a compiler does. Workers share one."""
    builder = tmp_path / "tests" / "support" / "prepare.py"
    builder.parent.mkdir(parents=True)
    said_by_it = json.dumps(
        {"name": "thing", "state": "failed", "words": "thing could not be made: no compiler"}
    )
    builder.write_text(
        f"import sys\nopen(sys.argv[2], 'a').write({said_by_it!r} + chr(10))\nprint('the last words')\n"
    )
    needs = '"thing": needs.Need("a thing", lambda: False, list, everyday=True)'
    text = CONFTEST.replace("tiers.ROOT = needs.ROOT", f"tiers.ROOT = {str(tmp_path)!r}")
    folder = tmp_path / "own"
    folder.mkdir()
    folder.joinpath("conftest.py").write_text(text.replace("{NEEDS}", f"{{{needs}, {HEAVY}}}"))
    folder.joinpath("test_one.py").write_text(TESTS)
    folder.joinpath("pytest.ini").write_text("[pytest]\ntestpaths = .\naddopts = --import-mode=importlib\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-n", workers],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "COLUMNS": "150"},
        capture_output=True,
        text=True,
        check=False,
    )
    last = done.stdout.splitlines()[-1].strip("= ").rpartition(" in ")[0]
    assert last == verdict, done.stdout + done.stderr
    assert done.stdout.count("thing: failed: thing could not be made: no compiler") == 1
    assert "the last words" in done.stdout
