"""A real vLLM for one test of this room; AReaL's packages, imported once for all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.vllm import vllm as vllm
from tests.trainer.areal.env import Areal, running


@pytest.fixture(scope="session")
def areal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Areal]:
    with running(tmp_path_factory.mktemp("areal")) as found:
        yield found
