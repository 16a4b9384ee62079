"""For the tests in TRL's environment: a real gateway, a model of 20k parameters."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from types import ModuleType

import pytest

# Some package of the environment may install a regular package called `tests`, which would hide this folder.
sys.modules["tests"] = ModuleType("tests")
sys.modules["tests"].__path__ = [str(Path(__file__).parents[2])]


@pytest.fixture(scope="session")
def running() -> Iterator[object]:
    """A gateway before an engine that says what it is asked to; its loop is not the trainer's."""
    from sandgate.gateway.engine.scripted.script import Reply
    from sandgate.trainer import tinymodel
    from sandgate.trainer.testing import gateway
    from sandgate.trainer.trl.background import Background

    def script(ids: object, number: int) -> object:
        return Reply([*tinymodel.encode(f"ok {number % 7}"), tinymodel.END])

    with Background("world") as world:
        stack = AsyncExitStack()
        yield world.call(stack.enter_async_context(gateway(script)))  # type: ignore[arg-type]
        world.call(stack.aclose())
