"""What Prometheus and Grafana get, when asked for."""

from __future__ import annotations

import json
import re

from sandgate.operator.replica.metrics import OperatorMetrics
from tests.chart.rendering import at, render


def test_nothing_that_needs_other_operators_by_default() -> None:
    kinds = {kind for kind, _, _ in render().refs}
    assert "ServiceMonitor" not in kinds
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


def test_the_dashboard_asks_for_metrics_that_the_operator_has() -> None:
    families = list(OperatorMetrics().registry.collect())
    suffixes = {"counter": ["_total"], "histogram": ["_bucket", "_count", "_sum"], "gauge": [""]}
    known = {one.name + suffix for one in families for suffix in suffixes[one.type]}
    found = render({"metrics": {"dashboard": DASHBOARD}}).one("ConfigMap", "sandgate-dashboard")
    board = json.loads(found["data"]["sandgate.json"])
    queries = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked = {name for query in queries for name in re.findall(r"sandgate_\w+", query)}
    assert asked <= known
    assert len(asked) > len(families) / 2
