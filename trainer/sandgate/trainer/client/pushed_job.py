"""The job of a trainer that pushes its prompts, from the manifest that a person wrote. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sandgate.contract.errors import BadManifest
from sandgate.contract.job import EngineSpec, LeaseOutput, OutputSpec, RolloutJob

VALIDATION = "-val"
"""Behind the name of the job that validates: its sessions are sampled in another way, and so are of another job."""
NAME_MAX = 40
"""Characters of a name that leave room for it."""


def served(job: RolloutJob, trainer: str, engine: EngineSpec) -> RolloutJob:
    """The manifest, with the trainer's values for what every trainer that pushes its prompts decides: the engine, and
    how far rollouts lag. Raises BadManifest for a job whose tasks are not pushed."""
    spec = job.spec
    if spec.tasks.queue is None:
        raise BadManifest(
            f"spec.tasks: {trainer} pushes its prompts, so this job's tasks are a queue: `tasks: {{queue: {{}}}}`",
            field="spec.tasks",
        )
    return replace(
        job, spec=replace(spec, engine=engine, staleness=None, output=OutputSpec(lease=LeaseOutput()))
    )


def pushed_job(
    job: RolloutJob,
    trainer: str,
    *,
    engine: EngineSpec,
    group_size: int,
    sampling: Mapping[str, Any],
    validate: bool,
) -> RolloutJob:
    """See `served`; the trainer decides samples for each prompt, and how they are sampled, too."""
    job = served(job, trainer, engine)
    name = job.metadata.name[: NAME_MAX - len(VALIDATION)].rstrip("-") if validate else job.metadata.name
    return replace(
        job,
        metadata=replace(job.metadata, name=name + VALIDATION if validate else name),
        spec=replace(
            job.spec,
            group_size=group_size,
            sampling=replace(job.spec.sampling, **sampling, override=True),
        ),
    )
