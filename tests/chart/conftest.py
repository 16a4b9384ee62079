"""A real API server for the tests of this folder: as in tests/cluster, which needs no more than importing."""

from __future__ import annotations

from tests.cluster.conftest import apiserver as apiserver
