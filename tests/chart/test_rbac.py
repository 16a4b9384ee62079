"""Roles as written: what is granted, and nothing else. What an API server makes of them: test_on_apiserver.py."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from sandgate.operator.kubernetes.kinds import KINDS
from tests.chart.rendering import render

READ = {"get", "list", "watch"}
APPLY = {"create", "patch"}

# resource.group -> verbs in namespaces of jobs
OPERATOR: Mapping[str, set[str]] = {
    "rolloutjobs.sandgate.dev": READ | {"delete"},
    "agentsessions.sandgate.dev": READ | {"create", "patch", "deletecollection"},
    "rolloutjobs/status.sandgate.dev": {"patch"},
    "agentsessions/status.sandgate.dev": {"patch"},
    "rolloutjobs/finalizers.sandgate.dev": {"update"},
    "agentsessions/finalizers.sandgate.dev": {"update"},
    "events": {"create", "list"},
    "pods": READ | APPLY | {"delete", "deletecollection"},
    "secrets": APPLY | {"get", "delete"},
    "configmaps": APPLY | {"get"},
    "services": APPLY | {"get"},
    "persistentvolumeclaims": {"get"},
    "statefulsets.apps": APPLY | {"get"},
    "deployments.apps": APPLY | {"get"},
    "poddisruptionbudgets.policy": APPLY | {"get"},
    "networkpolicies.networking.k8s.io": APPLY | {"get"},
}


def granted(rules: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    yield f"{resource}.{group}".rstrip("."), verb


def test_the_operators_role_is_exactly_this_table() -> None:
    rules = list(granted(render().one("ClusterRole", "sandgate-operator")["rules"]))
    assert len(rules) == len(set(rules)), "a rule twice"
    assert set(rules) == {(resource, verb) for resource, verbs in OPERATOR.items() for verb in verbs}


KUEUE = {
    "workloads.kueue.x-k8s.io": {"get", "list", "create", "patch", "delete"},
    "workloads/status.kueue.x-k8s.io": {"patch"},
}
ROUTES = {"httproutes.gateway.networking.k8s.io": APPLY | {"get"}}
OF_NO_NAMESPACE = {
    "resourceflavors.kueue.x-k8s.io": {"get"},
    "workloadpriorityclasses.kueue.x-k8s.io": {"get"},
}


@pytest.mark.parametrize("scope", ["cluster", "namespace"])
def test_kueues_kinds_are_granted_where_it_is_enabled_only(scope: str) -> None:
    rendered = render({"scope": scope, "kueue": {"enabled": True}})
    kind, own = ("ClusterRole", "sandgate-operator") if scope == "cluster" else ("Role", "sandgate-operator")
    rules = set(granted(rendered.one(kind, own)["rules"]))
    if scope == "namespace":
        rules |= set(granted(rendered.one("ClusterRole", "sandgate-operator-kueue")["rules"]))
        assert (
            rendered.one("ClusterRoleBinding", "sandgate-operator-kueue")["roleRef"]["kind"] == "ClusterRole"
        )
    table = {**OPERATOR, **KUEUE, **OF_NO_NAMESPACE}
    assert rules == {(resource, verb) for resource, verbs in table.items() for verb in verbs}


@pytest.mark.parametrize("scope", ["cluster", "namespace"])
def test_routes_are_granted_where_their_gateways_are_named_only(scope: str) -> None:
    external = {"url": "https://r.example", "parentRefs": [{"name": "edge"}]}
    kind = "ClusterRole" if scope == "cluster" else "Role"
    for given, more in ((external, ROUTES), ({"url": external["url"]}, {})):
        rendered = render({"scope": scope, "jobs": {"gateway": {"external": given}}})
        rules = set(granted(rendered.one(kind, "sandgate-operator")["rules"]))
        table = {**OPERATOR, **more}
        assert rules == {(resource, verb) for resource, verbs in table.items() for verb in verbs}


def test_nothing_is_granted_for_kinds_the_operator_does_not_know() -> None:
    known = {f"{one.plural}.{one.group}".rstrip(".") for one in KINDS.values()}
    named = {
        f"{name.split('.')[0].split('/')[0]}{name[len(name.split('.')[0]) :]}"
        for name in (*OPERATOR, *KUEUE, *ROUTES)
    }
    assert named <= known


def test_leases_by_name_only() -> None:
    rendered = render({"shards": ["a"]})
    first, second = rendered.one("Role", "sandgate-operator-lease")["rules"]
    assert first["resourceNames"] == [one["metadata"]["name"] for one in rendered.all("Lease")]
    assert set(first["verbs"]) == {"get", "update", "patch"}
    assert second["verbs"] == ["create"], "a name cannot be asked for when creating"
    assert rendered.one("Role", "sandgate-operator-lease")["metadata"]["namespace"] == "sg-system"


@pytest.mark.parametrize("kind", ["ClusterRole", "Role"])
def test_no_wildcards_and_no_way_to_more_rights(kind: str) -> None:
    forbidden_verbs = {"*", "escalate", "bind", "impersonate"}
    for role in render({"scope": "namespace"} if kind == "Role" else {}).all(kind):
        for rule in role["rules"]:
            assert not forbidden_verbs & set(rule["verbs"])
            assert "*" not in rule["resources"] + rule["apiGroups"]
            assert "nonResourceURLs" not in rule
            assert not {"pods/exec", "pods/attach", "pods/portforward", "serviceaccounts/token"} & set(
                rule["resources"]
            )


AGGREGATE = "rbac.authorization.k8s.io/aggregate-to-"
USERS = {
    "sandgate-view": ({"view", "edit", "admin"}, READ),
    "sandgate-edit": ({"edit", "admin"}, {"create", "update", "patch", "delete", "deletecollection"}),
}


@pytest.mark.parametrize(("name", "expected"), USERS.items(), ids=USERS)
def test_user_roles_join_the_built_in_ones(name: str, expected: tuple[set[str], set[str]]) -> None:
    to, verbs = expected
    role = render().one("ClusterRole", name)
    found = {
        label.removeprefix(AGGREGATE): value
        for label, value in role["metadata"]["labels"].items()
        if label.startswith(AGGREGATE)
    }
    assert found == dict.fromkeys(to, "true")
    assert {verb for rule in role["rules"] for verb in rule["verbs"]} == verbs
    assert {group for rule in role["rules"] for group in rule["apiGroups"]} == {"sandgate.dev"}


def test_roles_can_be_left_to_the_administrator() -> None:
    kinds = {kind for kind, _, _ in render({"rbac": {"create": False, "userRoles": False}}).refs}
    assert not kinds & {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
