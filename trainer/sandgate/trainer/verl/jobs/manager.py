"""What verl's trainer is configured with: `actor_rollout_ref.rollout.agent.agent_loop_manager_class:
sandgate.trainer.verl.RolloutJobManager`, and `rollout.custom.rollout_job`.

The job and the relays to verl's servers are actors of the driver; the trainer's process does nothing but call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sandgate.operator.local.job import load_job
from sandgate.trainer.verl.calls import GeneratesSequences
from sandgate.trainer.verl.entry import reward_loop_score
from sandgate.trainer.verl.jobs.manifest import job_of
from sandgate.trainer.verl.jobs.relay import close, relay_actor
from sandgate.trainer.verl.jobs.settings import JobSettings, job_settings
from sandgate.trainer.verl.jobs.worker import JobWorker

CALLS = 1_000
"""Of the job's actor at once; `submit` returns at once, `generate` is called by one trainer."""


class RolloutJobWorker(JobWorker):
    """A JobWorker that makes its own parts in its actor."""

    def __init__(
        self, settings: JobSettings, endpoints: Sequence[str], reward_handles: Sequence[Any] | None
    ) -> None:
        from transformers import AutoTokenizer  # type: ignore[import-not-found]

        pad = int(AutoTokenizer.from_pretrained(settings.tokenizer).pad_token_id or 0)
        super().__init__(
            settings, endpoints, pad, reward_loop_score(reward_handles) if reward_handles else None
        )


class RolloutJobManager(GeneratesSequences):
    """verl's agent loop manager, with a RolloutJob behind it. Make it with `create`."""

    def __init__(self, worker: Any, relays: Sequence[Any]) -> None:
        self.worker, self.relays = worker, list(relays)

    @classmethod
    def create(
        cls,
        config: Any,
        llm_client: Any,
        teacher_client: Any = None,
        reward_loop_worker_handles: Sequence[Any] | None = None,
    ) -> RolloutJobManager:
        """Start relays and job. Raises ValueError, BadManifest and what else keeps the job from running; ValueError
        also for a teacher, as distillation needs verl's own agent loop."""
        import ray  # type: ignore[import-not-found]

        if teacher_client:
            raise ValueError("teacher_client: on-policy distillation needs verl's own agent loop")
        settings = job_settings(config)
        job = load_job(settings.manifest)
        job_of(job, settings, ["http://127.0.0.1"], validate=False)  # before anything starts
        rollout = config.actor_rollout_ref.rollout
        told = {
            "model": job.spec.model.name,
            "max_model_len": settings.max_model_len,
            "unique_ids": bool(rollout.get("full_determinism") or False),
        }
        relays = [relay_actor(llm_client, spread=settings.relays > 1, **told) for _ in range(settings.relays)]
        try:
            urls = [url for each in ray.get([relay.start.remote() for relay in relays]) for url in each]
            made = ray.remote(RolloutJobWorker).options(num_cpus=0, max_concurrency=CALLS)
            worker = made.remote(settings, urls, reward_loop_worker_handles)
            ray.get(worker.start.remote())
        except BaseException:
            close(relays)
            raise
        return cls(worker, relays)

    def close(self) -> None:
        """End the jobs and the relays. verl does not call it: they end with its driver."""
        import ray

        ray.get(self.worker.stop.remote())
        ray.kill(self.worker)
        close(self.relays)
