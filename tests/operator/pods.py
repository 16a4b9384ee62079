"""Pod statuses in few words, in the shapes that kubelet, scheduler and controllers of Kubernetes 1.35 write."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

Json = dict[str, Any]
CREATED = 1_000_000.0
"""When every pod was created; everything else is told in seconds after it."""


def stamp(after: float) -> str:
    """As Kubernetes writes times: whole seconds."""
    return datetime.fromtimestamp(CREATED + after, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def waits(reason: str, message: str = "") -> Json:
    return {"waiting": {"reason": reason, **({"message": message} if message else {})}}


def runs(since: float = 5) -> Json:
    return {"running": {"startedAt": stamp(since)}}


def ended(
    code: int = 0, at: float = 20, reason: str = "", message: str = "", since: float | None = 5
) -> Json:
    return {
        "terminated": {
            "exitCode": code,
            "reason": reason or ("Completed" if code == 0 else "Error"),
            "startedAt": None if since is None else stamp(since),
            "finishedAt": stamp(at),
            **({"message": message} if message else {}),
        }
    }


def container(state: Json, name: str = "agent", *, ready: bool | None = None) -> Json:
    return {"name": name, "ready": "running" in state if ready is None else ready, "state": state}


def condition(kind: str, status: str = "True", reason: str = "", message: str = "", at: float = 1) -> Json:
    return {
        "type": kind,
        "status": status,
        "lastTransitionTime": stamp(at),
        **({"reason": reason} if reason else {}),
        **({"message": message} if message else {}),
    }


def disrupted(reason: str, at: float, message: str = "") -> Json:
    return condition("DisruptionTarget", "True", reason, message, at)


SCHEDULED = condition("PodScheduled")


def pod(
    phase: str,
    *states: Json,
    inits: tuple[Json, ...] = (),
    conditions: tuple[Json, ...] = (SCHEDULED,),
    reason: str = "",
    message: str = "",
    deleted: float | None = None,
    grace: int = 5,
    deadline: int = 1320,
    sidecars: tuple[str, ...] = (),
) -> Json:
    """`states`: of the containers, the agent's first unless named. `deleted`: when its deletion was asked for."""
    containers = [one if "name" in one else container(one) for one in states]
    meta: Json = {
        "name": "s-0-0",
        "namespace": "team",
        "uid": "8d6c7d4e-9f41-4f0c-8f2f-0d8f3f6d2c11",
        "creationTimestamp": stamp(0),
        "labels": {
            "sandgate.dev/job": "shop",
            "sandgate.dev/role": "agent",
            "sandgate.dev/session": "s-0-0",
            "sandgate.dev/group": "s",
        },
        "annotations": {"kubectl.kubernetes.io/default-container": "agent"},
    }
    if deleted is not None:
        meta |= {"deletionTimestamp": stamp(deleted + grace), "deletionGracePeriodSeconds": grace}
    status: Json = {"phase": phase, "conditions": list(conditions), "startTime": stamp(1)}
    status |= {name: value for name, value in (("reason", reason), ("message", message)) if value}
    if containers:
        status["containerStatuses"] = containers
    if inits:
        status["initContainerStatuses"] = list(inits)
    init_specs = [{"name": one["name"]} for one in inits]
    init_specs += [{"name": name, "restartPolicy": "Always"} for name in sidecars]
    spec = {
        "nodeName": "n1",
        "activeDeadlineSeconds": deadline,
        "containers": [{"name": "agent"}],
        "initContainers": init_specs,
    }
    return {"metadata": meta, "spec": spec, "status": status}
