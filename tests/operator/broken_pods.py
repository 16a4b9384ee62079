"""Pods that the Pod Security profile `restricted` refuses, each for one reason."""

from __future__ import annotations

from typing import Any

from sandgate.operator.manifests import Json

CONTAINER: Json = {
    "name": "c",
    "image": "nowhere/nothing",
    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
}
GOOD_POD: Json = {
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    "containers": [CONTAINER],
}


def pod(**fields: Any) -> Json:
    return GOOD_POD | fields


def with_pod(**security: Any) -> Json:
    return pod(securityContext=GOOD_POD["securityContext"] | security)


def with_container(**fields: Any) -> Json:
    return pod(containers=[CONTAINER | fields])


def security(**fields: Any) -> Json:
    return with_container(securityContext=CONTAINER["securityContext"] | fields)


BROKEN: dict[str, Json] = {
    "hostNetwork is true": pod(hostNetwork=True),
    "hostPID is true": pod(hostPID=True),
    "volume x is of type hostPath": pod(volumes=[{"name": "x", "hostPath": {"path": "/"}}]),
    "sysctl kernel.msgmax": with_pod(sysctls=[{"name": "kernel.msgmax", "value": "1"}]),
    "pod: runAsUser is 0": with_pod(runAsUser=0),
    "c: runAsUser is 0": security(runAsUser=0),
    "c: runAsNonRoot is not true": security(runAsNonRoot=False),
    "c: privileged": security(privileged=True, allowPrivilegeEscalation=True),
    "c: allowPrivilegeEscalation is not false": security(allowPrivilegeEscalation=True),
    "c: does not drop ALL capabilities": security(capabilities={}),
    "c: adds capabilities SYS_ADMIN": security(
        capabilities={"drop": ["ALL"], "add": ["SYS_ADMIN"]}, allowPrivilegeEscalation=True
    ),
    "c: seccompProfile is Unconfined": security(seccompProfile={"type": "Unconfined"}),
    "c: seccompProfile is not RuntimeDefault or Localhost": with_container()
    | {"securityContext": {"runAsNonRoot": True}},
    "c: procMount": security(procMount="Unmasked") | {"hostUsers": False},
    "c: seLinuxOptions": security(seLinuxOptions={"user": "root"}),
    "c: appArmorProfile is Unconfined": security(appArmorProfile={"type": "Unconfined"}),
    "c: hostPort": with_container(ports=[{"containerPort": 1, "hostPort": 1}]),
    "c: livenessProbe names a host": with_container(
        livenessProbe={"httpGet": {"host": "h", "port": 1, "path": "/"}}
    ),
    "init: does not drop ALL capabilities": pod(
        initContainers=[CONTAINER | {"name": "init", "securityContext": {"allowPrivilegeEscalation": False}}]
    ),
}
