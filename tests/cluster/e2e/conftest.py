"""Sandgate installed once for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.e2e.world import World, installed
from tests.cluster.harness.cluster import Cluster


@pytest.fixture(scope="session")
def world(cluster: Cluster) -> Iterator[World]:
    """From the chart, two replicas, images of this clone."""
    with installed(cluster) as found:
        yield found
