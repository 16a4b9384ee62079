"""The way from outside the cluster to a job's gateways, for remote agents: Services and HTTPRoutes. (pure)

A session lives in one gateway, so each gateway has a path of its own under the address that an administrator names:
`<jobs.gateway.external.url>/<namespace>/<gateway>`. Only what agents call is routed; the control API stays inside.
"""

from __future__ import annotations

import re
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from sandgate.contract.job import RolloutJob
from sandgate.contract.labels import GATEWAY
from sandgate.contract.names import gateway_name
from sandgate.contract.session_urls import SESSIONS
from sandgate.operator.manifests.base import HTTP, HTTP_PORT, Json, gateway_origin, metadata, pods_of
from sandgate.operator.settings import Settings

POD_NAME: Final = "statefulset.kubernetes.io/pod-name"
"""Label that the StatefulSet's controller gives each of its pods."""


def agents_origin(job: RolloutJob, index: int, settings: Settings) -> str:
    """What an agent that runs elsewhere reaches gateway `index` by: from outside, if there is a way."""
    namespace = job.metadata.namespace
    if not settings.external_url:
        return gateway_origin(job.metadata.name, index, namespace, settings)
    return f"{settings.external_url}{_path(job, index)}"


def gateway_in(url: str) -> str:
    """Name of the gateway in a session's base URL, from inside the cluster or from outside; empty if it has none."""
    try:
        address = urlsplit(url)
        host = address.hostname or ""
    except ValueError:
        return ""
    outside = re.fullmatch(rf".*/([^/]+){SESSIONS}/[^/]+/v1", address.path)
    return outside[1] if outside is not None else host.partition(".")[0]


def external_objects(job: RolloutJob, settings: Settings) -> list[Json]:
    """A Service for each gateway, and an HTTPRoute if it is known whose: nothing where no address is named."""
    if not settings.external_url:
        return []
    every = range(job.spec.gateway.replicas)
    routes = [_route(job, index, settings) for index in every] if settings.external_parents else []
    return [*(_service(job, index) for index in every), *routes]


def _path(job: RolloutJob, index: int) -> str:
    return f"/{job.metadata.namespace}/{gateway_name(job.metadata.name, index)}"


def _service(job: RolloutJob, index: int) -> Json:
    """With an address: proxies of the Gateway API need not take a headless one."""
    name = gateway_name(job.metadata.name, index)
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(job, name, GATEWAY),
        "spec": {
            "publishNotReadyAddresses": True,  # one that drains still answers, and says when to come again
            "selector": {**pods_of(job, GATEWAY), POD_NAME: name},
            "ports": [{"name": HTTP, "port": HTTP_PORT, "targetPort": HTTP, "protocol": "TCP"}],
        },
    }


def _route(job: RolloutJob, index: int, settings: Settings) -> Json:
    name, address = gateway_name(job.metadata.name, index), urlsplit(settings.external_url)
    outside = f"{address.path}{_path(job, index)}{SESSIONS}"
    rewrite = {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": SESSIONS}}
    rule: Json = {
        "matches": [{"path": {"type": "PathPrefix", "value": outside}}],
        "filters": [{"type": "URLRewrite", "urlRewrite": rewrite}],
        "backendRefs": [{"name": name, "port": HTTP_PORT}],
        "timeouts": {"request": "0s"},  # a turn takes as long as its engine does
    }
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": metadata(job, name, GATEWAY),
        "spec": {
            "parentRefs": [dict(parent) for parent in settings.external_parents],
            **_hostnames(address.hostname or ""),
            "rules": [rule],
        },
    }


def _hostnames(host: str) -> Json:
    """Routes name no addresses: one is served by whatever listens there."""
    try:
        ip_address(host)
    except ValueError:
        return {"hostnames": [host]}
    return {}
