"""The job's own engine in a cluster: a Deployment of vLLM and a headless Service. (pure)"""

from __future__ import annotations

import copy
from typing import Any, Final

from sandgate.contract.job import ManagedEngineSpec, RolloutJob
from sandgate.contract.labels import DEFAULT_IMAGE, ENGINE
from sandgate.contract.names import engines_name
from sandgate.operator.manifests.base import (
    HTTP,
    HTTP_PORT,
    Json,
    container_security,
    gpu_tolerations,
    headless,
    metadata,
    one_at_a_time,
    pod_security,
    pods_of,
    probe,
    pull_secrets,
)
from sandgate.operator.manifests.models import weights
from sandgate.operator.manifests.overlay import Ours, lay_over
from sandgate.operator.manifests.policies import engine_policies
from sandgate.operator.manifests.vllm import CPU_ENV, VLLM_ENV, command_names, vllm_argv
from sandgate.operator.settings import Settings

CACHE: Final = "/cache"
CACHE_ENV: Final = {
    "HOME": CACHE,
    "XDG_CACHE_HOME": CACHE,
    "HF_HOME": f"{CACHE}/huggingface",
    "VLLM_CACHE_ROOT": f"{CACHE}/vllm",
    "TRITON_CACHE_DIR": f"{CACHE}/triton",
    "TORCHINDUCTOR_CACHE_DIR": f"{CACHE}/inductor",
    "USER": "sandgate",
    "LOGNAME": "sandgate",
}
"""Our user has no home in anybody's image, and no entry in its passwd, which torch asks for a name."""
SHM_GPU, SHM_CPU = "8Gi", "1Gi"
"""/dev/shm at most: NCCL between the GPUs of a pod, and vLLM's own processes; the runtime's 64 MiB are too few."""
CPU_REQUESTS: Final = {"cpu": "1", "memory": "2Gi"}
"""Of an engine without GPUs; also how many threads it runs."""
START_PERIOD_S: Final = 5
GRACE_S: Final = 60
"""vLLM's own children need a few seconds to go; gateways have drained before, or retry elsewhere."""

CONTAINER: Final = "engine"
OURS: Final = Ours(container=CONTAINER, fields=("command", "args", "ports"))
"""Who the engine runs as and what it may do is its image's and its user's affair."""
PATH: Final = "spec.engine.managed.template"


def engine_objects(job: RolloutJob, settings: Settings, *, running: bool = True) -> list[Json]:
    """The managed engine; nothing for others. Not `running`: no pods. Raises BadManifest for a template that would
    break it."""
    managed = job.spec.engine.managed
    if managed is None:
        return []
    name = engines_name(job.metadata.name)
    deployment: Json = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": metadata(job, name, ENGINE),
        "spec": {
            "replicas": managed.replicas if running else 0,
            "revisionHistoryLimit": 2,
            "progressDeadlineSeconds": managed.start_seconds + 60,
            "selector": {"matchLabels": pods_of(job, ENGINE)},
            # One pod after the other, and none beyond the number: the others go on serving, and nobody has to keep a
            # GPU free for an update.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "template": engine_template(job, managed, settings),
        },
    }
    if not managed.image:
        deployment["metadata"]["annotations"] = {DEFAULT_IMAGE: settings.engine_image}
    # Nodes that are drained together would take all engines at once, and each loads its model for minutes.
    budget = [one_at_a_time(job, name, ENGINE)] if managed.replicas > 1 else []
    return [
        *engine_policies(job, settings),
        headless(job, name, ENGINE, not_ready=False),
        *budget,
        deployment,
    ]


def keep_image(wanted: Json, found: Json) -> Json:
    """The Deployment as wanted, but with the default image that the one in the cluster was made with, if it serves: who
    upgrades the operator starts no running job's engines anew. An engine that is down, or at 0, takes the new one."""
    now, before = _default_image(wanted), _default_image(found)
    serves = wanted["spec"]["replicas"] and (found.get("status") or {}).get("readyReplicas")
    if not now or not before or now == before or not serves:
        return wanted
    kept = copy.deepcopy(wanted)
    kept["metadata"]["annotations"][DEFAULT_IMAGE] = before
    for container in kept["spec"]["template"]["spec"]["containers"]:
        if container["name"] == CONTAINER and container["image"] == now:
            container["image"] = before
    return kept


def _default_image(deployment: Json) -> str:
    """Empty: its job names an image, or it is of an operator that did not note which one it chose."""
    return str((deployment["metadata"].get("annotations") or {}).get(DEFAULT_IMAGE) or "")


def engine_template(job: RolloutJob, managed: ManagedEngineSpec, settings: Settings) -> Json:
    """PodTemplateSpec, with the job's own laid over it.

    It is `restricted`; the image's root file system stays writable, as images write where they like.
    """
    container: Json = {
        "name": CONTAINER,
        "image": managed.image or settings.engine_image,
        "ports": [{"name": HTTP, "containerPort": HTTP_PORT, "protocol": "TCP"}],
        "resources": _resources(managed),
        "startupProbe": probe(
            "/health", period=START_PERIOD_S, failures=-(-managed.start_seconds // START_PERIOD_S)
        ),
        "readinessProbe": probe("/health", period=5, failures=2),
        "livenessProbe": probe("/health", period=10, failures=6),
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {"name": "shm", "mountPath": "/dev/shm"},
            {"name": "cache", "mountPath": CACHE},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
        **_command(job, managed, settings),
    }
    shm = {"medium": "Memory", "sizeLimit": SHM_GPU if managed.gpus else SHM_CPU}
    spec: Json = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,  # a Service named vllm would set VLLM_PORT
        "terminationGracePeriodSeconds": GRACE_S,
        "securityContext": pod_security(),
        "containers": [container],
        "volumes": [
            {"name": "shm", "emptyDir": shm},
            {"name": "cache", "emptyDir": {}},
            {"name": "tmp", "emptyDir": {}},
        ],
    }
    if managed.gpus:
        spec["tolerations"] = gpu_tolerations(job)
    if settings.pull_secrets:
        spec["imagePullSecrets"] = pull_secrets(settings)
    labels = metadata(job, "", ENGINE)["labels"]
    return lay_over({"metadata": {"labels": labels}, "spec": spec}, managed.template, PATH, OURS)


def _resources(managed: ManagedEngineSpec) -> Json:
    if not managed.gpus:
        return {"requests": dict(CPU_REQUESTS)}
    return {"limits": {managed.gpu_resource: str(managed.gpus)}} if managed.gpu_resource else {}


def _command(job: RolloutJob, managed: ManagedEngineSpec, settings: Settings) -> Json:
    """command and env. The kubelet expands $(NAME), from env."""
    model, is_path = weights(job.spec, managed, settings)
    env = CACHE_ENV | VLLM_ENV | ({} if managed.gpus else CPU_ENV)
    if is_path:
        env["HF_HUB_OFFLINE"] = "1"  # files that are there need no hub, and wait for none
    env |= managed.env
    if managed.command:
        argv = [*managed.command, *managed.args]
        env |= command_names(job.spec, model, settings.listen_host, HTTP_PORT)
    else:
        argv = vllm_argv(job.spec, managed, "python3", model, HTTP_PORT, settings.listen_host)
    listed: list[Any] = [{"name": name, "value": value} for name, value in env.items()]
    if not managed.gpus and "OMP_NUM_THREADS" not in env:
        # Threads that wait for each other are 5 times slower: as many as were asked for, not as the node has.
        asked = {"containerName": "engine", "resource": "requests.cpu"}
        listed.append({"name": "OMP_NUM_THREADS", "valueFrom": {"resourceFieldRef": asked}})
    return {"command": argv, "env": listed}
