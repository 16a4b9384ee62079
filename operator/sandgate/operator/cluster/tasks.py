"""Reads a job's tasks in a cluster: from its manifest or a ConfigMap, of which it keeps a digest; a queue is read from
its gateways."""

from __future__ import annotations

import io
from collections.abc import Iterable

from sandgate.contract.errors import BadManifest, Unsupported
from sandgate.contract.job import RolloutJob, Task
from sandgate.contract.labels import TASKS
from sandgate.contract.names import gateways_name
from sandgate.operator.cluster.api import Api
from sandgate.operator.cluster.session_objects import check_owner
from sandgate.operator.driver.tasks import read_tasks, unique
from sandgate.operator.plan import frozen_fields


async def fixed_tasks(kube: Api, job: RolloutJob) -> tuple[Task, ...] | None:
    """All tasks that a job will ever have; None for a queue. Raises BadManifest, Unsupported, NotFound."""
    tasks = job.spec.tasks
    if tasks.inline is not None:
        return unique(tasks.inline, "spec.tasks.inline")
    if tasks.queue is not None:
        return None
    if tasks.config_map is None:
        raise Unsupported(
            "spec.tasks.file: needs one machine; use configMap or queue", field="spec.tasks.file"
        )
    name, key = tasks.config_map.name, tasks.config_map.key
    body = await kube.get("ConfigMap", job.metadata.namespace, name)
    text = (body.get("data") or {}).get(key)
    if not isinstance(text, str):
        raise BadManifest(
            f"spec.tasks.configMap.key: ConfigMap {name} has no {key!r}", field="spec.tasks.configMap.key"
        )
    lines = io.StringIO(
        text, newline=None
    )  # as a file's: str.splitlines would cut at U+2028 and others, within a text
    return read_tasks(lines, f"ConfigMap {name}", "spec.tasks.configMap")


def digest(tasks: Iterable[Task]) -> str:
    """Equal for the same tasks, in whatever order and however they are written."""
    return frozen_fields.tasks_digest({task.uid: frozen_fields.task_digest(task) for task in tasks})


async def kept(kube: Api, job: RolloutJob, found: str) -> str:
    """The digest of the tasks that the job began with. Where none is kept yet, `found` is it from now on: that is
    durable before anything begins. Raises Conflict if another operator keeps one just now."""
    name = gateways_name(job.metadata.name)  # it stays as long as the job, and is made before gateways answer
    body = await kube.get("ConfigMap", job.metadata.namespace, name)
    check_owner(body, job.metadata.uid)
    meta = body["metadata"]
    if known := (meta.get("annotations") or {}).get(TASKS):
        return str(known)
    note = {"annotations": {TASKS: found}, "resourceVersion": meta["resourceVersion"]}
    await kube.patch("ConfigMap", job.metadata.namespace, name, {"metadata": note})
    return found
