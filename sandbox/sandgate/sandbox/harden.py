"""A pod under the `restricted` pod security standard, where its author said nothing else. (pure)

Each setting is a default. A template that asks for more keeps what it asks for: whether a namespace allows that is
its pod-security label's to say, as for every other pod of its author. What a template asks for is not taken apart:
root, added capabilities and privileged containers are left as written.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

Json = Any

NODE_TAINTS: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Kubernetes lets a pod stay on such a node for 300 s if it says nothing itself."""
ESCALATING: Final = frozenset({"SYS_ADMIN", "CAP_SYS_ADMIN"})
"""The API server refuses allowPrivilegeEscalation false beside it."""


def harden(pod: Json, unreachable_seconds: int) -> None:
    """Fill in the defaults of a PodSpec, in place."""
    pod.setdefault("automountServiceAccountToken", False)
    pod.setdefault("enableServiceLinks", False)
    context = dict(pod.get("securityContext") or {})
    if context.get("runAsUser") != 0:
        context.setdefault("runAsNonRoot", True)
    context.setdefault("seccompProfile", {"type": "RuntimeDefault"})
    pod["securityContext"] = context
    for container in containers(pod):
        container["securityContext"] = _container(dict(container.get("securityContext") or {}), context)
    pod["tolerations"] = tolerations(list(pod.get("tolerations") or []), unreachable_seconds)


def containers(pod: Json) -> Iterator[Json]:
    """All of them, init containers too."""
    yield from pod.get("initContainers") or []
    yield from pod["containers"]


def _container(context: Json, pod: Json) -> Json:
    if context.get("runAsUser") == 0 and pod.get("runAsNonRoot"):
        context.setdefault("runAsNonRoot", False)  # else the kubelet refuses what the template says
    if context.get("privileged"):
        return context
    capabilities = dict(context.get("capabilities") or {})
    if not ESCALATING & set(capabilities.get("add") or []):
        context.setdefault("allowPrivilegeEscalation", False)
    capabilities.setdefault("drop", ["ALL"])
    context["capabilities"] = capabilities
    return context


def tolerations(own: list[Json], seconds: int) -> list[Json]:
    """`own`, and how long the pod stays on a node that is gone unless they say so themselves."""
    said = {one.get("key") for one in own if one.get("effect") in (None, "", "NoExecute")}
    if None in said or "" in said:  # tolerates every taint
        return own
    ours = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
        for key in NODE_TAINTS
        if key not in said
    ]
    return own + ours
