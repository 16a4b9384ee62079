"""Routes against the Gateway API's own definition on a real API server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from typing import Any

import pytest

from sandgate.operator.kubernetes.access import from_kubeconfig
from sandgate.operator.kubernetes.client import KubeClient
from sandgate.operator.manifests import gateway_objects
from tests.cluster.harness.api import Api
from tests.cluster.harness.programs import PARTS
from tests.operator.manifest_jobs import MANAGED, SECRET, job
from tests.operator.test_external import OUTSIDE
from tests.support.waiting import until_now

NAMESPACE = "gateway-api"
SERVED = "/apis/gateway.networking.k8s.io/v1/httproutes"


@pytest.fixture(scope="module")
def api(apiserver: Api) -> Iterator[Api]:
    """With the definition, and nobody who serves it."""
    file = str(PARTS["gateway-api"].ensure() / "httproutes.yaml")
    apiserver.kubectl("apply", "--server-side", "-f", file)
    until_now(lambda: apiserver.rest().answers(SERVED), what="routes are served")
    with apiserver.namespace(NAMESPACE):
        yield apiserver
    apiserver.kubectl("delete", "--ignore-not-found", "-f", file)


@pytest.fixture
async def kube(api: Api) -> AsyncIterator[KubeClient]:
    client = KubeClient(from_kubeconfig([api.kubeconfig]), deadline_s=5.0)
    yield client
    await client.aclose()


# settings: what an administrator may name
SHAPES: dict[str, dict[str, Any]] = {
    "a listener of a Gateway": {},
    "two Gateways, by name alone": {"external_parents": ({"name": "a"}, {"name": "b"})},
    "below a path, at a port": {"external_url": "https://rollouts.example.com:8443/rl/one"},
    "an address": {"external_url": "https://192.0.2.7"},
}


@pytest.mark.parametrize("changes", SHAPES.values(), ids=SHAPES)
async def test_they_are_taken_as_they_are_and_again_without_a_change(
    kube: KubeClient, changes: dict[str, Any]
) -> None:
    shop = job(MANAGED)
    shop = replace(shop, metadata=replace(shop.metadata, namespace=NAMESPACE))
    made = gateway_objects(shop, replace(OUTSIDE, **changes), engine_urls=(), secret_hex=SECRET)
    ours = [one for one in made if one["metadata"]["name"] in ("shop-gateway-0", "shop-gateway-1")]
    assert [one["kind"] for one in ours] == ["Service", "Service", "HTTPRoute", "HTTPRoute"]
    for body in ours:
        first = await kube.apply(body, force=True)
        again = await kube.apply(body, force=True)
        assert first["metadata"]["resourceVersion"] == again["metadata"]["resourceVersion"]
        if body["kind"] == "HTTPRoute":
            (rule,) = again["spec"]["rules"]
            assert rule["matches"] == body["spec"]["rules"][0]["matches"]
            assert again["spec"].get("hostnames") == body["spec"].get("hostnames")
