"""A client session that is left open fails the file that made it: tests/support/unclosed.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEAVES = """
import asyncio, aiohttp, pytest
kept = []

async def session():
    kept.append(aiohttp.ClientSession())

def test_that_leaves_one():
    asyncio.run(session())

def test_after_it():
    pass
"""
CLOSES = """
import asyncio, aiohttp

async def closed():
    async with aiohttp.ClientSession():
        pass

def test_that_closes_it():
    asyncio.run(closed())
"""


def test_the_last_test_of_the_file_fails_and_the_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "test_leaves.py").write_text(LEAVES)
    (tmp_path / "test_closes.py").write_text(CLOSES)
    plain = [
        "-c",
        os.devnull,
        "--rootdir",
        str(tmp_path),
        "-p",
        "no:cacheprovider",
        "-p",
        "tests.support.unclosed",
    ]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *plain, str(tmp_path)],
        cwd=ROOT,
        env=os.environ | {"PYTEST_ADDOPTS": ""},  # of whoever runs this test
        capture_output=True,
        text=True,
        check=False,
    )
    assert "AssertionError: client sessions were made and never closed" in done.stdout
    assert "test_leaves.py::test_after_it" in done.stdout
    assert "test_leaves.py:6 <" in done.stdout
    assert done.stdout.rstrip().splitlines()[-1].startswith("3 passed, 1 error"), done.stdout
