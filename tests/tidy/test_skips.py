"""Where everything is installed, what a test skips is a failure: tests/support/skips.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = """
import pytest

def test_that_runs():
    pass

def test_that_skips():
    pytest.skip(REASON)

@pytest.fixture
def lacking():
    pytest.skip(REASON)

def test_whose_fixture_skips(lacking):
    pass

@pytest.mark.skipif(True, reason=REASON)
def test_with_a_mark():
    pass

@pytest.mark.xfail(reason="known", strict=True)
def test_that_is_known_to_fail():
    assert False
"""
MODULE = "pytest.importorskip('no_such_package', reason=REASON)\n"


def outcome(folder: Path, reason: str, **env: str) -> str:
    """pytest's last line."""
    folder.joinpath("test_one.py").write_text(f"REASON = {reason!r}{TESTS}")
    folder.joinpath("test_two.py").write_text(f"import pytest\nREASON = {reason!r}\n{MODULE}")
    plain = [
        "-c",
        os.devnull,
        "--rootdir",
        str(folder),
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.support.skips",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plain, "--continue-on-collection-errors", str(folder)],
        cwd=ROOT,
        env=os.environ | {"PYTEST_ADDOPTS": ""} | env,  # of whoever runs this test
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.splitlines()[-1].rpartition(" in ")[0]


def test_what_is_not_installed_is_an_error_where_everything_is(tmp_path: Path) -> None:
    found = outcome(tmp_path, "no initdb: Postgres is not installed", SANDGATE_TEST_ALL="1")
    assert found == "1 failed, 1 passed, 1 xfailed, 3 errors"


@pytest.mark.parametrize("reason", ["a real cluster needs root", "a real cluster runs on Linux only"])
def test_what_no_package_brings_is_skipped_there_too(tmp_path: Path, reason: str) -> None:
    assert outcome(tmp_path, reason, SANDGATE_TEST_ALL="1") == "1 passed, 4 skipped, 1 xfailed"


def test_elsewhere_a_skip_is_a_skip(tmp_path: Path) -> None:
    found = outcome(tmp_path, "no initdb: Postgres is not installed", SANDGATE_TEST_ALL="")
    assert found == "1 passed, 4 skipped, 1 xfailed"
