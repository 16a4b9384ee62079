"""Settings of an installation, apart from any job: images, names, defaults; a file that the chart writes. (pure)"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import Any

from sandgate.contract.errors import BadManifest
from sandgate.contract.kinds import INT32_MAX

Json = Any

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("json", "text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Field names are the file's keys. Unknown keys are refused."""

    gateway_image: str = "sandgate-gateway:latest"
    fetcher_image: str = "sandgate-fetcher:latest"
    engine_image: str = "vllm/vllm-openai:latest"
    """Of managed engines that name none."""
    log_level: str = "info"
    """The least that operators log."""
    log_format: str = "json"
    """Of their lines: `json`, one object each, or `text`, for people."""
    gateway_log_level: str = "info"
    """The least that gateways log. One that runs keeps its own until it starts anew."""
    pull_policy: str = "IfNotPresent"
    """Of our own images."""
    pull_secrets: tuple[str, ...] = ()
    """Names of imagePullSecrets of gateways and engines, in the job's namespace."""
    namespaces: tuple[str, ...] = ()
    """Watched; none: all of the cluster."""
    shard: str = ""
    """Only jobs whose label sandgate.dev/shard has this value; empty: those without one."""
    listen_host: str = "0.0.0.0"
    """What gateways and managed engines listen on; who may come is the policies' affair. The operator's own pod knows
    it better than a file: `like_pod`."""
    cluster_domain: str = "cluster.local"
    models_dir: str = "/models"
    """What a relative model.tokenizer begins at, in gateways and engines."""
    runtime_class: str = ""
    """RuntimeClass of sandboxes whose template names none, e.g. gvisor."""
    dns_labels: dict[str, str] = field(default_factory=lambda: {"k8s-app": "kube-dns"})
    """Pods that sandboxes may ask for names, in namespace dns_namespace."""
    dns_namespace: str = "kube-system"
    dns_cidrs: tuple[str, ...] = ()
    """Blocks that may be asked for names besides, as that of NodeLocal DNSCache, which answers at an address of the
    node and is no pod to a policy."""
    trainer_labels: dict[str, str] = field(default_factory=lambda: {"sandgate.dev/trainer": "true"})
    """Pods that may reach the gateways' control API besides the operator: of a job's namespace, and of those below."""
    trainer_namespaces: tuple[str, ...] = ()
    """Who makes pods in one of these may knock at every job's gateways; `*` is all namespaces."""
    gateway_scrapers: tuple[Json, ...] = ()
    """NetworkPolicyPeers that may reach gateways, for their /metrics; nothing else there answers without a key."""
    engine_scrapers: tuple[Json, ...] = ()
    """The same of managed engines. Whoever reaches one may also sample, pause it and load weights: it knows no keys."""
    engine_trainer_namespaces: tuple[str, ...] = ()
    """Namespaces whose pods with a trainer's labels may reach managed engines, besides the job's own; `*` is all."""
    external_url: str = ""
    """Where remote agents find the gateways from outside the cluster: https://host[/path], without a slash at its end.
    Empty: nowhere."""
    external_parents: tuple[Json, ...] = ()
    """Gateways of the Gateway API that serve that address, as parentRefs of an HTTPRoute. None: whoever routes it
    otherwise finds a Service of each gateway's name."""
    external_peers: tuple[Json, ...] = ()
    """NetworkPolicyPeers of their proxies, which may reach gateways."""
    operator_namespace: str = ""
    """Where the operator runs; its pods may reach gateways."""
    operator_labels: dict[str, str] = field(
        default_factory=lambda: {"app.kubernetes.io/name": "sandgate-operator"}
    )
    gateway_resources: dict[str, Json] = field(
        default_factory=lambda: {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "4Gi"}}
    )
    sandbox_resources: dict[str, Json] = field(
        default_factory=lambda: {
            "requests": {"cpu": "100m", "memory": "128Mi", "ephemeral-storage": "64Mi"},
            "limits": {"memory": "4Gi", "ephemeral-storage": "8Gi"},
        }
    )
    """Of agents' and verifiers' containers, where they say nothing; a limit also where they say other things. What has
    no limit takes its node's, and others pay for it. (Processes are bounded by the kubelet alone: podPidsLimit.)"""
    fetcher_resources: dict[str, Json] = field(
        default_factory=lambda: {
            "requests": {"cpu": "10m", "memory": "32Mi", "ephemeral-storage": "64Mi"},
            "limits": {"memory": "128Mi", "ephemeral-storage": "128Mi"},
        }
    )
    """Of the init container in front of each sandbox."""
    probe: tuple[str, ...] = ("169.254.169.254:80",)
    """`host:port` that an agent must not reach, beside the API server: a cloud's metadata, which gives a node's
    credentials. Nothing starts where one answers."""
    unreachable_seconds: int = 30
    """tolerationSeconds of sandboxes on a node that is gone."""
    retire_seconds: int = 600
    """A gateway deletes what a group sampled this long after a trainer acknowledged all of it; 0: never, and its volume
    is full one day."""
    trainer_key_seconds: int = 2_592_000
    """A trainer's key is good for that long at most, 30 days, and is made anew when half of it is over; 0: for ever."""
    kueue: bool = False
    """Jobs that name a queue of Kueue wait in it. Without it they never run."""
    failed_pods: int = 10
    """Ended pods of sessions that failed of their agent or of the infrastructure, kept per job for their logs: the
    newest, until the job goes."""
    history: int = 1000
    """Committed AgentSessions kept per job for people to look at."""

    @classmethod
    def of(cls, text: str | bytes, source: str = "operator settings") -> Settings:
        """From the file's text. Raises BadManifest naming the field; `source` is named first."""
        try:
            said = json.loads(text)
        except (ValueError, RecursionError) as error:  # also: bytes that are no text
            raise BadManifest(f"{source}: not JSON: {error}") from error
        if not isinstance(said, dict):
            raise BadManifest(f"{source}: must be an object")
        known = {one.name: one for one in dataclasses.fields(cls)}
        for name, value in said.items():
            if name not in known:
                raise BadManifest(f"{source}: unknown key {name!r}", field=name)
            if wrong := _wrong(value, getattr(cls(), name), str(known[name].type), CHOICES.get(name, ())):
                raise BadManifest(f"{source}: {name} {wrong}", field=name)
        fields: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in said.items()
        }
        return cls(**fields)

    def like_pod(self, address: str) -> Settings:
        """For pods of the family of this one's address, empty if unknown: where theirs is IPv6, probes and agents ask
        that. `::` is both families."""
        return dataclasses.replace(self, listen_host="::") if ":" in address else self


CHOICES = {"log_level": LOG_LEVELS, "log_format": LOG_FORMATS, "gateway_log_level": LOG_LEVELS}


def _wrong(value: Any, default: Any, hint: str, words: tuple[str, ...]) -> str:
    """Why a setting may not be this. `hint`: its type, as it is written."""
    wanted: Any = list if isinstance(default, tuple) else type(default)
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        return f"must be {wanted.__name__}"
    if wanted is int and not 0 <= value <= INT32_MAX:
        return f"must be 0 to {INT32_MAX}"
    if words and value not in words:
        return f"must be one of {', '.join(words)}"
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    json_inside = "Json" in hint
    if not all(isinstance(one, dict | list if json_inside else str) for one in parts):
        return f"must hold {'objects' if json_inside else 'text'} only"
    return ""
