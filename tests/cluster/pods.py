"""Small pods of the test world, restricted as Pod Security wants it, and what became of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.cluster.harness.api import Api
from tests.cluster.harness.images import PYTHON
from tests.cluster.harness.rest import Refused
from tests.support.waiting import until_now

WITHIN_S = 60.0
"""A pod starts in two seconds, on a busy machine in twenty."""
SERVE = "cd /tmp && hostname >index.html && exec python3 -u -m http.server 8000"
IDLE = "exec python3 -c 'import signal; signal.pause()'"

Json = dict[str, Any]


def pod(
    name: str, script: str = IDLE, *, labels: Json | None = None, container: Json | None = None, **spec: Any
) -> Json:
    """A pod that runs a shell script. `container`: fields of its container; `spec`: further fields of its spec."""
    restricted = {
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    main = {
        "name": "main",
        "image": PYTHON,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", script],
        "securityContext": restricted,
        **(container or {}),
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name, **(labels or {})}},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [main], **spec},
    }


def server(name: str, script: str = SERVE, *, container: Json | None = None, **more: Any) -> Json:
    """The same, ready when it listens on port 8000: a process that runs does not yet."""
    probe = {"tcpSocket": {"port": 8000}, "periodSeconds": 1}
    return pod(name, script, container={"readinessProbe": probe, **(container or {})}, **more)


def path(namespace: str, name: str = "") -> str:
    """In the API."""
    return f"/api/v1/namespaces/{namespace}/pods{'/' if name else ''}{name}"


def start(api: Api, namespace: str, *pods: Json) -> None:
    """Create them; returns at once."""
    for body in pods:
        api.rest().create(path(namespace), body)


def look(api: Api, namespace: str, name: str) -> Json:
    """The pod as the API server knows it now."""
    return api.rest().get(path(namespace, name))


def wait(
    api: Api, namespace: str, name: str, so: Callable[[Json], bool], what: str, within_s: float = WITHIN_S
) -> Json:
    """Until the pod is `so`; the pod. AssertionError after a while, with its status."""
    try:
        until_now(lambda: so(look(api, namespace, name)), what=f"pod {name} {what}", within_s=within_s)
    except AssertionError as late:
        raise AssertionError(f"{late}: {look(api, namespace, name)['status']}") from None
    return look(api, namespace, name)


def running(api: Api, namespace: str, name: str) -> Json:
    """Wait until it is ready; the pod."""
    return wait(api, namespace, name, lambda found: ("Ready", "True") in conditions(found), "is ready")


def ended(api: Api, namespace: str, name: str) -> Json:
    """Wait until it succeeded or failed; how its container ended (`exitCode`, `reason`, `message`)."""
    found = wait(api, namespace, name, lambda p: p["status"]["phase"] in ("Succeeded", "Failed"), "ends")
    how: Json = found["status"]["containerStatuses"][0]["state"]["terminated"]
    return how


def gone(api: Api, namespace: str, name: str) -> bool:
    """Whether the API server has forgotten it."""
    try:
        look(api, namespace, name)
    except Refused as refused:
        return refused.status == 404
    return False


def conditions(body: Json) -> set[tuple[str, str]]:
    """Of any object: (type, status)."""
    return {(c["type"], c["status"]) for c in body["status"].get("conditions", ())}


def fetch(api: Api, namespace: str, name: str, url: str) -> str:
    """What a pod gets from a URL within three seconds, or `curl: ...`."""
    return api.kubectl("-n", namespace, "exec", name, "--", "curl", "-sSm3", url, check=False).strip()
