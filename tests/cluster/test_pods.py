"""A real API server takes our pods: every field known, every rule kept, under the restricted pod security standard."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.cluster.harness.api import Api
from tests.cluster.harness.rest import Refused
from tests.operator.sandbox_pods import MAIN, POD, Json, agent, verifier

RUNTIME = "gvisor"
STRICT, LENIENT = "pods-restricted", "pods-privileged"


@pytest.fixture(scope="module")
def pods(apiserver: Api) -> Iterator[Api]:
    """With the RuntimeClass that the installation names, and two namespaces."""
    rest = apiserver.rest()
    path = "/apis/node.k8s.io/v1/runtimeclasses"
    rest.create(path, {"metadata": {"name": RUNTIME}, "handler": "runsc"})
    with apiserver.namespace(STRICT), apiserver.namespace(LENIENT, security="privileged"):
        yield apiserver
    rest.call("DELETE", f"{path}/{RUNTIME}")


def create(api: Api, namespace: str, pod: Json, *, keep: bool = False) -> Json:
    """As the server would store it; unknown and double fields are errors."""
    pod["metadata"]["namespace"] = namespace
    dry = "" if keep else "&dryRun=All"
    return api.rest().create(f"/api/v1/namespaces/{namespace}/pods?fieldValidation=Strict{dry}", pod)


FILE = ("spec.agent.taskDelivery", "File")
ROOT = (f"{POD}.securityContext", {"runAsUser": 0})
ROOT_MAIN = (f"{MAIN}.securityContext", {"runAsUser": 0})
ADMIN = (f"{MAIN}.securityContext", {"capabilities": {"add": ["SYS_ADMIN"]}})
HOST = (f"{POD}.hostNetwork", True)
WHOLE = [
    FILE,
    (
        "spec.agent.template.metadata",
        {"labels": {"team": "red"}, "annotations": {"who": "me"}},
    ),
    (f"{POD}.initContainers", [{"name": "prepare", "image": "p"}]),
    (f"{POD}.volumes", [{"name": "work", "emptyDir": {}}]),
    (f"{POD}.imagePullSecrets", [{"name": "own"}]),
    (
        f"{POD}.containers",
        [
            {
                "name": "agent",
                "image": "a",
                "workingDir": ".",
                "env": [{"name": "SAY", "value": "$(SANDGATE_PROMPT)"}, {"name": "OPENAI_API_KEY"}],
                "volumeMounts": [{"name": "work", "mountPath": "/work"}],
                "securityContext": {"runAsUser": 1000, "capabilities": {"add": ["NET_BIND_SERVICE"]}},
            },
            {"name": "tools", "image": "b"},
        ],
    ),
]
TAKEN: dict[str, list[tuple[str, Any]]] = {
    "a plain template": [],
    "a task as a file": [FILE],
    "no wall and nothing to fetch": [("spec.agent.isolation", "Off")],
    "a template that uses much": WHOLE,
    "a user of its own": [(f"{POD}.securityContext", {"runAsUser": 1000, "fsGroup": 1000})],
}
REFUSED: dict[str, list[tuple[str, Any]]] = {
    "root": [ROOT],
    "root in one container": [ROOT_MAIN],
    "SYS_ADMIN": [ADMIN],
    "the node's network": [HOST],
}


@pytest.mark.parametrize("make", [agent, verifier])
@pytest.mark.parametrize("changes", TAKEN.values(), ids=TAKEN)
def test_a_restricted_namespace_takes(pods: Api, make: Any, changes: list[tuple[str, Any]]) -> None:
    sent = make(*changes)
    kept = create(pods, STRICT, sent)
    wanted = {one["name"]: one for one in sent["spec"]["containers"][0]["env"]}
    assert {one["name"]: one for one in kept["spec"]["containers"][0]["env"]} == wanted
    # Nothing was added for us: Kubernetes itself would let a pod stay 300 s on a node that is gone.
    assert kept["spec"]["tolerations"] == sent["spec"]["tolerations"]


@pytest.mark.parametrize("changes", REFUSED.values(), ids=REFUSED)
def test_a_template_that_asks_for_more_gets_it_where_the_namespace_allows_that(
    pods: Api, changes: list[tuple[str, Any]]
) -> None:
    with pytest.raises(Refused, match="violates PodSecurity"):
        create(pods, STRICT, agent(*changes))
    create(pods, LENIENT, agent(*changes))


def test_a_pod_can_be_stopped_by_its_deadline(pods: Api) -> None:
    name = create(pods, STRICT, agent(), keep=True)["metadata"]["name"]
    path = f"/api/v1/namespaces/{STRICT}/pods/{name}"
    assert pods.rest().merge(path, {"spec": {"activeDeadlineSeconds": 1}})
    with pytest.raises(Refused, match="activeDeadlineSeconds"):
        pods.rest().merge(path, {"spec": {"activeDeadlineSeconds": 60}})
