"""Pods of agents and verifiers, made from the job's PodTemplateSpec; their deadlines and defaults. (pure)

The template's author is trusted, the program in it is not. So everything here is a default that the template may change
(more rights included: Kubernetes' own admission decides whether a namespace allows them), except what the session rests
on: labels, owner, restartPolicy Never, our environment, the fetcher as first init container, the deadline.
"""

from __future__ import annotations

import copy
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sandgate.contract.job import Isolation, RolloutJob, Task, TaskDelivery
from sandgate.contract.labels import AGENT, SHARD, VERIFIER, WALLED, labels
from sandgate.contract.names import GROUP as API_GROUP
from sandgate.contract.names import pod_name, verifier_name
from sandgate.contract.session_urls import SessionUrls
from sandgate.operator.manifests.pod_hardening import containers, harden, limit, share, without
from sandgate.operator.plan.session import longest_start
from sandgate.operator.settings import Settings
from sandgate.sandbox.agents import (
    ENV_BYTES_MAX,
    RESULT_PATH,
    TASK_PATH,
    TERMINATION_PATH,
    agent_env,
    prompt_text,
    verifier_env,
)

Json = Any

DEFAULT_CONTAINER: Final = "kubectl.kubernetes.io/default-container"
"""Annotation that names the container which decides how the session ended; kubectl logs and exec read it too."""
FETCHER: Final = "sandgate-fetcher"
"""Name of our init container (entry.py), and of its volume."""
PROMPT_BYTES_MAX: Final = 8192
"""Size limit of a prompt in a pod's environment: longer ones would fill etcd, and come as a file from the gateway.
Where the template itself says $(SANDGATE_PROMPT) it stays a variable up to ENV_BYTES_MAX: the agent reads
nothing else."""
RESULT_BYTES_MAX: Final = 32_768
"""Size limit of a result document: a termination message of 4096 bytes, each of which JSON may spell with six."""
DEADLINE_MARGIN_S: Final = 120
"""Seconds added to start and session seconds: the operator ends a session in time; the deadline ends one whose operator
is gone."""
GRACE_S: Final = 5
"""Seconds between SIGTERM and SIGKILL, as for local agents."""
VOLUME_SIZE: Final = "64Mi"
"""Twice what the fetcher accepts: the file is written aside, then renamed."""
FETCHER_USER: Final = 65532
"""Where the template's pod is root. Else it is the pod's, or the image's own, which is this one, so that clusters that
assign a user (OpenShift) may."""

PROMPT_REFERENCE = "$(SANDGATE_PROMPT)"
PLACEMENT = (
    "affinity dnsConfig dnsPolicy hostAliases hostUsers imagePullSecrets nodeSelector priorityClassName"
    " runtimeClassName schedulerName securityContext serviceAccountName tolerations"
).split()
"""Fields that a verifier's pod takes from the agent's template: where it may run and how images are pulled (a service
account has pull secrets, too; its token is not mounted)."""
AGAIN = ("restartPolicy", "restartPolicyRules")
"""Of a container: whether it is started again within its pod."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodDefaults:
    """Settings of the installation for all sandboxes."""

    fetcher_image: str
    pull_policy: str = "IfNotPresent"
    """imagePullPolicy of the fetcher's image."""
    pull_secrets: tuple[str, ...] = ()
    """Names of imagePullSecrets beside the template's."""
    runtime_class: str = ""
    """runtimeClassName where the template has none."""
    resources: Mapping[str, Json] = field(default_factory=dict)
    """Default `requests` and `limits` of containers of agents and verifiers."""
    fetcher_resources: Mapping[str, Json] = field(default_factory=lambda: Settings().fetcher_resources)
    unreachable_seconds: int = 30
    """Seconds that a pod stays bound to a node that does not answer."""
    probe: tuple[str, ...] = ()
    """Further `host:port` that an agent must not reach, beside the API server."""
    trainer_labels: Mapping[str, str] = field(default_factory=dict)
    """They open gateways and engines; a sandbox carries none of them, whatever its template says."""

    @classmethod
    def of(cls, settings: Settings) -> PodDefaults:
        """What the installation decides about sandboxes."""
        return cls(
            fetcher_image=settings.fetcher_image,
            pull_policy=settings.pull_policy,
            pull_secrets=settings.pull_secrets,
            runtime_class=settings.runtime_class,
            resources=settings.sandbox_resources,
            fetcher_resources=settings.fetcher_resources,
            unreachable_seconds=settings.unreachable_seconds,
            probe=settings.probe,
            trainer_labels=settings.trainer_labels,
        )


def agent_pod(
    job: RolloutJob,
    *,
    session: str,
    group: str,
    namespace: str,
    owner: Json,
    handle: SessionUrls,
    keys_secret: str,
    task: Task,
    sample_index: int,
    look: PodDefaults,
) -> Json:
    """The agent's pod of one attempt, for `create`. The same arguments give the same pod.

    `sample_index` is in the task document that the gateway serves; it is an argument only because local sandboxes take
    it. `keys_secret` has the entry `<session>.api`.
    """
    del sample_index
    spec = job.spec
    template = copy.deepcopy(spec.agent.template)
    pod = template["spec"]
    main = pod["containers"][0]
    main.setdefault("name", "agent")
    delivery = _delivery(job, main, task)
    env = agent_env(
        handle.handle(),
        model=spec.model.name,
        prompt=task.prompt,
        delivery=delivery.value,
        termination_path=main.get("terminationMessagePath") or TERMINATION_PATH,
    )
    key = _secret(keys_secret, f"{session}.api")
    _furnish(main, env, {"OPENAI_API_KEY": key, "ANTHROPIC_API_KEY": key}, look)
    fetch: dict[str, Json] = {}
    if spec.agent.isolation is Isolation.PROBED:
        fetch |= {"SANDGATE_PROBE": ",".join(("kubernetes", *look.probe))}
    if delivery is TaskDelivery.FILE:
        fetch |= {"SANDGATE_TASK_URL": handle.task_url, "SANDGATE_TASK_FILE": TASK_PATH}
    if fetch:
        _fetcher(pod, main, handle, fetch, key, look)
    _settle(pod, look, longest_start(spec) + spec.limits.session_seconds)
    meta = template.get("metadata") or {}
    meta = meta | {"labels": _labels_of(meta, look)}
    ours = _labels(job, AGENT, session, group)
    if job.spec.agent.isolation is not Isolation.OFF:
        ours[WALLED] = "true"
    return _object(pod_name(session), namespace, owner, meta, ours, pod)


def verifier_pod(
    job: RolloutJob,
    *,
    session: str,
    group: str,
    namespace: str,
    owner: Json,
    handle: SessionUrls,
    keys_secret: str,
    task: Task,
    sample_index: int,
    result: bytes,
    look: PodDefaults,
) -> Json:
    """The verifier's pod of one attempt. `result`: agents.result_document of the agent's end, RESULT_BYTES_MAX at most.

    It runs where agents may run. `keys_secret` has the entries `<session>.task` (for the fetcher alone) and
    `<session>.reward`. Raises ValueError if the job has no verifier or the result is too long.
    """
    del task, sample_index  # the gateway serves both: a task's data may be large
    verifier = job.spec.reward.verifier
    if verifier is None:
        raise ValueError("spec.reward.verifier: is missing")
    if len(result) > RESULT_BYTES_MAX:
        raise ValueError(f"result: {len(result)} bytes, at most {RESULT_BYTES_MAX}")
    template = copy.deepcopy(job.spec.agent.template)
    main = copy.deepcopy(dict(verifier.container))
    main.setdefault("name", "verifier")
    pod = _beside(template["spec"], main)
    env = verifier_env(
        handle.handle(),
        model=job.spec.model.name,
        termination_path=main.get("terminationMessagePath") or TERMINATION_PATH,
    )
    _furnish(main, env, {"SANDGATE_REWARD_KEY": _secret(keys_secret, f"{session}.reward")}, look)
    fetch = {
        "SANDGATE_TASK_URL": handle.task_url,
        "SANDGATE_TASK_FILE": TASK_PATH,
        "SANDGATE_RESULT": result.decode("utf-8"),
        "SANDGATE_RESULT_FILE": RESULT_PATH,
    }
    _fetcher(pod, main, handle, fetch, _secret(keys_secret, f"{session}.task"), look)
    _settle(pod, look, longest_start(job.spec) + verifier.seconds)
    meta = {"annotations": (template.get("metadata") or {}).get("annotations")}
    ours = _labels(job, VERIFIER, session, group) | {WALLED: "true"}
    return _object(verifier_name(session), namespace, owner, meta, ours, pod)


def _beside(spec: Json, main: Json) -> Json:
    """A verifier's PodSpec: of the template's it has what says where it runs, and the volumes and resource claims that
    its container names."""
    pod = {name: spec[name] for name in PLACEMENT if name in spec}
    resources = main.get("resources") or {}
    mounted = {mount.get("name") for mount in main.get("volumeMounts") or []}
    claimed = {claim.get("name") for claim in resources.get("claims") or []}
    pod["volumes"] = [volume for volume in spec.get("volumes") or [] if volume.get("name") in mounted]
    if claims := [one for one in spec.get("resourceClaims") or [] if one.get("name") in claimed]:
        pod["resourceClaims"] = claims
    if not resources and "resources" in spec:  # it says nothing of its own: it has what an agent has
        pod["resources"] = spec["resources"]
    return pod | {"containers": [main]}


def _delivery(job: RolloutJob, main: Json, task: Task) -> TaskDelivery:
    if job.spec.agent.task_delivery is TaskDelivery.FILE:
        return TaskDelivery.FILE
    texts = [*(main.get("command") or []), *(main.get("args") or [])]
    texts += [str(entry.get("value") or "") for entry in main.get("env") or []]
    wanted = any(PROMPT_REFERENCE in part for part in texts)
    size = len(prompt_text(task.prompt).encode("utf-8", "surrogatepass"))
    return TaskDelivery.ENV if size <= (ENV_BYTES_MAX if wanted else PROMPT_BYTES_MAX) else TaskDelivery.FILE


def _labels(job: RolloutJob, role: str, session: str, group: str) -> dict[str, str]:
    shard = job.metadata.labels.get(SHARD, "")
    return labels(job.metadata.name, role, session=session, group=group, shard=shard)


def _secret(name: str, key: str) -> Json:
    return {"secretKeyRef": {"name": name, "key": key}}


def plain(text: str) -> str:
    """`text` as an env value that Kubernetes' own `$(NAME)` expansion leaves as it is."""
    return text.replace("$", "$$").encode("utf-8", "replace").decode("utf-8")


def _furnish(main: Json, env: Mapping[str, str], keys: Mapping[str, Json], look: PodDefaults) -> None:
    """Adds our variables to the container, in front, so that `$(SANDGATE_PROMPT)` works in its own; ours win."""
    ours = [
        {"name": name, "valueFrom": keys[name]} if name in keys else {"name": name, "value": plain(value)}
        for name, value in env.items()
    ]
    main["env"] = ours + [entry for entry in main.get("env") or [] if entry.get("name") not in env]
    main.setdefault("terminationMessagePolicy", "File")
    if posixpath.normpath(main.get("workingDir") or ".") == ".":
        main.pop("workingDir", None)  # locally the manifest's folder; in an image, the image's own


def _fetcher(
    pod: Json, main: Json, handle: SessionUrls, env: Mapping[str, str], key: Json, look: PodDefaults
) -> None:
    """Adds the fetcher in front of all containers, also the template's own init containers: they, too, must not run
    before the network policy is in force."""
    entries = [
        {"name": name, "value": plain(value)}
        for name, value in {"SANDGATE_GATEWAY": handle.origin, **env}.items()
    ]
    fetcher: Json = {
        "name": FETCHER,
        "image": look.fetcher_image,
        "imagePullPolicy": look.pull_policy,
        "env": entries,
        "resources": copy.deepcopy(dict(look.fetcher_resources)),
        "securityContext": {"runAsNonRoot": True, "readOnlyRootFilesystem": True},
        "terminationMessagePolicy": "File",
    }
    if (pod.get("securityContext") or {}).get("runAsUser") == 0:
        fetcher["securityContext"] |= {"runAsUser": FETCHER_USER, "runAsGroup": FETCHER_USER}
    if "SANDGATE_TASK_FILE" in env:
        entries.append({"name": "SANDGATE_KEY", "valueFrom": key})
        path = posixpath.dirname(TASK_PATH)
        pod["volumes"] = [
            *(pod.get("volumes") or []),
            {"name": FETCHER, "emptyDir": {"sizeLimit": VOLUME_SIZE}},
        ]
        fetcher["volumeMounts"] = [{"name": FETCHER, "mountPath": path}]
        main["volumeMounts"] = [
            *(main.get("volumeMounts") or []),
            {"name": FETCHER, "mountPath": path, "readOnly": True},
        ]
    pod["initContainers"] = [fetcher, *(pod.get("initContainers") or [])]


def _settle(pod: Json, look: PodDefaults, seconds: int) -> None:
    """Fills in what is the same for agents and verifiers: deadline, pull secrets, security, resources."""
    _once(pod)
    own = pod.get("activeDeadlineSeconds") or seconds + DEADLINE_MARGIN_S
    pod["activeDeadlineSeconds"] = min(own, seconds + DEADLINE_MARGIN_S)
    pod.setdefault("terminationGracePeriodSeconds", GRACE_S)
    if look.pull_secrets:
        named = [*(pod.get("imagePullSecrets") or []), *({"name": name} for name in look.pull_secrets)]
        pod["imagePullSecrets"] = [
            secret for index, secret in enumerate(named) if secret not in named[:index]
        ]
    if look.runtime_class:
        pod.setdefault("runtimeClassName", look.runtime_class)
    harden(pod, look.unreachable_seconds)
    shared = share(pod, look.resources)
    for container in containers(pod):  # a side-car shares the pod's node, and may be the agent's tool
        if container["name"] != FETCHER:
            limit(container, look.resources, shared)
        else:
            container["resources"] = without(container["resources"], shared)
    if not pod.get("volumes"):
        pod.pop("volumes", None)


def _once(pod: Json) -> None:
    """The agent, or the verifier, runs once: its session is one attempt. A side-car may be started again."""
    pod["restartPolicy"] = "Never"
    main = pod["containers"][0]
    for name in AGAIN:
        main.pop(name, None)
    for container in containers(pod):  # a rule of a side-car may start all containers
        if rules := container.get(AGAIN[1]):
            container[AGAIN[1]] = [one for one in rules if one.get("action") != "RestartAllContainers"]


def _labels_of(meta: Mapping[str, Json], look: PodDefaults) -> Json:
    """Those of the template but ours and a trainer's."""
    return {
        name: value
        for name, value in (meta.get("labels") or {}).items()
        if name.partition("/")[0] != API_GROUP and look.trainer_labels.get(name) != value
    }


def _object(
    name: str, namespace: str, owner: Json, meta: Mapping[str, Json], ours: dict[str, str], pod: Json
) -> Json:
    main = {DEFAULT_CONTAINER: pod["containers"][0]["name"]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": {**(meta.get("labels") or {}), **ours},
            "annotations": {**(meta.get("annotations") or {}), **main},
            "ownerReferences": [owner],
        },
        "spec": pod,
    }
