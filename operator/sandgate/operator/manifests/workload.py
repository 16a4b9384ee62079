"""The job's Workload in Kueue: its pods as pod sets; and where Kueue wants them. (pure)"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

from sandgate.contract.job import RolloutJob
from sandgate.contract.labels import PRIORITY_CLASS, QUEUE, VERIFIER
from sandgate.contract.labels import ROLE as ROLE_LABEL
from sandgate.contract.names import workload_name
from sandgate.operator.manifests.base import Json, metadata
from sandgate.operator.manifests.engines import engine_objects
from sandgate.operator.manifests.example_session import NO_SECRET, session_objects
from sandgate.operator.manifests.gateways import gateway_objects
from sandgate.operator.plan.kueue import ENGINES, GATEWAYS, SANDBOXES, Placement, QuotaAsk
from sandgate.operator.settings import Settings

API_VERSION: Final = "kueue.x-k8s.io/v1beta2"
ROLE: Final = "workload"
POD: Final = (
    "nodeSelector tolerations priorityClassName schedulerName runtimeClassName overhead resources restartPolicy"
).split()
"""What of a pod decides how much it takes and which nodes would have it. The rest is not Kueue's to know."""
CONTAINER: Final = ("name", "image", "resources", "restartPolicy")
KINDS: Final = ("initContainers", "containers")
PLACE: Final = ("nodeSelector", "tolerations", "runtimeClassName", "overhead", "resources")
SIZE: Final = ("name", "resources", "restartPolicy")
"""What of a template and its containers another quota may be needed for."""

SETS: Final = {"StatefulSet": GATEWAYS, "Deployment": ENGINES, "Pod": SANDBOXES}
"""Kind of an object that has or is a pod -> its pod set."""


def pod_sets(job: RolloutJob, settings: Settings) -> list[Json]:
    """Of the pods that the job has at once, as they are made. Raises what the objects themselves raise."""
    objects = gateway_objects(job, settings, engine_urls=(), secret_hex=NO_SECRET)
    objects += engine_objects(job, settings)
    found = []
    for body in objects:
        if (name := SETS.get(body["kind"])) is not None:
            spec = body["spec"]
            found.append({"name": name, "count": spec["replicas"], "template": lean(spec["template"])})
    agent, *verifier = (one for one in session_objects(job, settings) if one["kind"] == "Pod")
    template = lean(agent)
    for one in verifier:  # after the agent, never beside it: as an init container counts
        after = lean(one)["spec"]["containers"]
        template["spec"]["initContainers"] = [*template["spec"].get("initContainers", ()), *after]
    return [*found, {"name": SANDBOXES, "count": sandboxes(job), "template": template}]


def sandboxes(job: RolloutJob) -> int:
    """At once; no more than the job has samples, where that is known."""
    spec = job.spec
    if spec.tasks.inline is None:
        return spec.parallelism
    return min(spec.parallelism, max(1, len(spec.tasks.inline) * spec.group_size))


def lean(template: Json) -> Json:
    """Of a pod or its template what quota and placement are about."""
    pod = template["spec"]
    kept: dict[str, Any] = {name: copy.deepcopy(pod[name]) for name in POD if name in pod}
    node = (pod.get("affinity") or {}).get("nodeAffinity")
    if node is not None:
        kept["affinity"] = {"nodeAffinity": copy.deepcopy(node)}
    for kind in KINDS:
        if pod.get(kind):
            kept[kind] = [
                {name: copy.deepcopy(one[name]) for name in CONTAINER if name in one} for one in pod[kind]
            ]
    return {"spec": kept}


def ask_of(job: RolloutJob, settings: Settings) -> QuotaAsk | None:
    """What the job wants of its queue; None: it names none."""
    queue, wanted = job.metadata.labels.get(QUEUE, ""), job.metadata.labels.get(PRIORITY_CLASS, "")
    if not queue:
        return None
    sets = pod_sets(job, settings)
    says = json.dumps([queue, wanted, sets], sort_keys=True)
    return QuotaAsk(
        queue=queue,
        priority_class=wanted,
        counts={one["name"]: one["count"] for one in sets},
        digest=hashlib.sha256(says.encode()).hexdigest()[:16],
        takes=takes(job),
        stopped=job.spec.suspend,
    )


def takes(job: RolloutJob) -> str:
    """Digest of what the job's templates say of its pods' size and place: images, names and the installation's own
    settings are not in it."""
    spec = job.spec
    managed, verifier = spec.engine.managed, spec.reward.verifier
    said = [spec.gateway.template, spec.agent.template, {} if managed is None else managed.template]
    one = {} if verifier is None else {"spec": {"containers": [verifier.container]}}
    text = json.dumps([_size(_map(template)) for template in (*said, one)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _size(template: Mapping[str, Any]) -> list[Any]:
    pod = _map(template.get("spec"))
    listed = [[one.get(name) for name in SIZE] for kind in KINDS for one in pod.get(kind) or [] if _map(one)]
    return [
        {name: pod[name] for name in PLACE if name in pod},
        _map(pod.get("affinity")).get("nodeAffinity"),
        listed,
    ]


def _map(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def workload(
    job: RolloutJob, settings: Settings, ask: QuotaAsk, priority: int | None, notes: dict[str, str]
) -> Json:
    """The object, to be applied. `priority`: the value of the class; `notes`: its annotations."""
    name = workload_name(job.metadata.name, job.metadata.uid)
    meta = metadata(job, name, ROLE)
    meta["labels"]["kueue.x-k8s.io/job-uid"] = job.metadata.uid
    spec: Json = {"queueName": ask.queue, "podSets": pod_sets(job, settings)}
    if ask.stopped:
        spec["active"] = False
    if priority is not None:
        ref = {"group": "kueue.x-k8s.io", "kind": "WorkloadPriorityClass", "name": ask.priority_class}
        spec |= {"priorityClassRef": ref, "priority": priority}
    return {
        "apiVersion": API_VERSION,
        "kind": "Workload",
        "metadata": {**meta, "annotations": notes},
        "spec": spec,
    }


def placed(body: Json, places: Mapping[str, Placement]) -> Json:
    """An object of the job with its pods where Kueue wants them; it itself if it has none, or Kueue says nothing."""
    place = places.get(SETS.get(body["kind"], ""))
    if place is None:
        return body
    out = copy.deepcopy(body)
    pod = out if body["kind"] == "Pod" else out["spec"]["template"]
    _place(pod, place)
    return out


def _place(pod: Json, place: Placement) -> None:
    meta, spec = pod["metadata"], pod["spec"]
    for name, added in (("labels", place.labels), ("annotations", place.annotations)):
        if added:
            meta[name] = {**added, **(meta.get(name) or {})}
    if place.node_selector:
        spec["nodeSelector"] = {**(spec.get("nodeSelector") or {}), **place.node_selector}
    known = spec.get("tolerations") or []
    is_verifier = (meta.get("labels") or {}).get(ROLE_LABEL) == VERIFIER
    for kind in KINDS:
        for one in spec.get(kind) or []:
            _resize(one, place.sizes.get(f"{KINDS[0] if is_verifier else kind}/{one.get('name')}"))
    if more := [dict(one) for one in place.tolerations if one not in known]:
        spec["tolerations"] = [*known, *more]


def _resize(container: Json, size: Json | None) -> None:
    """As it was admitted. None: its set says nothing of it."""
    if size:
        container["resources"] = copy.deepcopy(dict(size))
    elif size is not None:
        container.pop("resources", None)
