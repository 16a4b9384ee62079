"""Finished and unfinished runs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sandgate.trainer.pytest_plugin import sandgate_gateway as sandgate_gateway
from tests.support.vllm import vllm as vllm
from tests.trainer.runs import FORKED, LINEAR, write_run


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Two sessions, `forked` and `linear`, of job shop; two trajectories."""
    return asyncio.run(write_run(tmp_path / "run", {"forked": FORKED, "linear": LINEAR}))


@pytest.fixture
def clean_run(tmp_path: Path) -> Path:
    """One session without a fork; not finished."""
    return asyncio.run(write_run(tmp_path / "clean", {"linear": LINEAR}, rows=None))
