"""NetworkPolicies of a job: who may talk to whom. (pure)

Policies add up. Whoever needs more (a verifier that asks a judge, remote agents, weights sent straight to
engines) gets it by a policy of their own that selects our labels `sandgate.dev/job` and `sandgate.dev/role`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sandgate.contract.job import Isolation, RolloutJob
from sandgate.contract.labels import AGENT, ENGINE, GATEWAY, MANAGED_BY, MANAGER, VERIFIER, WALLED
from sandgate.contract.media_hosts import origin_of
from sandgate.contract.names import engines_name, gateways_name
from sandgate.operator.manifests.base import HTTP_PORT, Json, engine_pods, metadata, pods_of
from sandgate.operator.settings import Settings

DNS_PORTS: Final = (53, 5353)
"""Policies see a pod's own port, behind the Service's: CoreDNS has 53, OpenShift's DNS pods 5353."""
NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
"""Label that the API server gives every namespace."""


LINK_LOCAL: Final = {"0.0.0.0/0": ("169.254.0.0/16",), "::/0": ("fe80::/10",)}
PRIVATE: Final = {
    "0.0.0.0/0": ("10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "172.16.0.0/12", "192.168.0.0/16"),
    "::/0": ("fc00::/7", "fe80::/10"),
}
"""Blocks, and what of them stays closed."""

CLOSED: Final = "sandgate-walled"
"""Name of the policy that every namespace with jobs has."""
ANY: Final = "*"
"""Of namespaces: all of them."""


def sandbox_policy(job: RolloutJob, settings: Settings) -> list[Json]:
    """All NetworkPolicies of a job; they are part of `gateway_objects` and `engine_objects`. Beside `closed_policy`,
    which is its namespace's."""
    return [*sandbox_policies(job, settings), gateway_policy(job, settings), *engine_policies(job, settings)]


def sandbox_policies(job: RolloutJob, settings: Settings) -> list[Json]:
    """Agents (unless isolation is Off) and verifiers: the job's gateways and DNS; nobody reaches them."""
    name = job.metadata.name
    rules = [to_gateways(job), to_dns(settings)]
    verifiers = policy(job, f"{name}-verifiers", VERIFIER, egress=rules, ingress=[])
    if job.spec.agent.isolation is Isolation.OFF:
        return [verifiers]
    more = [dict(rule) for rule in job.spec.agent.egress]
    return [policy(job, f"{name}-agents", AGENT, egress=[*rules, *more], ingress=[]), verifiers]


def closed_policy(job: RolloutJob) -> Json:
    """Of a namespace: its sandboxes reach nothing, and nothing reaches them, but for what their job's own policies add.
    It is nobody's and stays: a job that is deleted loses its policies at once, and its pods a while later, in which
    they would be open."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {
            "name": CLOSED,
            "namespace": job.metadata.namespace,
            "labels": {MANAGED_BY: MANAGER},
        },
        "spec": {
            "podSelector": {"matchLabels": {WALLED: "true"}},
            "policyTypes": ["Ingress", "Egress"],
        },
    }


def gateway_policy(job: RolloutJob, settings: Settings) -> Json:
    """Gateways: reached by the job's agents and verifiers, the operator, trainers, who reads metrics, and the proxies
    that bring remote agents from outside."""
    peers = [
        {"podSelector": {"matchLabels": pods_of(job, AGENT)}},
        {"podSelector": {"matchLabels": pods_of(job, VERIFIER)}},
        {"namespaceSelector": in_namespace(settings.operator_namespace)}
        | {"podSelector": {"matchLabels": settings.operator_labels}},
        *trainers(settings, settings.trainer_namespaces),
        *settings.gateway_scrapers,
        *(settings.external_peers if settings.external_url else ()),
    ]
    ingress = [{"from": peers, "ports": tcp(HTTP_PORT)}]
    return policy(
        job, gateways_name(job.metadata.name), GATEWAY, ingress=ingress, egress=gateway_egress(job, settings)
    )


def trainers(settings: Settings, namespaces: Sequence[str]) -> list[Json]:
    """Pods with the label, which who makes pods may set: of the job's namespace, and of those that an administrator
    names."""
    label = {"podSelector": {"matchLabels": settings.trainer_labels}}
    if ANY in namespaces:
        return [{"namespaceSelector": {}, **label}]
    others = [{"namespaceSelector": in_namespace(name), **label} for name in namespaces if name]
    return [label, *others]


def gateway_egress(job: RolloutJob, settings: Settings) -> list[Json] | None:
    """The engines, DNS and hosts of images; None, which is anything, where an address is not known: engines given as
    URLs have names, and policies only know pods and IP blocks; a Postgres is named in a Secret; a Parquet output is any
    store's URL."""
    found = engine_pods(job)
    if found is None or job.spec.gateway.journal.postgres is not None or job.spec.output.parquet is not None:
        return None
    labels, port = found
    engines = {"to": [{"podSelector": {"matchLabels": labels}}], "ports": tcp(port)}
    return [engines, to_dns(settings), *to_image_hosts(job)]


def to_image_hosts(job: RolloutJob) -> list[Json]:
    """Egress rules: policies know no names, so that a host that has one is any public address at its port; with
    `privateAddresses` it may be a Service, whose pods have other ports: any but link-local ones."""
    media = job.spec.gateway.media
    origins = [origin_of(entry) for entry in media.allowed_hosts]
    rules: list[Json] = [
        {"to": [{"ipBlock": {"cidr": f"{origin.ip}/{origin.ip.max_prefixlen}"}}], "ports": tcp(origin.port)}
        for origin in origins
        if origin.ip is not None
    ]
    named = sorted({origin.port for origin in origins if origin.ip is None})
    if not named:
        return rules
    closed = LINK_LOCAL if media.private_addresses else PRIVATE
    blocks = [{"ipBlock": {"cidr": cidr, "except": list(less)}} for cidr, less in closed.items()]
    ports = {} if media.private_addresses else {"ports": [rule for port in named for rule in tcp(port)]}
    return [*rules, {"to": blocks, **ports}]


def engine_policies(job: RolloutJob, settings: Settings) -> list[Json]:
    """Managed engines: reached by this job's gateways, by trainers, and by whom an administrator lets read metrics.
    Their control endpoints have no password, so a trainer's namespace is named for engines by itself: at gateways it
    needs a key. Trainers reach every port: NCCL picks its own. Pods found by a selector are not ours to close: others
    may use them."""
    if job.spec.engine.managed is None:
        return []
    peers = [{"podSelector": {"matchLabels": pods_of(job, GATEWAY)}}, *settings.engine_scrapers]
    ingress: list[Json] = [{"from": peers, "ports": tcp(HTTP_PORT)}]
    ingress.append({"from": trainers(settings, settings.engine_trainer_namespaces)})
    return [policy(job, engines_name(job.metadata.name), ENGINE, ingress=ingress)]


def policy(
    job: RolloutJob,
    name: str,
    role: str,
    *,
    ingress: list[Json] | None = None,
    egress: list[Json] | None = None,
) -> Json:
    """For the job's pods of a role; a direction that is None is left open."""
    types = [kind for kind, rules in (("Ingress", ingress), ("Egress", egress)) if rules is not None]
    spec: Json = {"podSelector": {"matchLabels": pods_of(job, role)}, "policyTypes": types}
    if ingress:
        spec["ingress"] = ingress
    if egress:
        spec["egress"] = egress
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(job, name, role),
        "spec": spec,
    }


def to_gateways(job: RolloutJob) -> Json:
    """Egress rule."""
    return {"to": [{"podSelector": {"matchLabels": pods_of(job, GATEWAY)}}], "ports": tcp(HTTP_PORT)}


def to_dns(settings: Settings) -> Json:
    """Egress rule."""
    peer = {
        "namespaceSelector": in_namespace(settings.dns_namespace),
        "podSelector": {"matchLabels": settings.dns_labels},
    }
    ports = [{"protocol": protocol, "port": port} for port in DNS_PORTS for protocol in ("UDP", "TCP")]
    blocks = [{"ipBlock": {"cidr": cidr}} for cidr in settings.dns_cidrs]
    return {"to": [peer, *blocks], "ports": ports}


def in_namespace(name: str) -> Json:
    """namespaceSelector; every namespace where none is named."""
    return {"matchLabels": {NAMESPACE_NAME: name}} if name else {}


def tcp(port: int) -> list[Json]:
    """`ports` of a rule."""
    return [{"protocol": "TCP", "port": port}]
