"""The job that a trainer in verl runs, from the manifest that a person wrote."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sandgate.contract.choices import LogprobsMode
from sandgate.contract.job import EngineSpec, RolloutJob
from sandgate.trainer.client.pushed_job import pushed_job
from sandgate.trainer.verl.jobs.settings import JobSettings


def job_of(job: RolloutJob, settings: JobSettings, endpoints: Sequence[str], *, validate: bool) -> RolloutJob:
    """See `pushed_job`; verl decides tokenizer and window, too, and the most tokens of a row: gateways hold that before
    they sample, as what is longer would be left out, whatever its score. The tokenizer of a job in a cluster is the
    manifest's: pods do not have verl's folder."""
    kind = settings.validation if validate else settings.train
    engine = EngineSpec(
        endpoints=tuple(endpoints),
        kind=job.spec.engine.kind,
        logprobs_mode=LogprobsMode(settings.logprobs_mode),
    )
    made = pushed_job(
        job, "verl", engine=engine, group_size=kind.n, sampling=kind.sampling, validate=validate
    )
    tokenizer = settings.tokenizer if settings.cluster is None else made.spec.model.tokenizer
    model = replace(made.spec.model, tokenizer=tokenizer, max_model_len=settings.max_model_len)
    limits = replace(made.spec.limits, **settings.lengths.limits())
    return replace(made, spec=replace(made.spec, model=model, limits=limits))
