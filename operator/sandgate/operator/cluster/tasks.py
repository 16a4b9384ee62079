"""Reads a job's tasks in a cluster: from its manifest or a ConfigMap; a queue is read from its gateways."""

from __future__ import annotations

import io

from sandgate.contract.errors import BadManifest, Unsupported
from sandgate.contract.job import RolloutJob, Task
from sandgate.operator.cluster.api import Api
from sandgate.operator.driver.tasks import read_tasks, unique


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
    return unique(read_tasks(lines, f"ConfigMap {name}"), "spec.tasks.configMap")
