"""Ray for the tests in the trainer environment: one small cluster for all of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

for name in ("tests", "scripts"):
    # Some package of the environment installs regular packages of these names, which would hide our folders.
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = [str(Path(__file__).parents[3] / name)]

CPUS = 8
"""Logical: TransferQueue wants three and waits for ever without, whatever the machine has."""


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """A local Ray without a dashboard. Its workers find our rooms by PYTHONPATH."""
    import ray  # type: ignore[import-not-found]

    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    ray.init(num_cpus=CPUS, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    yield
    ray.shutdown()


@pytest.fixture(scope="session")
def queue_running(ray_cluster: None) -> Iterator[None]:
    """One TransferQueue with one storage unit."""
    import transfer_queue as tq  # type: ignore[import-not-found]
    from omegaconf import OmegaConf  # type: ignore[import-not-found]

    tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
    yield
    tq.close()


@pytest.fixture
def queue(queue_running: None) -> Iterator[None]:
    """It, emptied after each test."""
    import transfer_queue as tq

    yield
    for partition, keys in (tq.kv_list() or {}).items():
        if keys:
            tq.kv_clear(keys=list(keys), partition_id=partition)
