"""A SkyRL generator that runs a RolloutJob: a batch's prompts are its tasks, and agents in sandboxes answer them.

    class Exp(BasePPOExp):
        def get_generator(self, cfg, tokenizer, inference_engine_client):
            return RolloutJobGenerator.local("job.yaml", "out/rollouts", engines=inference_engine_client.server_urls,
                                             config=cfg)

Imports SkyRL (0.3.0); what needs none of it is in the other modules of this package. docs/trainers/skyrl.md.
"""

from __future__ import annotations

import os
import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Self

from skyrl.train.generators.base import GeneratorInterface  # type: ignore[import-not-found]

from sandgate.contract.errors import InvalidBody, Unavailable, Unsupported
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.client.fleet import AsyncFleet
from sandgate.trainer.client.pushed_groups import reasons_of
from sandgate.trainer.credit.reasons import CreditRules
from sandgate.trainer.skyrl.jobs import (
    BatchKind,
    FleetJobs,
    JobLengths,
    JobRunner,
    Jobs,
    LocalJobs,
    rules_of,
    sampling_of,
    task_of,
)
from sandgate.trainer.skyrl.output import to_generator_output

WAIT_S = 3600.0
"""How long a batch waits for its next group. A group of agents that code takes many minutes; a cluster may be full."""
IN_A_ROW = 16
"""Prompts that may give nothing to train on, one after another, where each is a batch of its own (SkyRL's fully
asynchronous trainer): a hard prompt is no reason to end a run, and a broken agent is."""
NAME_CHARS = 200
"""Of SkyRL's name of a prompt, in the name of its task, which has room for 256."""


class RolloutJobGenerator(GeneratorInterface):  # type: ignore[misc]
    """Made by `local` or `of_fleet`. Its jobs begin with the first batch, and end with `close`."""

    def __init__(
        self,
        jobs: Jobs,
        *,
        public: Sequence[str] = (),
        step_wise: bool = False,
        pad_token_id: int = 0,
        rules: CreditRules | None = None,
        wait_s: float = WAIT_S,
    ) -> None:
        """`public`: columns of the data set that agents see, under `data.public` of their task. `step_wise`,
        `pad_token_id`, `rules`: see `to_generator_output`. `wait_s`: after so many seconds without any group those
        that a batch waits for are given up, as failed."""
        self.public, self.step_wise, self.pad, self.rules = tuple(public), step_wise, pad_token_id, rules
        self._runner = JobRunner(jobs, wait_s)
        self._nothing = 0

    @classmethod
    def local(
        cls,
        manifest: str | os.PathLike[str],
        out: str | os.PathLike[str],
        *,
        engines: Sequence[str],
        config: Any = None,
        **more: Any,
    ) -> Self:
        """Jobs on this machine, started with their first batch in a new folder below `out`: one that trains and one
        that evaluates, each with SkyRL's number of samples and its sampling. `engines`: URLs of SkyRL's inference
        servers. `config`: SkyRL's, for the most tokens of a row (None: the manifest's), and for what becomes of
        truncated episodes (`apply_overlong_filtering`). `more`: see `__init__`. Raises Unsupported for
        `zero_reward_on_non_stop`."""
        lengths = None
        if config is not None:
            lengths = JobLengths.of(config)
            more["rules"] = rules_of(config, more.get("rules"))
        return cls(LocalJobs(Path(manifest), Path(out), tuple(engines), lengths), **more)

    @classmethod
    def of_fleet(
        cls,
        fleet: AbstractAsyncContextManager[AsyncFleet],
        *,
        evaluation: AbstractAsyncContextManager[AsyncFleet] | None = None,
        **more: Any,
    ) -> Self:
        """Jobs that run already, with `tasks: {queue: {}}` and SkyRL's number of samples as `groupSize`:
        `of_fleet(cluster_fleet("shop"))`. Without `evaluation` that job takes those prompts, too. `more`: see
        `__init__`."""
        return cls(FleetJobs(fleet, evaluation), **more)

    async def generate(self, input_batch: Mapping[str, Any]) -> dict[str, Any]:
        """SkyRL's GeneratorOutput, a row for each of `trajectory_ids`, in order; what failed is under mask 0. Raises
        Unavailable if nothing of the batch teaches, or the job is over; Conflict for groups of another size."""
        asked = input_batch.get("trajectory_ids")
        if not asked:
            raise InvalidBody(
                "a batch needs trajectory_ids: SkyRL's trainer gives them", field="trajectory_ids"
            )
        firsts: dict[str, int] = {}
        for at, one in enumerate(asked):
            firsts.setdefault(one.instance_id, at)
        extras = input_batch.get("env_extras") or [None] * len(asked)
        tasks = [
            task_of(_name(uid), input_batch["prompts"][at], extras[at], self.public)
            for uid, at in firsts.items()
        ]
        kind = _kind(input_batch)
        found = await self._runner.groups(kind, tasks, _version(input_batch))
        groups = dict(zip(firsts, found, strict=True))
        made = to_generator_output(
            groups, asked, step_wise=self.step_wise, pad_token_id=self.pad, rules=self.rules,
            evaluation=kind.evaluation,
        )  # fmt: skip
        self._refuse_nothing(groups, made)
        return made

    def _refuse_nothing(self, groups: Mapping[str, Sequence[Trajectory]], made: Mapping[str, Any]) -> None:
        if any(any(mask) for mask in made["loss_masks"]):
            self._nothing = 0
            return
        self._nothing += len(groups)
        if len(groups) > 1 or self._nothing >= IN_A_ROW:
            raise Unavailable(
                f"no session of {self._nothing} prompts gave anything to train on{reasons_of(groups)}"
            )

    def close(self) -> None:
        """End the jobs that this process started, and leave those that it did not. Idempotent; also at exit."""
        self._runner.close()


def _name(uid: str) -> str:
    """Of its task: SkyRL names a prompt the same in every epoch, and a job runs a task once."""
    return f"{uid[:NAME_CHARS]}-{secrets.token_hex(6)}"


def _kind(batch: Mapping[str, Any]) -> BatchKind:
    counts = Counter(one.instance_id for one in batch["trajectory_ids"])
    if len(sizes := set(counts.values())) > 1:
        raise Unsupported(
            f"prompts of this batch have {min(sizes)} to {max(sizes)} samples; a job's groups have one size",
            field="trajectory_ids",
        )
    metadata = batch.get("batch_metadata")
    return BatchKind(
        evaluation=metadata is not None and metadata.training_phase == "eval",
        n=sizes.pop(),
        sampling=sampling_of(batch.get("sampling_params")),
    )


def _version(batch: Mapping[str, Any]) -> int | None:
    """SkyRL's step: weights are new with each."""
    metadata = batch.get("batch_metadata")
    return None if metadata is None else int(metadata.global_step)
