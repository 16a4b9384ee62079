"""The jobs of a SkyRL generator: batches of prompts in, their groups out. Imports nothing of SkyRL."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from sandgate.contract.errors import InvalidBody, Unavailable, Unsupported
from sandgate.contract.job import RolloutJob, Task
from sandgate.contract.session import PUBLIC
from sandgate.contract.trajectory import Trajectory
from sandgate.operator.local.job import load_job
from sandgate.trainer.client.at_exit import at_exit, not_at_exit
from sandgate.trainer.client.fleet import AsyncFleet
from sandgate.trainer.client.local_job import fresh_folder, local_job
from sandgate.trainer.client.loop_thread import LoopThread
from sandgate.trainer.client.pushed_groups import PushedGroups, collecting
from sandgate.trainer.client.pushed_job import pushed_job
from sandgate.trainer.client.task_values import json_of, prompt_of
from sandgate.trainer.credit.lengths import Lengths
from sandgate.trainer.credit.reasons import CreditRules

SAMPLED = ("temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
           "repetition_penalty", "seed", "max_tokens")  # fmt: skip
"""Of SkyRL's `sampling_params`, what `spec.sampling` has."""
GATEWAYS = ("min_tokens", "skip_special_tokens", "include_stop_str_in_output", "logprobs", "detokenize")
"""What says how SkyRL's own generator reads an answer: a gateway asks for what it needs."""
CLOSED = "the generator was closed, and its jobs with it"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchKind:
    """What a batch's sessions have in common."""

    evaluation: bool
    n: int
    """Sessions for each prompt."""
    sampling: Mapping[str, Any]
    """Of `spec.sampling`."""


class Jobs(Protocol):
    """Where jobs come from."""

    def job_of(self, kind: BatchKind) -> str:
        """Batches of the same name are of one job."""

    def open(self, kind: BatchKind) -> AbstractAsyncContextManager[PushedGroups]:
        """That job, of which this is the first batch."""

    def refuse(self, first: BatchKind, kind: BatchKind) -> None:
        """Raises Unsupported for a batch that cannot be of the job that `first` opened."""


@dataclass(frozen=True, slots=True)
class JobLengths:
    """The most tokens of a row, by kind of batch."""

    train: Lengths
    evaluation: Lengths

    @classmethod
    def of(cls, config: Any) -> JobLengths:
        """From SkyRL's config. It begins no answer behind `max_input_length` tokens, and an answer has
        `max_generate_length`, so that a conversation has both at most. Raises InvalidBody for what is no length."""
        said = config.generator
        prompt = int(said.max_input_length or config.trainer.max_prompt_length)
        answer = int(said.sampling_params.max_generate_length)
        other = getattr(said, "eval_sampling_params", None)
        answer_in_evaluation = answer if other is None else int(other.max_generate_length)
        return cls(_lengths(prompt, answer), _lengths(prompt, answer_in_evaluation))


def _lengths(prompt: int, answer: int) -> Lengths:
    return Lengths(prompt, prompt + answer, prompt + answer)


def rules_of(config: Any, given: CreditRules | None = None) -> CreditRules | None:
    """`given`, and what SkyRL's config says of truncated episodes, which its own generator carries out and its trainer
    does not. Raises Unsupported for a setting that changes rewards: a job's are its verifier's."""
    said = config.generator
    if getattr(said, "zero_reward_on_non_stop", False):
        name = "generator.zero_reward_on_non_stop"
        raise Unsupported(f"{name}: rewards are the job's; let its verifier give 0", field=name)
    if not getattr(said, "apply_overlong_filtering", False):
        return given
    return replace(given or CreditRules(), truncated="mask")


@dataclass(frozen=True, slots=True)
class LocalJobs:
    """Runs on this machine, one for training and one for evaluation, from one manifest."""

    manifest: Path
    out: Path
    """Each start has a folder of its own below it."""
    engines: tuple[str, ...]
    lengths: JobLengths | None = None
    """None: the manifest's limits."""

    def job_of(self, kind: BatchKind) -> str:
        """See Jobs."""
        return "evaluation" if kind.evaluation else "train"

    def of(self, written: RolloutJob, kind: BatchKind) -> RolloutJob:
        """The job of the manifest; SkyRL decides the most tokens of a row, too: gateways hold that before they sample.
        Raises BadManifest."""
        job = pushed_job(
            written, "SkyRL", group_size=kind.n, sampling=kind.sampling, validate=kind.evaluation,
            engine=replace(written.spec.engine, endpoints=self.engines, selector=None, managed=None),
        )  # fmt: skip
        if self.lengths is None:
            return job
        lengths = self.lengths.evaluation if kind.evaluation else self.lengths.train
        window = min(filter(None, (job.spec.model.max_model_len, lengths.total)))
        model = replace(job.spec.model, max_model_len=window)
        limits = replace(job.spec.limits, **lengths.limits())
        return replace(job, spec=replace(job.spec, model=model, limits=limits))

    @asynccontextmanager
    async def open(self, kind: BatchKind) -> AsyncIterator[PushedGroups]:
        """See Jobs. Raises BadManifest, Unsupported, Unavailable."""
        path = self.manifest.absolute()
        job = self.of(load_job(path), kind)
        out = fresh_folder(self.out.absolute() / self.job_of(kind))
        async with local_job(job, manifest_dir=path.parent, out=out) as groups:
            yield groups

    def refuse(self, first: BatchKind, kind: BatchKind) -> None:
        """See Jobs."""
        if kind != first:
            raise Unsupported(
                f"this batch has {kind.n} samples of each prompt and samples by {dict(kind.sampling)}; the job began"
                f" with {first.n} and {dict(first.sampling)}, and all its sessions are sampled alike",
                field="sampling_params",
            )


@dataclass(frozen=True, slots=True)
class FleetJobs:
    """Jobs that run elsewhere. Their manifests say how many sessions a group has, and how they are sampled."""

    training: AbstractAsyncContextManager[AsyncFleet]
    evaluation: AbstractAsyncContextManager[AsyncFleet] | None

    def job_of(self, kind: BatchKind) -> str:
        """See Jobs."""
        return "evaluation" if kind.evaluation and self.evaluation is not None else "train"

    @asynccontextmanager
    async def open(self, kind: BatchKind) -> AsyncIterator[PushedGroups]:
        """See Jobs. Raises what the fleet raises."""
        own = self.evaluation if kind.evaluation else None
        async with own or self.training as fleet, fleet.beating(), collecting(fleet) as groups:
            yield groups

    def refuse(self, first: BatchKind, kind: BatchKind) -> None:
        """See Jobs."""


class JobRunner:
    """Jobs in an event loop of a thread of their own: a trainer blocks its own for whole steps, and sandboxes and
    leases need one that goes on."""

    def __init__(self, jobs: Jobs, wait_s: float) -> None:
        self.jobs, self.wait_s = jobs, wait_s
        self._loop = LoopThread()
        self._stack = AsyncExitStack()
        self._open: dict[str, tuple[BatchKind, PushedGroups]] = {}
        self._told: dict[str, int] = {}
        self._opening: asyncio.Task[Any] | None = None
        """Who opens a job now."""
        self._over = False
        self._starting = asyncio.Lock()
        self._closing = threading.Lock()
        at_exit(self.close)

    async def groups(
        self, kind: BatchKind, tasks: Sequence[Task], version: int | None
    ) -> list[tuple[Trajectory, ...]]:
        """Of each task, in order; called in any loop. `version`: of the weights. Raises what ends the job."""
        if self._loop.closed:
            raise Unavailable(CLOSED)
        return await asyncio.wrap_future(self._loop.submit(self._groups(kind, tasks, version)))

    async def _groups(
        self, kind: BatchKind, tasks: Sequence[Task], version: int | None
    ) -> list[tuple[Trajectory, ...]]:
        groups = await self._job(kind, version)
        told = await groups.push(tasks)
        waits = [groups.group(one.uid, future, self.wait_s) for one, future in zip(tasks, told, strict=True)]
        return await asyncio.gather(*waits)

    async def _job(self, kind: BatchKind, version: int | None) -> PushedGroups:
        """Open, and told the version if that is newer than what it was told."""
        name = self.jobs.job_of(kind)
        async with self._starting:
            if self._over:
                raise Unavailable(CLOSED)
            if name not in self._open:
                self._opening = asyncio.current_task()
                try:
                    self._open[name] = (kind, await self._stack.enter_async_context(self.jobs.open(kind)))
                finally:
                    self._opening = None
            first, groups = self._open[name]
            self.jobs.refuse(first, kind)
            if version is not None and version > self._told.get(name, -1):
                clients = groups.fleet.clients.values()
                await asyncio.gather(*(one.policy_version(version) for one in clients))
                groups.fleet.told_version(version)
                self._told[name] = version
        return groups

    def close(self) -> None:
        """End what this process started, and leave the rest. Idempotent."""
        with self._closing:
            if self._loop.closed:
                return
            not_at_exit(self.close)
            try:
                self._loop.run(self._close())
            finally:
                self._loop.close()

    async def _close(self) -> None:
        """A job that is being opened, as where the trainer is interrupted, ends first: the loop's end would come in the
        middle of that. If it was cancelled already, it is ending."""
        self._over = True
        if self._opening is not None:
            if not self._opening.cancelling():
                self._opening.cancel()
            await asyncio.wait([self._opening])
        await self._stack.aclose()


def sampling_of(params: Mapping[str, Any] | None) -> dict[str, Any]:
    """SkyRL's `sampling_params` as `spec.sampling`. Raises Unsupported for what that cannot say."""
    said = {name: value for name, value in (params or {}).items() if value is not None}
    if unknown := [name for name in said if name not in (*SAMPLED, *GATEWAYS)]:
        raise Unsupported(
            f"sampling_params.{unknown[0]}: a job's sessions have {', '.join(SAMPLED)}; an agent asks for the rest",
            field=f"sampling_params.{unknown[0]}",
        )
    return {name: said[name] for name in SAMPLED if name in said}


def task_of(uid: str, prompt: Any, extras: Mapping[str, Any] | None, public: Sequence[str] = ()) -> Task:
    """One prompt of SkyRL's data set. Its further columns are the task's data, which verifiers see; agents see the
    prompt, and the `public` ones. Raises InvalidBody for a column that is missing or is no JSON."""
    columns = dict(extras or {})
    if missing := [name for name in public if name not in columns]:
        raise InvalidBody(f"prompt {uid}: its data set has no column {missing[0]}", field=missing[0])
    if PUBLIC in columns:
        raise InvalidBody(f"prompt {uid}: a column cannot be named {PUBLIC!r}", field=PUBLIC)
    data = {name: json_of(value, uid, name) for name, value in columns.items() if value is not None}
    data[PUBLIC] = {name: data[name] for name in public if name in data}
    return Task(uid=uid, prompt=prompt_of(json_of(prompt, uid, "prompt")), data=data)
