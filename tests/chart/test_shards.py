"""Shards: one operator each, apart in everything but the code and the rights."""

from __future__ import annotations

import pytest

from sandgate.operator.settings import Settings
from tests.chart.rendering import render
from tests.chart.test_settings import text_of

SHARDS = {"shards": ["eu", "us"]}
NAMES = {"": "sandgate-operator", "eu": "sandgate-operator-eu", "us": "sandgate-operator-us"}


@pytest.mark.parametrize(("shard", "name"), NAMES.items(), ids=lambda text: text or "unlabelled")
def test_each_has_its_own_deployment_settings_and_lease(shard: str, name: str) -> None:
    rendered = render(SHARDS)
    spec = rendered.one("Deployment", name)["spec"]
    assert Settings.of(text_of(rendered, name)).shard == shard
    assert f"--lease={name}" in spec["template"]["spec"]["containers"][0]["args"]
    assert spec["template"]["spec"]["volumes"][0]["configMap"]["name"] == name
    assert "spec" not in rendered.one("Lease", name), "helm and the operator would fight over the holder"


@pytest.mark.parametrize("kind", ["Deployment", "Lease", "PodDisruptionBudget"])
def test_one_for_each_and_no_more(kind: str) -> None:
    assert {one["metadata"]["name"] for one in render(SHARDS).all(kind)} == set(NAMES.values())


def test_no_two_deployments_take_each_others_pods() -> None:
    """Nor spread, nor avoid, nor count them as their own."""
    pods = {
        one["metadata"]["name"]: one["spec"]["template"]["metadata"]["labels"]
        for one in render(SHARDS).all("Deployment")
    }
    rendered = render(SHARDS)
    for name, labels in pods.items():
        spec = rendered.one("Deployment", name)["spec"]
        pod = spec["template"]["spec"]
        term = pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"][0]
        selectors = [
            spec["selector"],
            rendered.one("PodDisruptionBudget", name)["spec"]["selector"],
            term["podAffinityTerm"]["labelSelector"],
            pod["topologySpreadConstraints"][0]["labelSelector"],
        ]
        for selector in selectors:
            chosen = [
                other for other, theirs in pods.items() if selector["matchLabels"].items() <= theirs.items()
            ]
            assert chosen == [name]
        assert labels.items() >= spec["selector"]["matchLabels"].items()


def test_one_service_and_one_policy_cover_all() -> None:
    rendered = render(SHARDS)
    service = rendered.one("Service")["spec"]["selector"]
    policy = rendered.one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"]
    for one in rendered.all("Deployment"):
        labels = one["spec"]["template"]["metadata"]["labels"]
        assert service.items() <= labels.items()
        assert policy.items() <= labels.items()
    test = rendered.one("Pod")["metadata"]["labels"]
    assert not service.items() <= test.items(), "the test pod would answer for the operator"


def test_helm_test_expects_all_replicas_and_a_leader_of_each_shard() -> None:
    assert render(SHARDS).one("Pod")["spec"]["containers"][0]["args"][2:4] == ["6", "3"]
    one = render({"operator": {"replicas": 3}}).one("Pod")
    assert one["spec"]["containers"][0]["args"][2:4] == ["3", "1"]
