"""The job that a trainer in verl runs, from the manifest that a person wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sandgate.contract.choices import LogprobsMode
from sandgate.contract.errors import BadManifest
from sandgate.contract.job import EngineSpec, LeaseOutput, OutputSpec, RolloutJob
from sandgate.trainer.verl.jobs.settings import JobSettings

VALIDATION = "-val"
"""Behind the name of the job that validates: its sessions are sampled in another way, and so are of another job."""
NAME_MAX = 40
"""Characters of a name that leave room for it."""


def job_of(job: RolloutJob, settings: JobSettings, endpoints: Sequence[str], *, validate: bool) -> RolloutJob:
    """The manifest, with verl's values for what verl decides: engine, tokenizer, window, samples for each prompt, how
    they are sampled, and how far rollouts lag. Raises BadManifest for a job whose tasks are not pushed."""
    spec = job.spec
    if spec.tasks.queue is None:
        raise BadManifest(
            "spec.tasks: verl pushes its prompts, so this job's tasks are a queue: `tasks: {queue: {}}`",
            field="spec.tasks",
        )
    kind = settings.validation if validate else settings.train
    name = job.metadata.name[: NAME_MAX - len(VALIDATION)].rstrip("-") if validate else job.metadata.name
    return replace(
        job,
        metadata=replace(job.metadata, name=name + VALIDATION if validate else name),
        spec=replace(
            spec,
            model=replace(spec.model, tokenizer=settings.tokenizer, max_model_len=settings.max_model_len),
            engine=EngineSpec(
                endpoints=tuple(endpoints),
                kind=spec.engine.kind,
                logprobs_mode=LogprobsMode(settings.logprobs_mode),
            ),
            group_size=kind.n,
            sampling=replace(spec.sampling, **kind.sampling, override=True),
            staleness=None,
            output=OutputSpec(lease=LeaseOutput()),
        ),
    )
