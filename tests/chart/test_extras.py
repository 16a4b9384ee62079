"""What a team adds to the operator's pods: environment, volumes, labels; and that none of it hides what is ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from tests.chart.rendering import CHART, ChartRefused, Rendered, render
from tests.chart.test_security import pods

CA = {"name": "ca", "configMap": {"name": "team-ca"}}
MOUNT = {"name": "ca", "mountPath": "/etc/ssl/team", "readOnly": True}
ENV = {"name": "SSL_CERT_FILE", "value": "/etc/ssl/team/ca.crt"}
SECRET = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}


def operators(rendered: Rendered) -> list[Mapping[str, Any]]:
    return [one["spec"]["template"]["spec"] for one in rendered.all("Deployment")]


def test_extras_are_in_every_operator_beside_what_is_ours() -> None:
    extra = {"extraEnv": [ENV, SECRET], "extraVolumes": [CA], "extraVolumeMounts": [MOUNT]}
    plain, full = render({"shards": ["a"]}), render({"shards": ["a"], "operator": extra})
    assert len(operators(full)) == 2
    for before, after in zip(operators(plain), operators(full), strict=True):
        assert after["volumes"] == [*before["volumes"], CA]
        (old,), (new,) = before["containers"], after["containers"]
        assert new["env"] == [*old["env"], ENV, SECRET]
        assert new["volumeMounts"] == [*old["volumeMounts"], MOUNT]
        ours = {"env", "volumeMounts"}
        assert {key: value for key, value in new.items() if key not in ours} == {
            key: value for key, value in old.items() if key not in ours
        }


def env(name: str) -> dict[str, Any]:
    return {"extraEnv": [{"name": name, "value": "x"}]}


def volume(name: str) -> dict[str, Any]:
    return {"extraVolumes": [{"name": name, "emptyDir": {}}]}


def mount(path: str) -> dict[str, Any]:
    return {"extraVolumes": [CA], "extraVolumeMounts": [{"name": "ca", "mountPath": path}]}


REFUSED: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "the pod's name": (
        env("POD_NAME"),
        "operator.extraEnv: POD_NAME is set by the chart itself: take it out",
    ),
    "the pod's address": (env("POD_IP"), "POD_IP is set by the chart itself"),
    "the pod's namespace": (env("POD_NAMESPACE"), "POD_NAMESPACE is set by the chart itself"),
    "the program's path": (env("PATH"), "PATH is set by the image itself"),
    "the program's modules": (env("PYTHONPATH"), "PYTHONPATH is set by the image itself"),
    "where the API server is": (
        env("KUBERNETES_SERVICE_HOST"),
        "KUBERNETES_SERVICE_HOST is set by Kubernetes",
    ),
    "a variable twice": ({"extraEnv": [ENV, ENV]}, "SSL_CERT_FILE is set by an earlier entry itself"),
    "the settings' volume": (
        volume("settings"),
        "operator.extraVolumes: the name settings is taken by the chart",
    ),
    "a volume twice": ({"extraVolumes": [CA, CA]}, "the name ca is taken by an earlier entry"),
    "a mount of no volume": ({"extraVolumeMounts": [MOUNT]}, "ca is no volume of operator.extraVolumes"),
    "the settings' place": (mount("/etc/sandgate"), "/etc/sandgate would hide /etc/sandgate"),
    "the settings' place by another spelling": (mount("/etc//x/../sandgate/"), "would hide /etc/sandgate"),
    "a place above the settings": (mount("/etc"), "/etc would hide /etc/sandgate"),
    "a place below the settings": (mount("/etc/sandgate/more"), "is below the operator's settings"),
    "everything": (mount("/"), "/ would hide"),
    "the program": (mount("/opt"), "/opt would hide /opt/sandgate"),
    "the token": (mount("/var/run/secrets/kubernetes.io"), "would hide /var/run/secrets"),
    "what it may write": (mount("/tmp"), "/tmp would hide /tmp"),
    "a place twice": (
        {"extraVolumes": [CA], "extraVolumeMounts": [MOUNT, MOUNT]},
        "the mountPath /etc/ssl/team stands there twice",
    ),
}


@pytest.mark.parametrize(("operator", "said"), REFUSED.values(), ids=REFUSED)
def test_what_would_break_the_operator_is_refused_in_words(operator: Mapping[str, Any], said: str) -> None:
    with pytest.raises(ChartRefused, match=said):
        render({"operator": operator})


@pytest.mark.parametrize("path", ["/tmp/more", "/etc/sandgate-team", "/optional", "/etc/ssl/certs"])
def test_places_beside_ours_are_free(path: str) -> None:
    (spec,) = operators(render({"operator": mount(path)}))
    assert path in {one["mountPath"] for one in spec["containers"][0]["volumeMounts"]}


def test_what_a_cluster_asks_of_every_pod_is_on_the_pod_of_helm_test_too() -> None:
    """Labels that a policy engine wants, an annotation that keeps a mesh away, a priority, nodes."""
    operator = {
        "podLabels": {"team": "rl", "app.kubernetes.io/component": "evil"},
        "podAnnotations": {"sidecar.istio.io/inject": "false", "helm.sh/hook": "evil"},
        "priorityClassName": "platform",
        "nodeSelector": {"pool": "system"},
        "tolerations": [{"key": "system", "operator": "Exists"}],
    }
    rendered = render({"operator": operator})
    pod = rendered.one("Pod")
    assert pod["metadata"]["labels"] | {"team": "rl"} == pod["metadata"]["labels"]
    assert pod["metadata"]["labels"]["app.kubernetes.io/component"] == "test"
    assert pod["metadata"]["annotations"]["sidecar.istio.io/inject"] == "false"
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"
    for _, spec in pods(rendered):
        for key in ("priorityClassName", "nodeSelector", "tolerations"):
            assert spec[key] == operator[key]


def test_the_pod_of_helm_test_has_no_secret_of_the_operators() -> None:
    rendered = render(
        {"operator": {"extraEnv": [SECRET], "extraVolumes": [CA], "extraVolumeMounts": [MOUNT]}}
    )
    spec = rendered.one("Pod")["spec"]
    assert "env" not in spec["containers"][0]
    assert "volumes" not in spec


def test_the_pages_values_are_what_the_chart_takes() -> None:
    page = (CHART.parents[1] / "docs" / "cluster.md").read_text("utf-8")
    (text,) = re.findall(r"```yaml\n(operator:\n.*?)```", page, re.DOTALL)
    (spec,) = operators(render(yaml.safe_load(text)))
    assert MOUNT["mountPath"] in {one["mountPath"] for one in spec["containers"][0]["volumeMounts"]}
