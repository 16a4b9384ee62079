"""Real clusters for the tests of this folder: the fixtures of tests/cluster, with their rules of time and peace."""

from __future__ import annotations

from tests.cluster.conftest import _whole_machines as _whole_machines
from tests.cluster.conftest import apiserver as apiserver
from tests.cluster.conftest import cluster as cluster
from tests.cluster.conftest import pytest_collection_modifyitems as pytest_collection_modifyitems
from tests.cluster.conftest import pytest_configure as pytest_configure
