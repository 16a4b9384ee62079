"""What Prometheus and Grafana get, when asked for."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from sandgate.contract.labels import ENGINE, GATEWAY, ROLE
from sandgate.gateway.metrics import GatewayMetrics
from sandgate.operator.replica.metrics import OperatorMetrics
from tests.chart.rendering import at, render
from tests.operator.manifest_jobs import MANAGED, job, objects
from tests.operator.sandbox_pods import agent, verifier


def test_nothing_that_needs_other_operators_by_default() -> None:
    kinds = {kind for kind, _, _ in render().refs}
    assert not kinds & {"ServiceMonitor", "PodMonitor"}
    assert not [name for _, _, name in render().refs if name.endswith("-dashboard")]


def test_the_monitor_finds_the_service_and_its_port() -> None:
    asked = {
        "metrics": {"serviceMonitor": {"enabled": True, "interval": "1m30s", "labels": {"release": "p"}}}
    }
    rendered = render(asked)
    monitor, service = rendered.one("ServiceMonitor"), rendered.one("Service")
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    (endpoint,) = monitor["spec"]["endpoints"]
    (port,) = service["spec"]["ports"]
    assert endpoint == {"port": port["name"], "path": "/metrics", "interval": "1m30s"}
    assert monitor["metadata"]["labels"]["release"] == "p"


def pod_monitor(**more: Any) -> Mapping[str, Any]:
    asked = {"enabled": True, "interval": "15s", "labels": {"release": "p"}}
    return render({"metrics": {"podMonitor": asked}, **more}).one("PodMonitor")


def selected(monitor: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    selector = monitor["spec"]["selector"]
    (role,) = selector["matchExpressions"]
    assert role["operator"] == "In"
    return selector["matchLabels"].items() <= labels.items() and labels[role["key"]] in role["values"]


def test_the_pod_monitor_finds_gateways_and_engines_of_jobs_by_their_port_and_no_sandbox() -> None:
    monitor = pod_monitor()
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert endpoint == {"port": "http", "path": "/metrics", "interval": "15s"}
    assert monitor["metadata"]["labels"]["release"] == "p"
    templates = [
        one["spec"]["template"] for one in objects(job(MANAGED)) if "template" in one.get("spec", {})
    ]
    assert [one["metadata"]["labels"][ROLE] for one in templates] == [GATEWAY, ENGINE]
    for template in templates:
        assert selected(monitor, template["metadata"]["labels"])
        assert endpoint["port"] in {port["name"] for port in template["spec"]["containers"][0]["ports"]}
        assert set(monitor["spec"]["podTargetLabels"]) <= template["metadata"]["labels"].keys()
    for pod in (agent(), verifier()):
        assert not selected(monitor, pod["metadata"]["labels"])


def test_the_pod_monitor_looks_where_jobs_may_be() -> None:
    assert pod_monitor()["spec"]["namespaceSelector"] == {"any": True}
    some = pod_monitor(scope="namespace", watchNamespaces=["a", "b"])
    assert some["spec"]["namespaceSelector"] == {"matchNames": ["a", "b"]}


def test_the_service_reaches_each_replica_at_the_port_that_probes_use() -> None:
    service = render().one("Service")["spec"]
    container = at(render().one("Deployment"), "spec.template.spec.containers.0")
    assert service["clusterIP"] == "None"
    assert service["ports"][0]["targetPort"] == container["ports"][0]["name"]
    assert service["ports"][0]["port"] == container["ports"][0]["containerPort"]
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == container["ports"][0]["name"]


DASHBOARD = {"enabled": True, "labels": {"grafana_dashboard": None, "folder": "rl"}}


def test_the_dashboard_is_found_by_the_users_labels() -> None:
    found = render({"metrics": {"dashboard": DASHBOARD}}).one("ConfigMap", "sandgate-dashboard")
    assert found["metadata"]["labels"]["folder"] == "rl"
    assert "grafana_dashboard" not in found["metadata"]["labels"]
    assert found["metadata"]["labels"]["app.kubernetes.io/part-of"] == "sandgate"


def test_the_dashboards_are_what_grafana_reads_and_show_most_of_what_there_is() -> None:
    found = render({"metrics": {"dashboard": DASHBOARD}}).one("ConfigMap", "sandgate-dashboard")
    boards = {name: json.loads(text) for name, text in found["data"].items()}
    assert {board["uid"] for board in boards.values()} == {"sandgate-operator", "sandgate-jobs"}
    for name, metrics in (("sandgate.json", OperatorMetrics()), ("sandgate-jobs.json", GatewayMetrics())):
        queries = [target["expr"] for panel in boards[name]["panels"] for target in panel["targets"]]
        asked = {metric for query in queries for metric in re.findall(r"sandgate_[a-z_]+", query)}
        assert len(asked) > len(list(metrics.registry.collect())) / 2
