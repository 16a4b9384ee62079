"""Fixtures of everything that needs a real Kubernetes. Nothing is built or started before a test asks for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cluster.harness.api import Api, api_server
from tests.cluster.harness.needs import why_no_api_server


@pytest.fixture(scope="session")
def apiserver() -> Iterator[Api]:
    """etcd and kube-apiserver on 127.0.0.1, shared by all tests of a run: use a namespace of your own."""
    if why := why_no_api_server():
        pytest.skip(why)
    with api_server() as (api, _):
        yield api
