"""Pods of the chart keep Pod Security's level `restricted`, and more."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.chart.rendering import Rendered, render

FULL = {
    "shards": ["a"],
    "images": {"registry": "r.example/t", "pullPolicy": "Always", "pullSecrets": ["one", "two"]},
}


def pods(rendered: Rendered) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for body in rendered.objects:
        if body["kind"] == "Pod":
            yield body["metadata"]["name"], body["spec"]
        elif body["kind"] == "Deployment":
            yield body["metadata"]["name"], body["spec"]["template"]["spec"]


PODS = ["sandgate-operator", "sandgate-operator-a", "sandgate-test"]


def test_these_are_all_pods() -> None:
    assert sorted(dict(pods(render(FULL)))) == PODS


@pytest.mark.parametrize("name", PODS)
def test_restricted(name: str) -> None:
    """The real API server judges too: test_on_apiserver.py. Here, what it does not ask for."""
    spec = dict(pods(render(FULL)))[name]
    assert spec["securityContext"] == {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    for container in spec["containers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert container["resources"]["limits"].keys() == {"memory"}, "a CPU limit stalls an event loop"
    assert not spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}
    assert {kind for one in spec.get("volumes", []) for kind in one if kind != "name"} <= {
        "configMap",
        "emptyDir",
    }
    assert spec["enableServiceLinks"] is False


@pytest.mark.parametrize("name", PODS)
def test_images(name: str) -> None:
    spec = dict(pods(render(FULL)))[name]
    assert [one["image"] for one in spec["containers"]] == ["r.example/t/sandgate-operator:0.1.0"]
    assert [one["imagePullPolicy"] for one in spec["containers"]] == ["Always"]
    assert spec["imagePullSecrets"] == [{"name": "one"}, {"name": "two"}]
    assert "imagePullSecrets" not in dict(pods(render({"shards": ["a"]})))[name]


def test_a_digest_wins_over_the_tag() -> None:
    image = {"repository": "o", "tag": "1", "digest": f"sha256:{'b' * 64}"}
    specs = pods(render({"images": {"operator": image}}))
    assert {one["image"] for _, spec in specs for one in spec["containers"]} == {f"o@sha256:{'b' * 64}"}


def test_tokens_are_mounted_by_pods_not_by_accounts() -> None:
    rendered = render()
    assert {one["automountServiceAccountToken"] for one in rendered.all("ServiceAccount")} == {False}
    assert all(spec["automountServiceAccountToken"] for _, spec in pods(rendered))


def test_the_test_pod_does_not_run_with_the_operators_rights() -> None:
    specs = dict(pods(render()))
    assert specs["sandgate-test"]["serviceAccountName"] != specs["sandgate-operator"]["serviceAccountName"]


def test_an_account_of_the_users_own() -> None:
    rendered = render({"serviceAccount": {"create": False, "name": "mine"}})
    assert dict(pods(rendered))["sandgate-operator"]["serviceAccountName"] == "mine"
    assert [one["metadata"]["name"] for one in rendered.all("ServiceAccount")] == ["sandgate-test"]
    assert {one["subjects"][0]["name"] for one in rendered.all("RoleBinding")} == {"mine"}


def test_pod_labels_of_the_user_never_hide_ours() -> None:
    """A later key of the same name would win: ours come last."""
    labels = {"app.kubernetes.io/name": "evil", "team": "rl"}
    deployment = render({"operator": {"podLabels": labels}}).one("Deployment")
    found = deployment["spec"]["template"]["metadata"]["labels"]
    assert found["team"] == "rl"
    assert found["app.kubernetes.io/name"] == "sandgate-operator"
