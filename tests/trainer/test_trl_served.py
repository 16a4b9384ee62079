"""The real TRL before a real vLLM that serves its adapters: tests/trainer/trl_engine. TRL's environment runs them, and
starts the engine in the engine's."""

from __future__ import annotations

import os
import sys

import pytest

from tests.support import elsewhere
from tests.trainer.test_trl import HERE, ROOT, environ, environment

RUN_S = 900.0
"""Five minutes: the engine is started twice, half a minute each on a free machine."""


@pytest.mark.slow
@pytest.mark.vllm
@pytest.mark.timeout(RUN_S + 30.0)
@pytest.mark.skipif(sys.platform != "linux", reason="the lock holds wheels for Linux")
def test_adapters_are_served_by_the_engine_itself() -> None:
    tests = ROOT / "tests" / "trainer" / "trl_engine"
    words = [environment(), "-m", "pytest", "-v", "-c", str(HERE / "pytest.ini"), str(tests)]
    caches = {
        name: os.environ[name] for name in ("XDG_CACHE_HOME",) if name in os.environ
    }  # the engine's is there
    said = elsewhere.run(words, env=environ(**caches), within_s=RUN_S)
    assert said.code == 0, said.why
    assert " passed" in said.text
