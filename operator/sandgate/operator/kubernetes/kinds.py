"""The kinds of objects that the operator reads or writes, and their paths at an API server. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self
from urllib.parse import quote

from sandgate.contract import labels
from sandgate.contract.names import GROUP, VERSION

Json = Any


@dataclass(frozen=True, slots=True)
class Kind:
    """Where a kind is served. `group` is empty for the core group."""

    group: str
    version: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """As manifests write it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def root(self) -> str:
        """Path of the group's version: also its discovery document."""
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    def path(self, namespace: str, name: str = "", subresource: str = "") -> str:
        """Of one object; of the collection without a name; of all namespaces' collection without a namespace."""
        parts = [self.root]
        if self.namespaced and namespace:
            parts.append(f"namespaces/{quote(namespace, safe='')}")
        parts += [self.plural, *(quote(part, safe="") for part in (name, subresource) if part)]
        return "/".join(parts)


KINDS: dict[str, Kind] = {
    "RolloutJob": Kind(GROUP, VERSION, "rolloutjobs"),
    "AgentSession": Kind(GROUP, VERSION, "agentsessions"),
    "Pod": Kind("", "v1", "pods"),
    "Secret": Kind("", "v1", "secrets"),
    "ConfigMap": Kind("", "v1", "configmaps"),
    "Service": Kind("", "v1", "services"),
    "ServiceAccount": Kind("", "v1", "serviceaccounts"),
    "PersistentVolumeClaim": Kind("", "v1", "persistentvolumeclaims"),
    "Event": Kind("", "v1", "events"),
    "Node": Kind("", "v1", "nodes", namespaced=False),
    "Namespace": Kind("", "v1", "namespaces", namespaced=False),
    "StatefulSet": Kind("apps", "v1", "statefulsets"),
    "Deployment": Kind("apps", "v1", "deployments"),
    "PodDisruptionBudget": Kind("policy", "v1", "poddisruptionbudgets"),
    "NetworkPolicy": Kind("networking.k8s.io", "v1", "networkpolicies"),
    "HTTPRoute": Kind("gateway.networking.k8s.io", "v1", "httproutes"),
    "Workload": Kind("kueue.x-k8s.io", "v1beta2", "workloads"),
    "ResourceFlavor": Kind("kueue.x-k8s.io", "v1beta2", "resourceflavors", namespaced=False),
    "WorkloadPriorityClass": Kind("kueue.x-k8s.io", "v1beta2", "workloadpriorityclasses", namespaced=False),
    "Lease": Kind("coordination.k8s.io", "v1", "leases"),
}


@dataclass(frozen=True, slots=True)
class Ref:
    """One object. `namespace` is empty for kinds that have none."""

    kind: str
    namespace: str
    name: str

    @classmethod
    def of(cls, body: Mapping[str, Json]) -> Self:
        """The object that a manifest describes. Raises ValueError if it does not say which one, or is of no known kind:
        a mistake of ours, never of a user."""
        kind = str(body.get("kind") or "")
        known = KINDS.get(kind)
        if known is None or body.get("apiVersion") != known.api_version:
            raise ValueError(f"no known kind: {body.get('apiVersion')} {kind}")
        meta = body.get("metadata") or {}
        name, namespace = str(meta.get("name") or ""), str(meta.get("namespace") or "")
        if not name or known.namespaced != bool(namespace):
            raise ValueError(f"{kind} {namespace}/{name}: needs a name, and a namespace if the kind has them")
        return cls(kind, namespace, name)

    @property
    def path(self) -> str:
        """At the API server."""
        return KINDS[self.kind].path(self.namespace, self.name)

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}" if self.namespace else f"{self.kind} {self.name}"


WATCHED = ("RolloutJob", "AgentSession", "Pod")
"""Kinds whose changes reach the operator by themselves."""


def selector(kind: str, shard: str) -> str:
    """Label selector of what one shard's operator watches and sweeps; the empty shard has what names none."""
    ours = f"{labels.SHARD}={shard}" if shard else f"!{labels.SHARD}"
    return f"{labels.MANAGED_BY}={labels.MANAGER},{ours}" if kind == "Pod" else ours
