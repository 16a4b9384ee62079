"""Agents outside the cluster: each gateway has a path of its own under one address, and nothing else is routed."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from sandgate.contract.labels import GATEWAY, ROLE
from sandgate.contract.session_urls import SessionUrls
from sandgate.operator.cluster.object_store import session_seen
from sandgate.operator.manifests import agents_origin, gateway_in, gateway_objects, sandbox_policy
from sandgate.operator.manifests.base import gateway_origin
from tests.contract.manifests import put
from tests.operator.cluster_rig import NAMESPACE, World, hurry, manifest, world
from tests.operator.manifest_jobs import ENDPOINTS, MANAGED, SECRET, SETTINGS, job
from tests.operator.test_remote import completes, environment, opened, remote, says, so, turn
from tests.support.environments import ROOT

Json = Any
EDGE = {"name": "edge", "namespace": "infra", "sectionName": "https"}
PROXIES = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "infra"}}}
OUTSIDE = replace(
    SETTINGS, external_url="https://rollouts.example.com", external_parents=(EDGE,), external_peers=(PROXIES,)
)


def objects(settings: Any, manifest_: Any = MANAGED) -> dict[tuple[str, str], Json]:
    made = gateway_objects(job(manifest_), settings, engine_urls=(), secret_hex=SECRET)
    return {(one["kind"], one["metadata"]["name"]): one for one in made}


# base URL -> the gateway that it leads to
ADDRESSES: Mapping[str, tuple[str, str]] = {
    "inside": (
        "http://shop-gateway-0.shop-gateway.lab.svc.cluster.local:8000/sessions/a/v1",
        "shop-gateway-0",
    ),
    "inside, a session called sessions": (
        "http://shop-gateway-0.x:8000/sessions/sessions/v1",
        "shop-gateway-0",
    ),
    "outside": ("https://r.example/lab/shop-gateway-12/sessions/a/v1", "shop-gateway-12"),
    "outside, below a path": ("https://r.example/rl/one/lab/shop-gateway-1/sessions/a/v1", "shop-gateway-1"),
    "outside, of a namespace called sessions": (
        "https://r.example/sessions/shop-gateway-1/sessions/a/v1",
        "shop-gateway-1",
    ),
    "outside, an address and a port": ("http://127.0.0.1:8443/lab/g-gateway-0/sessions/a/v1", "g-gateway-0"),
    "no address": ("", ""),
    "a broken one": ("http://[::1/sessions/a/v1", ""),
}


@pytest.mark.parametrize(("url", "gateway"), ADDRESSES.values(), ids=ADDRESSES)
def test_an_address_tells_its_gateway(url: str, gateway: str) -> None:
    assert gateway_in(url) == gateway


@pytest.mark.parametrize("url", ["", "https://r.example", "https://r.example:8443/rl", "http://10.0.0.9/x"])
@pytest.mark.parametrize("namespace", ["lab", "sessions", "v1"])
def test_what_an_agent_is_given_tells_its_gateway(url: str, namespace: str) -> None:
    body = copy.deepcopy(ENDPOINTS)
    put(body, "metadata.namespace", namespace)
    origin = agents_origin(job(body), 3, replace(SETTINGS, external_url=url))
    for session in ("a", "sessions", "v1"):
        assert gateway_in(SessionUrls.of(origin, session).base_url) == "shop-gateway-3"


def test_without_an_address_nothing_is_made_and_agents_come_from_inside() -> None:
    alone = replace(SETTINGS, external_parents=(EDGE,), external_peers=(PROXIES,))
    assert objects(alone) == objects(SETTINGS)
    assert agents_origin(job(MANAGED), 1, alone) == gateway_origin("shop", 1, "rl", alone)


def test_each_gateway_has_a_service_and_a_route_of_what_agents_call_alone() -> None:
    found = objects(OUTSIDE)
    assert found.keys() - objects(SETTINGS).keys() == {
        (kind, f"shop-gateway-{index}") for kind in ("Service", "HTTPRoute") for index in range(2)
    }
    service, route = (found[kind, "shop-gateway-1"] for kind in ("Service", "HTTPRoute"))
    assert service["spec"]["selector"]["statefulset.kubernetes.io/pod-name"] == "shop-gateway-1"
    assert "clusterIP" not in service["spec"]
    assert route["spec"] == {
        "parentRefs": [EDGE],
        "hostnames": ["rollouts.example.com"],
        "rules": [
            {
                "matches": [{"path": {"type": "PathPrefix", "value": "/rl/shop-gateway-1/sessions"}}],
                "filters": [
                    {
                        "type": "URLRewrite",
                        "urlRewrite": {
                            "path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/sessions"}
                        },
                    }
                ],
                "backendRefs": [{"name": "shop-gateway-1", "port": 8000}],
                "timeouts": {"request": "0s"},
            }
        ],
    }
    for one in (service, route):
        assert one["metadata"]["ownerReferences"][0]["kind"] == "RolloutJob"


def test_who_routes_it_otherwise_finds_services() -> None:
    found = objects(replace(OUTSIDE, external_parents=()), ENDPOINTS)
    assert found.keys() - objects(SETTINGS, ENDPOINTS).keys() == {("Service", "shop-gateway-0")}


def test_a_host_that_is_an_address_is_no_hostname() -> None:
    for url in ("https://192.0.2.7", "https://[2001:db8::7]:8443/rl"):
        route = objects(replace(OUTSIDE, external_url=url))["HTTPRoute", "shop-gateway-0"]
        assert "hostnames" not in route["spec"]
        (match,) = route["spec"]["rules"][0]["matches"]
        assert match["path"]["value"] == f"{urlsplit(url).path}/rl/shop-gateway-0/sessions"


def test_only_the_proxies_are_let_in_besides() -> None:
    def peers(settings: Any) -> list[Json]:
        (found,) = (
            one["spec"]
            for one in sandbox_policy(job(MANAGED), settings)
            if one["spec"]["podSelector"]["matchLabels"][ROLE] == GATEWAY
        )
        (rule,) = found["ingress"]
        return list(rule["from"])

    assert [one for one in peers(OUTSIDE) if one not in peers(SETTINGS)] == [PROXIES]
    assert peers(replace(OUTSIDE, external_url="")) == peers(SETTINGS)


def test_without_peers_of_its_own_it_has_no_way_through_the_policy() -> None:
    assert sandbox_policy(job(MANAGED), replace(OUTSIDE, external_peers=())) == sandbox_policy(
        job(MANAGED), SETTINGS
    )


class Edge(World):
    """Outside addresses lead here where the HTTPRoutes say, as a proxy of the Gateway API would."""

    def resolve(self, url: str) -> str:
        address = urlsplit(url)
        if address.hostname != "rollouts.example.com":
            return super().resolve(url)
        for (kind, _, _), route in self.kube.objects.items():
            if kind != "HTTPRoute" or address.hostname not in route["spec"]["hostnames"]:
                continue
            (rule,) = route["spec"]["rules"]
            prefix = rule["matches"][0]["path"]["value"]
            if address.path == prefix or address.path.startswith(f"{prefix}/"):
                inside = rule["filters"][0]["urlRewrite"]["path"]["replacePrefixMatch"]
                (backend,) = rule["backendRefs"]
                service = self.kube.objects["Service", NAMESPACE, backend["name"]]
                pod = service["spec"]["selector"]["statefulset.kubernetes.io/pod-name"]
                return str(self.gateways[pod].origin + inside + address.path.removeprefix(prefix))
        raise AssertionError(f"no route for {url}")


def test_the_pages_session_is_one(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "cluster.md").read_text("utf-8")
    (text,) = re.findall(r"kubectl apply -f - <<'END'\n(.*?)\nEND\n", page, re.DOTALL)
    seen = session_seen(json.loads(text))
    assert seen is not None
    assert (seen.name, seen.spec.job_name, seen.spec.task_uid, seen.spec.remote) == (
        "phone-17", "shop", "task-17", True,
    )  # fmt: skip


def sealed(up: World, name: str) -> bool:
    return says(up, name, "Finalized")[0] == "True"


async def test_an_agent_from_outside_is_served_and_found_again_by_the_next_operator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hurry(monkeypatch)
    async with world(tmp_path, gateways=2, kind=Edge) as up:
        up.settings = replace(up.settings, external_url=OUTSIDE.external_url, external_parents=(EDGE,))
        up.operator_up()
        await up.kube.create(
            manifest(reward={"source": "agent"}, tasks={"queue": {}}, gateway={"replicas": 2})
        )
        for name in ("laptop", "desktop"):
            await up.kube.create(remote(name, uid=name))
            await opened(up, name)
        addresses = {environment(up, name)["OPENAI_BASE_URL"] for name in ("laptop", "desktop")}
        assert {urlsplit(one).hostname for one in addresses} == {"rollouts.example.com"}
        assert len({gateway_in(one) for one in addresses}) == 2, "each of them has one"
        await turn(up, "laptop")
        await up.operator_down()
        up.operator_up()
        await turn(up, "desktop")
        for name in ("laptop", "desktop"):
            await completes(up, name, reward_info={"reward": 0.5})
            await so(partial(sealed, up, name), f"{name} is sealed")
            assert up.sessions()[name]["status"]["baseURL"] == environment(up, name)["OPENAI_BASE_URL"]
            assert up.sessions()[name]["status"]["turns"] == 1
