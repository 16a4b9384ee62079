"""What a cluster must have for this test, asked before anything is made: all that is missing is said at once."""

from __future__ import annotations

import json
from collections.abc import Iterator

from tests.anycluster.kubectl import Kubectl

KUBERNETES_MIN = (1, 31)
"""As docs/install.md says."""
DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
WANTED_RIGHTS = (
    "namespaces",
    "customresourcedefinitions.apiextensions.k8s.io",
    "clusterroles.rbac.authorization.k8s.io",
)
"""To create them: the chart is installed with its defaults."""


def missing(kubectl: Kubectl) -> list[str]:
    """Sentences that say what to do; none: it can begin."""
    try:
        kubectl("get", "--raw", "/readyz")
    except AssertionError as error:
        return [f"the API server does not answer: {error}"]
    return [*_version(kubectl), *_rights(kubectl), *_nodes(kubectl), *_storage(kubectl), *_installed(kubectl)]


def _version(kubectl: Kubectl) -> Iterator[str]:
    said = json.loads(kubectl("get", "--raw", "/version"))
    have = (int(said["major"]), int(said["minor"].rstrip("+")))
    if have < KUBERNETES_MIN:
        yield f"this is Kubernetes {have[0]}.{have[1]}: {KUBERNETES_MIN[0]}.{KUBERNETES_MIN[1]} is the oldest"


def _rights(kubectl: Kubectl) -> Iterator[str]:
    for kind in WANTED_RIGHTS:
        try:
            kubectl("auth", "can-i", "create", kind, "--all-namespaces")
        except AssertionError:
            yield f"you may not create {kind}: take an administrator's kubeconfig"


def _nodes(kubectl: Kubectl) -> Iterator[str]:
    """At least one that takes pods with no tolerations."""
    for node in kubectl.get("nodes")["items"]:
        ready = any(
            (c["type"], c["status"]) == ("Ready", "True") for c in node["status"].get("conditions", ())
        )
        taints = [one for one in node["spec"].get("taints", ()) if one["effect"] != "PreferNoSchedule"]
        if ready and not taints and not node["spec"].get("unschedulable"):
            return
    yield "no node is Ready, without taints and schedulable"


def _storage(kubectl: Kubectl) -> Iterator[str]:
    classes = kubectl.get("storageclasses")["items"]
    if not any(one["metadata"].get("annotations", {}).get(DEFAULT_CLASS) == "true" for one in classes):
        have = ", ".join(one["metadata"]["name"] for one in classes) or "none"
        why = "gateways keep journals on volumes"
        yield f"no StorageClass is the default (there are: {have}), {why}. Annotate one: {DEFAULT_CLASS}=true"


def _installed(kubectl: Kubectl) -> Iterator[str]:
    """Another release's definitions would be gone with ours."""
    found = kubectl.names("customresourcedefinitions") & {
        f"CustomResourceDefinition/{plural}.sandgate.dev" for plural in ("rolloutjobs", "agentsessions")
    }
    if found:
        yield f"Sandgate is installed already ({', '.join(sorted(found))}): this test installs and removes it"
