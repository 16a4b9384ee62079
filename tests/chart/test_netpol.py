"""The operator's own NetworkPolicy: API server, DNS and gateways out; probes and metrics in."""

from __future__ import annotations

from typing import Any

from sandgate.contract import labels
from sandgate.operator.manifests.policies import DNS_PORTS
from tests.chart.rendering import render


def policy(**values: Any) -> dict[str, Any]:
    spec: dict[str, Any] = render(values).one("NetworkPolicy")["spec"]
    return spec


def ports(rule: dict[str, Any]) -> set[tuple[Any, str]]:
    return {(one["port"], one["protocol"]) for one in rule["ports"]}


def test_both_directions_are_closed_but_for_the_rules() -> None:
    assert policy()["policyTypes"] == ["Ingress", "Egress"]
    assert [ports(rule) for rule in policy()["egress"]] == [
        {(443, "TCP"), (6443, "TCP")},
        {(port, protocol) for port in DNS_PORTS for protocol in ("UDP", "TCP")},
        {(8000, "TCP")},
    ]
    assert [ports(rule) for rule in policy()["ingress"]] == [{("http", "TCP")}]


def test_gateways_are_found_by_the_labels_that_jobs_give_them() -> None:
    (peer,) = policy()["egress"][2]["to"]
    chosen = peer["podSelector"]["matchLabels"]
    assert labels.labels("job", labels.GATEWAY).items() >= chosen.items()
    assert not labels.labels("job", labels.AGENT).items() >= chosen.items()
    assert not labels.labels("job", labels.ENGINE).items() >= chosen.items()
    assert peer["namespaceSelector"] == {}


def test_in_namespace_scope_only_gateways_there() -> None:
    peers = policy(scope="namespace", watchNamespaces=["a", "b"])["egress"][2]["to"]
    assert [one["namespaceSelector"]["matchLabels"] for one in peers] == [
        {"kubernetes.io/metadata.name": name} for name in ("a", "b")
    ]
    assert all("podSelector" in one for one in peers)


def test_the_api_server_can_be_pinned() -> None:
    rule = policy(networkPolicy={"apiServer": {"ports": [8443], "cidrs": ["10.0.0.1/32", "fd00::1/128"]}})[
        "egress"
    ][0]
    assert ports(rule) == {(8443, "TCP")}
    assert rule["to"] == [{"ipBlock": {"cidr": "10.0.0.1/32"}}, {"ipBlock": {"cidr": "fd00::1/128"}}]
    assert "to" not in policy()["egress"][0]


def test_dns_is_where_the_values_say_it_is() -> None:
    dns = {"namespace": "dns", "labels": {"k8s-app": None, "app": "coredns"}}
    (peer,) = policy(jobs={"dns": dns})["egress"][1]["to"]
    assert peer == {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "dns"}},
        "podSelector": {"matchLabels": {"app": "coredns"}},
    }


def test_dns_of_the_node_is_asked_besides_where_the_values_name_it() -> None:
    node = policy(jobs={"dns": {"cidrs": ["169.254.20.10/32"]}})["egress"][1]["to"][1:]
    assert node == [{"ipBlock": {"cidr": "169.254.20.10/32"}}]


def test_metrics_for_some_are_still_for_helm_test() -> None:
    scraper = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    (rule,) = policy(networkPolicy={"metricsFrom": [scraper]})["ingress"]
    assert rule["from"][0] == scraper
    test = render().one("Pod")["metadata"]["labels"]
    assert rule["from"][1]["podSelector"]["matchLabels"].items() <= test.items()
    assert len(rule["from"]) == 2
    assert "from" not in policy()["ingress"][0]


def test_it_can_be_left_out() -> None:
    assert render({"networkPolicy": {"enabled": False}}).all("NetworkPolicy") == []
