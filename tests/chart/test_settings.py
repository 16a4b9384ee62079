"""The operator's settings file: what the operator reads is what the values say, every key of it."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from sandgate.operator.settings import Settings
from tests.chart.rendering import CHART, NAMESPACE, RELEASE, Rendered, render

SELECTOR = {"app.kubernetes.io/name": "sandgate-operator", "app.kubernetes.io/instance": RELEASE}
SHA = f"sha256:{'a' * 64}"


def text_of(rendered: Rendered, name: str = "sandgate-operator") -> str:
    text: str = rendered.one("ConfigMap", name)["data"]["settings.json"]
    return text


KEYS = {one.name for one in dataclasses.fields(Settings)} - {"listen_host"}
"""Of the file; what to listen on the operator is told by its pod."""


def test_defaults_are_the_operators_own() -> None:
    """Two places say them; they must not differ but where a release knows better."""
    expected = dataclasses.replace(
        Settings(),
        gateway_image="sandgate-gateway:0.1.0",
        fetcher_image="sandgate-fetcher:0.1.0",
        operator_namespace=NAMESPACE,
        operator_labels=SELECTOR,
    )
    assert Settings.of(text_of(render())) == expected


def test_the_pages_way_from_outside_is_what_the_operator_reads() -> None:
    page = (CHART.parents[1] / "docs" / "cluster.md").read_text("utf-8")
    (text,) = re.findall(r"```yaml\n(jobs:\n  gateway:\n    external:.*?)```", page, re.DOTALL)
    found = Settings.of(text_of(render(yaml.safe_load(text))))
    assert found.external_url == "https://rollouts.example.com"
    assert found.external_parents == ({"name": "edge", "namespace": "infra", "sectionName": "https"},)
    assert len(found.external_peers) == 1


def test_every_key_is_written() -> None:
    assert json.loads(text_of(render())).keys() == KEYS


def test_the_operators_pod_tells_it_its_address() -> None:
    """Whose family is that of jobs' pods (`Settings.like_pod`)."""
    (operator,) = render().one("Deployment")["spec"]["template"]["spec"]["containers"]
    told = {one["name"]: one["valueFrom"]["fieldRef"]["fieldPath"] for one in operator["env"]}
    assert told["POD_IP"] == "status.podIP"


RESOURCES = {"requests": {"cpu": 2, "memory": "2Gi"}, "limits": {"memory": "8Gi", "cpu": "1.5"}}
STORED = {
    "requests": {"cpu": 2, "memory": "2Gi", "ephemeral-storage": "1Gi"},
    "limits": {"memory": "8Gi", "ephemeral-storage": "2Gi"},
}

SCRAPER = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}

# values -> key of the settings, what it must hold
CARRIED: Mapping[str, tuple[Mapping[str, Any], str, Any]] = {
    "gateway image": ({"images": {"gateway": {"repository": "a/g", "tag": "1"}}}, "gateway_image", "a/g:1"),
    "fetcher image by digest, behind the registry": (
        {"images": {"registry": "r.example/t/", "fetcher": {"repository": "f", "digest": SHA, "tag": "1"}}},
        "fetcher_image",
        f"r.example/t/f@{SHA}",
    ),
    "engine image, not behind the registry": (
        {"images": {"registry": "r.example", "engine": {"tag": "v0.30.1"}}},
        "engine_image",
        "vllm/vllm-openai:v0.30.1",
    ),
    "what operators log": ({"operator": {"logLevel": "debug"}}, "log_level", "debug"),
    "how operators log": ({"operator": {"logFormat": "text"}}, "log_format", "text"),
    "what gateways log": ({"jobs": {"gateway": {"logLevel": "warning"}}}, "gateway_log_level", "warning"),
    "pull policy": ({"images": {"pullPolicy": "Never"}}, "pull_policy", "Never"),
    "pull secrets": ({"images": {"pullSecrets": ["a", "b"]}}, "pull_secrets", ("a", "b")),
    "watched namespaces": (
        {"scope": "namespace", "watchNamespaces": ["x", "y"]},
        "namespaces",
        ("x", "y"),
    ),
    "its own namespace when none is named": ({"scope": "namespace"}, "namespaces", (NAMESPACE,)),
    "queues of Kueue": ({"kueue": {"enabled": True}}, "kueue", True),
    "cluster domain": ({"jobs": {"clusterDomain": "c.example"}}, "cluster_domain", "c.example"),
    "models directory": ({"jobs": {"modelsDir": "/m"}}, "models_dir", "/m"),
    "runtime class": ({"jobs": {"runtimeClass": "gvisor"}}, "runtime_class", "gvisor"),
    "labels of DNS, the default taken away": (
        {"jobs": {"dns": {"labels": {"k8s-app": None, "app": "coredns"}}}},
        "dns_labels",
        {"app": "coredns"},
    ),
    "namespace of DNS": ({"jobs": {"dns": {"namespace": "dns"}}}, "dns_namespace", "dns"),
    "further addresses of DNS": (
        {"jobs": {"dns": {"cidrs": ["169.254.20.10/32"]}}},
        "dns_cidrs",
        ("169.254.20.10/32",),
    ),
    "what agents must not reach": (
        {"jobs": {"sandbox": {"probe": ["[fd00:ec2::254]:80", "metadata.internal:80"]}}},
        "probe",
        ("[fd00:ec2::254]:80", "metadata.internal:80"),
    ),
    "labels of trainers": (
        {"jobs": {"trainer": {"labels": {"sandgate.dev/trainer": None, "t": "1"}}}},
        "trainer_labels",
        {"t": "1"},
    ),
    "namespaces of trainers": (
        {"jobs": {"trainer": {"namespaces": ["t", "*"]}}},
        "trainer_namespaces",
        ("t", "*"),
    ),
    "namespaces of trainers that reach engines": (
        {"jobs": {"engine": {"trainerNamespaces": ["t", "*"]}}},
        "engine_trainer_namespaces",
        ("t", "*"),
    ),
    "who reads metrics of gateways": (
        {"jobs": {"gateway": {"metricsFrom": [SCRAPER]}}},
        "gateway_scrapers",
        (SCRAPER,),
    ),
    "who reads metrics of engines": (
        {"jobs": {"engine": {"metricsFrom": [SCRAPER]}}},
        "engine_scrapers",
        (SCRAPER,),
    ),
    "where remote agents find gateways, without the slash at its end": (
        {"jobs": {"gateway": {"external": {"url": "https://r.example/rl/"}}}},
        "external_url",
        "https://r.example/rl",
    ),
    "whose routes lead there": (
        {"jobs": {"gateway": {"external": {"parentRefs": [{"name": "edge", "namespace": "infra"}]}}}},
        "external_parents",
        ({"name": "edge", "namespace": "infra"},),
    ),
    "whose proxies lead there": (
        {"jobs": {"gateway": {"external": {"from": [SCRAPER]}}}},
        "external_peers",
        (SCRAPER,),
    ),
    "gateway resources": (
        {"jobs": {"gateway": {"resources": RESOURCES}}},
        "gateway_resources",
        RESOURCES,
    ),
    "sandbox resources": (
        {"jobs": {"sandbox": {"resources": STORED}}},
        "sandbox_resources",
        STORED,
    ),
    "the fetcher's resources": (
        {"jobs": {"sandbox": {"fetcher": {"resources": STORED}}}},
        "fetcher_resources",
        STORED,
    ),
    "sandbox resources, a default taken away": (
        {"jobs": {"sandbox": {"resources": {"limits": {"memory": None}}}}},
        "sandbox_resources",
        {
            "requests": {"cpu": "100m", "memory": "128Mi", "ephemeral-storage": "64Mi"},
            "limits": {"ephemeral-storage": "8Gi"},
        },
    ),
    "acknowledged groups are kept for a day": (
        {"jobs": {"gateway": {"retireSeconds": 86400}}},
        "retire_seconds",
        86400,
    ),
    "a trainer's key of an hour": ({"jobs": {"trainer": {"keySeconds": 3600}}}, "trainer_key_seconds", 3600),
    "a trainer's key for ever": ({"jobs": {"trainer": {"keySeconds": 0}}}, "trainer_key_seconds", 0),
    "patience with a lost node": (
        {"jobs": {"sandbox": {"unreachableSeconds": 86400}}},
        "unreachable_seconds",
        86400,
    ),
    "failed pods": ({"jobs": {"sandbox": {"keepFailed": 0}}}, "failed_pods", 0),
    "history, a number that floats would spoil": ({"jobs": {"history": 1000000}}, "history", 1000000),
    "operator labels follow the release": ({}, "operator_labels", SELECTOR),
    "operator namespace follows the release": ({}, "operator_namespace", NAMESPACE),
    "the shard without a label": ({"shards": ["a"]}, "shard", ""),
}


@pytest.mark.parametrize(("values", "key", "expected"), CARRIED.values(), ids=CARRIED)
def test_carried(values: Mapping[str, Any], key: str, expected: Any) -> None:
    assert getattr(Settings.of(text_of(render(values))), key) == expected


def test_the_table_has_every_key() -> None:
    assert {key for _, key, _ in CARRIED.values()} == KEYS


def test_mounted_where_the_operator_looks_and_rolled_when_changed() -> None:
    def pod(**history: int) -> Mapping[str, Any]:
        template: Mapping[str, Any] = render({"jobs": history}).one("Deployment")["spec"]["template"]
        return template

    spec = pod()["spec"]
    assert "--settings=/etc/sandgate/settings.json" in spec["containers"][0]["args"]
    assert {"name": "settings", "mountPath": "/etc/sandgate", "readOnly": True} in spec["containers"][0][
        "volumeMounts"
    ]
    assert {"name": "settings", "configMap": {"name": "sandgate-operator"}} in spec["volumes"]
    assert pod()["metadata"] == pod()["metadata"]
    assert pod()["metadata"] != pod(history=5)["metadata"]
