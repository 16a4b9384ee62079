"""For the checks that run in a trainer's environment."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]
for name in ("tests", "scripts"):
    # Some package of verl's environment installs regular packages of these names, which would hide our folders.
    if name not in sys.modules or sys.modules[name].__file__ is not None:
        sys.modules[name] = ModuleType(name)
        sys.modules[name].__path__ = [str(ROOT / name)]


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[str]:
    """A local Ray of two CPUs without a dashboard; its address. Workers find our rooms by PYTHONPATH."""
    import ray.data  # type: ignore[import-not-found]

    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    started = ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    ray.data.DataContext.get_current().enable_progress_bars = False
    yield str(started.address_info["gcs_address"])
    ray.shutdown()
