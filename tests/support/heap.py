"""The garbage collector leaves alone what pytest collected (a pytest plugin).

Sixteen thousand tests are some million objects, which stay until the end. To go through them takes half a second, and
every test that collects garbage, or makes enough of it, would pay that.
"""

from __future__ import annotations

import gc
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collects nothing meanwhile: all that is made here stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()
