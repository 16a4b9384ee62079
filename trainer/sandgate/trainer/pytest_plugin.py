"""`pytest_plugins = ["sandgate.trainer.pytest_plugin"]`: the fixture `sandgate_gateway`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from sandgate.trainer.testing import RunningGateway, gateway


@pytest.fixture
def sandgate_gateway() -> Callable[..., AbstractAsyncContextManager[RunningGateway]]:
    """`async with sandgate_gateway(["hello"]) as running: ...`; see `sandgate.trainer.testing.gateway`."""
    return gateway
