"""One engine and one forward pass for all; a recorder for each test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.e2e.truth import Parity
from tests.support.recorder import Recorder
from tests.support.vllm import Vllm, engine_python
from tests.support.vllm import vllm as vllm


@pytest.fixture(scope="session")
def parity(vllm: Vllm) -> Iterator[Parity]:
    """Loads torch while a job runs; the first question waits for it."""
    with Parity(engine_python(), vllm.folder) as process:
        yield process


@pytest.fixture
async def recorder(vllm: Vllm) -> AsyncIterator[Recorder]:
    """In front of the real engine."""
    async with Recorder(vllm.url) as made:
        yield made
