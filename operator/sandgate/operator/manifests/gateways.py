"""The job's gateways in a cluster: a StatefulSet and what it needs. (pure)"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Final

from sandgate.contract import endpoints
from sandgate.contract.job import Beside, RolloutJob
from sandgate.contract.keys import Key, Scope, mint
from sandgate.contract.labels import EXPIRES, GATEWAY, labels
from sandgate.contract.names import gateways_name, signing_name, trainer_name
from sandgate.operator.manifests.base import (
    HTTP,
    HTTP_PORT,
    NODE,
    Json,
    container_security,
    engine_pods,
    gateway_origin,
    gpu_tolerations,
    headless,
    metadata,
    one_at_a_time,
    pod_security,
    pods_of,
    probe,
    pull_secrets,
    secret_data,
    service_host,
)
from sandgate.operator.manifests.external import external_objects
from sandgate.operator.manifests.gateway_config import gateway_config
from sandgate.operator.manifests.models import tokenizer_path
from sandgate.operator.manifests.overlay import Ours, lay_over
from sandgate.operator.manifests.policies import gateway_policy, sandbox_policies
from sandgate.operator.plan.ends import stamp
from sandgate.operator.settings import Settings

CONFIG_DIR, SECRET_DIR, JOURNAL_DIR = "/etc/sandgate/config", "/etc/sandgate/signing", "/journal"
CONFIG_KEY: Final = "gateway.json"
CONFIG_HASH: Final = "sandgate.dev/config"
"""Annotation of the pods: another configuration is another template, which rolls them."""
DSN: Final = "SANDGATE_JOURNAL_DSN"
NODE_NAME: Final = "NODE_NAME"

DRAIN_S: Final = 25
"""limits.drain_s of a gateway."""
GRACE_S: Final = 60
"""After SIGTERM: the drain, 5 s for connections that stay, and a journal that is closed on a slow disk."""
assert GRACE_S > DRAIN_S + 5
TMP_SIZE: Final = "1Gi"
"""Nothing of ours is kept there; libraries put a few kB."""
START_S: Final = 900
"""A journal of a million turns is replayed in about a minute; a slow volume takes longer to come than that."""
LIVE_S: Final = 180
"""A full disk that is emptied in that time costs no restart; a process that hangs costs no more."""

OURS: Final = Ours(
    container="gateway",
    fields=("command", "args", "ports", "workingDir"),
    volumes=("config", "signing", "journal", "tmp"),
    mounts=(CONFIG_DIR, SECRET_DIR, JOURNAL_DIR, "/tmp"),
    env=("POD_NAME", NODE_NAME, DSN),
    grace_s=GRACE_S,
    restricted=True,
)
PATH: Final = "spec.gateway.template"


def gateway_objects(
    job: RolloutJob,
    settings: Settings,
    *,
    engine_urls: Sequence[str],
    secret_hex: str,
    running: bool = True,
    key_expires: float = 0.0,
) -> list[Json]:
    """Everything of the gateways, in the order in which it is to be applied. `secret_hex`: 32 random bytes, made once
    and then read back: the signing Secret is immutable. `engine_urls` may be empty and may change: gateways are told of
    changes by PUT /v1/engines, and do not roll for them. `running` False: scaled to nothing. `key_expires`: of the
    trainer's key, in unix seconds; 0.0 is never.

    Raises BadManifest for a template that would break them."""
    config = _config(job, settings, engine_urls)
    return [
        *sandbox_policies(job, settings),
        gateway_policy(job, settings),
        _signing(job, secret_hex),
        trainer_secret(job, settings, secret_hex, key_expires),
        _config_map(job, config),
        # Not ready pods have names too: a gateway that restarts is found again at once, and its callers are answered
        # as soon as it listens.
        headless(job, gateways_name(job.metadata.name), GATEWAY, not_ready=True),
        *external_objects(job, settings),
        # A single replica may be evicted, on purpose: it drains, and its journal and name come back on another node; to
        # forbid it would block every node drain for as long as the job.
        one_at_a_time(job, gateways_name(job.metadata.name), GATEWAY),
        _stateful_set(job, settings, config, running=running),
    ]


def _signing(job: RolloutJob, secret_hex: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(job, signing_name(job.metadata.name), GATEWAY),
        "type": "Opaque",
        "immutable": True,
        "data": secret_data(secret=secret_hex),
    }


def trainer_secret(job: RolloutJob, settings: Settings, secret_hex: str, expires_at: float) -> Json:
    """What a trainer reads or mounts: the same for the same arguments. `expires_at`: unix seconds; 0.0 is never."""
    name, namespace = job.metadata.name, job.metadata.namespace
    key = mint(bytes.fromhex(secret_hex), Key(Scope.TRAINER, job=name, expires_at=expires_at))
    every = range(job.spec.gateway.replicas)
    origins = ",".join(gateway_origin(name, index, namespace, settings) for index in every)
    until = {"annotations": {EXPIRES: stamp(expires_at)}} if expires_at else {}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": metadata(job, trainer_name(name), GATEWAY) | until,
        "type": "Opaque",
        "data": secret_data(api_key=key, origins=origins),
    }


def _config(job: RolloutJob, settings: Settings, engine_urls: Sequence[str]) -> Json:
    name = gateways_name(job.metadata.name)
    host = service_host(name, job.metadata.namespace, settings)
    postgres = job.spec.gateway.journal.postgres is not None
    config = gateway_config(
        job,
        listen={"host": settings.listen_host, "port": HTTP_PORT},
        origin=f"http://$(POD_NAME).{host}:{HTTP_PORT}",
        journal=f"$({DSN})" if postgres else f"{JOURNAL_DIR}/$(POD_NAME).sqlite",
        urls=engine_urls,
        tokenizer=tokenizer_path(job.spec, settings),
        secret_file=f"{SECRET_DIR}/secret",
        name=journal_name(job, "$(POD_NAME)") if postgres else "",
        place="$(POD_NAME)",
    )
    config["engine"]["wait"] = True
    config["node"] = f"$({NODE_NAME})"
    config["log_level"] = settings.gateway_log_level.upper()
    kept = {"drain_s": DRAIN_S, "retire_s": settings.retire_seconds}
    config["limits"] = kept | config.get("limits", {})
    if (files := job.spec.output.parquet) is not None:
        config["output"] = {"parquet": files.url}
    return config


def journal_name(job: RolloutJob, pod: str) -> str:
    """Of a gateway's journal in a shared database. The job's uid is in it: a job of the same name that is made later is
    another job, and must not go on with what this one left. `<namespace>/<job>-gateway-<index>/<uid>`."""
    return f"{job.metadata.namespace}/{pod}/{job.metadata.uid}"


def _config_map(job: RolloutJob, config: Json) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(job, gateways_name(job.metadata.name), GATEWAY),
        "data": {CONFIG_KEY: json.dumps(config, indent=1, sort_keys=True) + "\n"},
    }


def _hash(config: Json) -> str:
    """Of what a running gateway cannot be told, and cannot do without. How much it logs is neither: another level is
    for its next start."""
    fixed = config | {"engine": config["engine"] | {"urls": []}, "log_level": "INFO"}
    fixed.pop("peers", None)
    return hashlib.sha256(json.dumps(fixed, sort_keys=True).encode()).hexdigest()[:16]


def _stateful_set(job: RolloutJob, settings: Settings, config: Json, *, running: bool) -> Json:
    name = gateways_name(job.metadata.name)
    spec: Json = {
        "replicas": job.spec.gateway.replicas if running else 0,
        "serviceName": name,
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "RollingUpdate"},
        "revisionHistoryLimit": 2,
        "selector": {"matchLabels": pods_of(job, GATEWAY)},
        "template": _template(job, settings, config),
    }
    if (sqlite := job.spec.gateway.journal.sqlite) is not None:
        claim: Json = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": sqlite.storage}},
        }
        if sqlite.storage_class:
            claim["storageClassName"] = sqlite.storage_class
        # Without the job's shard, which its user may change: this template is the one part that cannot be changed.
        meta = {"name": "journal", "labels": labels(job.metadata.name, GATEWAY)}
        spec["volumeClaimTemplates"] = [{"metadata": meta, "spec": claim}]
        # Scaled down, a journal may still hold what no trainer has acknowledged.
        spec["persistentVolumeClaimRetentionPolicy"] = {"whenDeleted": "Delete", "whenScaled": "Retain"}
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(job, name, GATEWAY),
        "spec": spec,
    }


def _template(job: RolloutJob, settings: Settings, config: Json) -> Json:
    gateway = job.spec.gateway
    mounts = [
        {"name": "config", "mountPath": CONFIG_DIR, "readOnly": True},
        {"name": "signing", "mountPath": SECRET_DIR, "readOnly": True},
        {"name": "tmp", "mountPath": "/tmp"},
    ]
    env: list[Json] = [
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": NODE_NAME, "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
        {"name": "HOME", "value": "/tmp"},
        {"name": "HF_HUB_OFFLINE", "value": "1"},  # the tokenizer is a folder; nothing waits for a hub
    ]
    if gateway.journal.postgres is not None:
        ref = gateway.journal.postgres.secret_ref
        env.append({"name": DSN, "valueFrom": {"secretKeyRef": {"name": ref.name, "key": ref.key}}})
    else:
        mounts.append({"name": "journal", "mountPath": JOURNAL_DIR})
    container: Json = {
        "name": "gateway",
        "image": gateway.image or settings.gateway_image,
        "imagePullPolicy": settings.pull_policy,
        # Not `sandgate gateway`: the image has no command-line libraries.
        "command": ["python", "-m", "sandgate.gateway", "--config", f"{CONFIG_DIR}/{CONFIG_KEY}"],
        "env": env,
        "ports": [{"name": HTTP, "containerPort": HTTP_PORT, "protocol": "TCP"}],
        "resources": settings.gateway_resources,
        "startupProbe": probe(endpoints.HEALTHZ.path, period=2, failures=START_S // 2),
        "livenessProbe": probe(endpoints.HEALTHZ.path, period=10, failures=LIVE_S // 10),
        "readinessProbe": probe(endpoints.READYZ.path, period=5, failures=2),
        "securityContext": container_security() | {"readOnlyRootFilesystem": True},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": mounts,
    }
    names = gateways_name(job.metadata.name), signing_name(job.metadata.name)
    spec: Json = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_S,
        "securityContext": pod_security(),
        "containers": [container],
        "volumes": [
            {"name": "config", "configMap": {"name": names[0]}},
            {"name": "signing", "secret": {"secretName": names[1], "defaultMode": 0o440}},
            {"name": "tmp", "emptyDir": {"sizeLimit": TMP_SIZE}},
        ],
        **_placement(job),
    }
    if settings.pull_secrets:
        spec["imagePullSecrets"] = pull_secrets(settings)
    meta = {
        "labels": metadata(job, "", GATEWAY)["labels"],
        "annotations": {CONFIG_HASH: _hash(config)},
    }
    return lay_over({"metadata": meta, "spec": spec}, gateway.template, PATH, OURS)


def _placement(job: RolloutJob) -> Json:
    """Beside the engines, and there spread over their nodes: turns then cross no network, and no node's end takes all
    gateways. Where engines are given by URLs, or `beside` is Anywhere, nodes with GPUs are left to those who need them.
    """
    placed: Json = {
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": NODE,
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": pods_of(job, GATEWAY)},
            }
        ]
    }
    found = engine_pods(job)
    beside = job.spec.gateway.beside
    if found is None or beside is Beside.ANYWHERE:
        return placed
    term = {"topologyKey": NODE, "labelSelector": {"matchLabels": found[0]}}
    if beside is Beside.REQUIRED:
        affinity: Json = {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
    else:
        affinity = {
            "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]
        }
    return placed | {"affinity": {"podAffinity": affinity}, "tolerations": gpu_tolerations(job)}
