"""The Pod Security profile `restricted` (Kubernetes 1.35), as a checker of PodSpecs: what admission would say.

By kubernetes.io/docs/concepts/security/pod-security-standards; Linux pods only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

VOLUMES = frozenset(
    "configMap csi downwardAPI emptyDir ephemeral image persistentVolumeClaim projected secret".split()
)
SECCOMP = ("RuntimeDefault", "Localhost")
SELINUX_TYPES = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")
SYSCTLS = frozenset(
    "kernel.shm_rmid_forced net.ipv4.ip_local_port_range net.ipv4.ip_unprivileged_port_start net.ipv4.tcp_syncookies"
    " net.ipv4.ping_group_range net.ipv4.ip_local_reserved_ports net.ipv4.tcp_keepalive_time"
    " net.ipv4.tcp_fin_timeout net.ipv4.tcp_keepalive_intvl net.ipv4.tcp_keepalive_probes".split()
)
ADDED = frozenset({"NET_BIND_SERVICE"})


def violations(pod: Mapping[str, Any]) -> list[str]:
    """Why `restricted` refuses this PodSpec; empty if it does not."""
    return [*_pod(pod), *(said for one in containers(pod) for said in _container(one, pod))]


def containers(pod: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for kind in ("initContainers", "containers", "ephemeralContainers"):
        yield from pod.get(kind, ())


def _pod(pod: Mapping[str, Any]) -> Iterator[str]:
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if pod.get(name):
            yield f"{name} is true"
    for volume in pod.get("volumes", ()):
        if kinds := set(volume) - {"name"} - VOLUMES:
            yield f"volume {volume['name']} is of type {', '.join(sorted(kinds))}"
    context = pod.get("securityContext", {})
    for sysctl in context.get("sysctls", ()):
        if sysctl["name"] not in SYSCTLS:
            yield f"sysctl {sysctl['name']}"
    yield from _shared("pod", context)


def _container(one: Mapping[str, Any], pod: Mapping[str, Any]) -> Iterator[str]:
    name, context, of_pod = one["name"], one.get("securityContext", {}), pod.get("securityContext", {})
    yield from _shared(name, context)
    if context.get("privileged"):
        yield f"{name}: privileged"
    if context.get("allowPrivilegeEscalation") is not False:
        yield f"{name}: allowPrivilegeEscalation is not false"
    if context.get("procMount", "Default") != "Default":
        yield f"{name}: procMount"
    capabilities = context.get("capabilities", {})
    if "ALL" not in capabilities.get("drop", ()):
        yield f"{name}: does not drop ALL capabilities"
    if added := set(capabilities.get("add", ())) - ADDED:
        yield f"{name}: adds capabilities {', '.join(sorted(added))}"
    if context.get("runAsNonRoot", of_pod.get("runAsNonRoot")) is not True:
        yield f"{name}: runAsNonRoot is not true"
    if (context.get("seccompProfile") or of_pod.get("seccompProfile", {})).get("type") not in SECCOMP:
        yield f"{name}: seccompProfile is not {' or '.join(SECCOMP)}"
    if any(port.get("hostPort") for port in one.get("ports", ())):
        yield f"{name}: hostPort"
    for probe in ("livenessProbe", "readinessProbe", "startupProbe"):
        if one.get(probe, {}).get("httpGet", {}).get("host") or one.get(probe, {}).get("tcpSocket", {}).get(
            "host"
        ):
            yield f"{name}: {probe} names a host"


def _shared(name: str, context: Mapping[str, Any]) -> Iterator[str]:
    """What a pod's and a container's securityContext have in common."""
    if context.get("runAsUser") == 0:
        yield f"{name}: runAsUser is 0"
    if context.get("appArmorProfile", {}).get("type") == "Unconfined":
        yield f"{name}: appArmorProfile is Unconfined"
    if context.get("seccompProfile", {}).get("type") == "Unconfined":
        yield f"{name}: seccompProfile is Unconfined"
    linux = context.get("seLinuxOptions", {})
    if linux.get("type", "") not in SELINUX_TYPES or linux.get("user") or linux.get("role"):
        yield f"{name}: seLinuxOptions"
