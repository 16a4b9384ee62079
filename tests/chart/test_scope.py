"""Where the operator may look, and what of a release is cluster-wide."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.chart.rendering import NAMESPACE, render

CLUSTER_KINDS = {"ClusterRole", "ClusterRoleBinding", "CustomResourceDefinition"}
NAMESPACED = {"scope": "namespace", "watchNamespaces": ["a", "b"]}
BARE = {"crds": {"install": False}, "rbac": {"userRoles": False}}


def test_cluster_scope_is_one_cluster_role_and_only_the_lease_is_a_role() -> None:
    """Besides, for as long as `helm test` runs, there is what that asks with."""
    rendered = render(BARE)
    roles = {one["metadata"]["name"] for one in rendered.all("ClusterRole")}
    assert roles == {"sandgate-operator", "sandgate-test"}
    assert {one["roleRef"]["name"] for one in rendered.all("ClusterRoleBinding")} == roles
    assert [one["metadata"]["name"] for one in rendered.all("Role")] == ["sandgate-operator-lease"]


def test_namespace_scope_has_the_same_rules_in_each_namespace_and_nowhere_else() -> None:
    rendered = render(NAMESPACED)
    rules = render().one("ClusterRole", "sandgate-operator")["rules"]
    roles = {
        one["metadata"]["namespace"]: one["rules"]
        for one in rendered.all("Role")
        if one["metadata"]["name"] == "sandgate-operator"
    }
    assert roles == {"a": rules, "b": rules}
    bindings = [one for one in rendered.all("RoleBinding") if one["metadata"]["name"] == "sandgate-operator"]
    assert {one["metadata"]["namespace"] for one in bindings} == {"a", "b"}
    account = {"kind": "ServiceAccount", "name": "sandgate-operator", "namespace": NAMESPACE}
    assert all(one["subjects"] == [account] for one in bindings)


@pytest.mark.parametrize("values", [NAMESPACED | BARE, {"scope": "namespace"} | BARE], ids=["named", "own"])
def test_who_rules_only_a_namespace_can_install(values: dict[str, object]) -> None:
    """With definitions and user roles left to the cluster's administrator."""
    assert not [one for one in render(values).refs if one[0] in CLUSTER_KINDS]


def test_every_namespaced_object_says_where() -> None:
    """So `helm template | kubectl apply` and namespaces other than the release's do what they say."""
    lost = [
        one
        for one in render(NAMESPACED | {"metrics": {"dashboard": {"enabled": True}}}).refs
        if (one[1] == "") is not (one[0] in CLUSTER_KINDS)
    ]
    assert lost == []


def test_two_releases_share_nothing_but_definitions() -> None:
    """Side by side in one namespace even: no object of the one is the other's, and no selector chooses its pods."""
    one, two = (render(NAMESPACED | BARE, release=name) for name in ("one", "two"))
    assert not set(one.refs) & set(two.refs)
    ours = one.one("Deployment")["spec"]["selector"]["matchLabels"]
    theirs = two.one("Deployment")["spec"]["template"]["metadata"]["labels"]
    assert not ours.items() <= theirs.items()


NAMES = {
    "the release's name, when it says sandgate": ("my-sandgate", {}, "my-sandgate-operator"),
    "release and chart": ("rl", {}, "rl-sandgate-operator"),
    "another name for the chart": ("rl", {"nameOverride": "sg"}, "rl-sg-operator"),
    "one name for all": ("rl", {"fullnameOverride": "x"}, "x-operator"),
    "cut, and not at a dash": (f"{'r' * 39}-x", {"nameOverride": "r"}, f"{'r' * 39}-operator"),
}


@pytest.mark.parametrize(("release", "values", "name"), NAMES.values(), ids=NAMES)
def test_names(release: str, values: dict[str, str], name: str) -> None:
    assert render(values, release=release).one("Deployment")["metadata"]["name"] == name


def test_names_and_labels_fit_with_the_longest_of_all() -> None:
    rendered = render({"shards": ["s" * 40], "metrics": {"dashboard": {"enabled": True}}}, release="r" * 53)
    for _, _, name in rendered.refs:
        assert len(name) <= 253
    assert len(rendered.one("Service")["metadata"]["name"]) <= 63
    for body in rendered.objects:
        assert all(len(value) <= 63 for value in body["metadata"].get("labels", {}).values())


def numbers(body: Any, path: str = "") -> Iterator[str]:
    """Where an object says 2024 as a number."""
    if isinstance(body, Mapping):
        for name, value in body.items():
            yield from numbers(value, f"{path}.{name}")
    elif isinstance(body, list):
        for value in body:
            yield from numbers(value, f"{path}[]")
    elif body == 2024:
        yield path


@pytest.mark.parametrize("scope", ["cluster", "namespace"])
def test_names_of_digits_are_text(scope: str) -> None:
    """Kubernetes allows them, and an API server refuses a number."""
    everything = {"enabled": True}
    values: dict[str, Any] = {
        "fullnameOverride": "2024",
        "scope": scope,
        "images": {"pullSecrets": ["2024"]},
        "operator": {"priorityClassName": "2024"},
        "jobs": {"dns": {"namespace": "2024"}},
        "serviceAccount": {"create": False, "name": "2024"},
        "metrics": {
            "serviceMonitor": everything,
            "podMonitor": everything,
            "alerts": everything,
            "dashboard": everything,
        },
    }
    if scope == "namespace":
        values["watchNamespaces"] = ["2024", "b"]
    found = render(values, namespace="2024").objects + render(namespace="2024").objects
    assert [(one["kind"], path) for one in found for path in numbers(one)] == []
    assert {one["metadata"].get("namespace", "2024") for one in found} <= {"2024", "b"}
