"""Security and resource defaults of a pod: the `restricted` pod security standard, tolerations, limits. (pure)

Each setting is a default. A template that asks for more keeps what it asks for: whether a namespace allows that is
its pod-security label's to say, as for every other pod of its author. What a template asks for is not taken apart:
root, added capabilities and privileged containers are left as written.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from sandgate.contract.kinds import bytes_of

Json = Any

NODE_TAINTS: Final = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
"""Taints of nodes that are gone. Kubernetes lets a pod stay on such a node for 300 s unless the pod says otherwise."""
ESCALATING: Final = frozenset({"SYS_ADMIN", "CAP_SYS_ADMIN"})
"""The API server refuses allowPrivilegeEscalation false beside it."""


def harden(pod: Json, unreachable_seconds: int) -> None:
    """Fills in the security defaults of a PodSpec, in place."""
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
    """All containers of a pod, init containers, too."""
    yield from pod.get("initContainers") or []
    yield from pod["containers"]


def share(pod: Json, defaults: Mapping[str, Json]) -> frozenset[str]:
    """Resources that the pod as a whole asks for (`resources` of a PodSpec), for its containers to share: no container
    gets a default of them, which might be more than the pod has. What it only requests gets the default limit, in
    place."""
    own = pod.get("resources") or {}
    requests, limits = dict(own.get("requests") or {}), dict(own.get("limits") or {})
    for name, bound in (defaults.get("limits") or {}).items():
        if name in requests and name not in limits:
            limits[name] = bound if _at_most(str(requests[name]), str(bound)) else requests[name]
    if limits:
        pod["resources"] = {**own, "limits": limits}
    return frozenset({*requests, *limits})


def limit(container: Json, defaults: Mapping[str, Json], shared: Collection[str] = ()) -> None:
    """Fills in the resources of a container, in place. A container without any gets all of `defaults` (`requests`,
    `limits`) but those that its pod's containers share. Else it gets each default limit that it lacks, with its default
    request (Kubernetes would request as much as the limit). A limit is never below the container's request."""
    defaults = without(defaults, shared)
    own = container.get("resources") or {}
    if not own:
        container["resources"] = copy.deepcopy(dict(defaults))
        return
    requests, limits = dict(own.get("requests") or {}), dict(own.get("limits") or {})
    for name, bound in (defaults.get("limits") or {}).items():
        if name in limits:
            continue
        asked = requests.get(name)
        limits[name] = bound if asked is None or _at_most(str(asked), str(bound)) else asked
        if asked is None and (least := (defaults.get("requests") or {}).get(name)) is not None:
            requests[name] = least
    parts = {"requests": requests, "limits": limits}
    container["resources"] = {**own, **{name: part for name, part in parts.items() if part}}


def without(resources: Mapping[str, Json], names: Collection[str]) -> dict[str, Json]:
    """`requests` and `limits` but those of these names; what is empty then is left out."""
    if not names:
        return dict(resources)
    left = {
        kind: {name: value for name, value in part.items() if name not in names}
        for kind, part in resources.items()
    }
    return {kind: part for kind, part in left.items() if part}


def _at_most(asked: str, bound: str) -> bool:
    try:
        return bytes_of(asked) <= bytes_of(bound)
    except ValueError:  # the API server may understand it: then it is its own limit
        return False


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
    """`own`, and tolerations that keep the pod for `seconds` on a node that is gone, unless `own` decides that."""
    tolerated = {
        toleration.get("key") for toleration in own if toleration.get("effect") in (None, "", "NoExecute")
    }
    if None in tolerated or "" in tolerated:  # tolerates every taint
        return own
    ours = [
        {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds}
        for key in NODE_TAINTS
        if key not in tolerated
    ]
    return own + ours
