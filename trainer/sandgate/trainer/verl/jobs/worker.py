"""The job of a trainer inside its Ray actor: batches in, rows out."""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any

from sandgate.contract.errors import SandgateError, Unsupported
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.client.pushed_groups import PushedGroups
from sandgate.trainer.credit.counters import RowCounters
from sandgate.trainer.credit.reasons import LeftOut
from sandgate.trainer.verl.dataproto import count
from sandgate.trainer.verl.framework import prompts_of, samples_of
from sandgate.trainer.verl.jobs.batches import aligned, dataproto, scored
from sandgate.trainer.verl.jobs.running import verl_job
from sandgate.trainer.verl.jobs.settings import JobSettings
from sandgate.trainer.verl.jobs.tasks import task_of
from sandgate.trainer.verl.jobs.vocabulary import Vocabulary
from sandgate.trainer.verl.reward_columns import ValidationColumns
from sandgate.trainer.verl.sessions import BatchSample, Score
from sandgate.trainer.verl.transfer import TRAIN, VALIDATION, put_group, put_status

log = logging.getLogger(__name__)


class JobWorker:
    """Two jobs at most, of one manifest: one that trains, and, from the first validation on, one that validates."""

    def __init__(
        self, settings: JobSettings, endpoints: Sequence[str], pad: int, score: Score | None = None
    ) -> None:
        """`score`: asked for sessions that nobody gave a reward. `pad`: verl's padding token."""
        self.settings, self.endpoints, self.pad, self.score = settings, tuple(endpoints), pad, score
        self._stack = AsyncExitStack()
        self._jobs: dict[bool, PushedGroups] = {}
        self._starting = asyncio.Lock()
        self._entering: asyncio.Future[PushedGroups] | None = None
        self._background: set[asyncio.Task[None]] = set()
        self._queue = False
        self._vocabulary = Vocabulary(settings.tokenizer)
        self._columns = ValidationColumns()
        self.counters = RowCounters()
        """Of what its trainer was given."""

    async def start(self) -> None:
        """The job that trains runs. Raises what it raises when it cannot."""
        await self._job(validate=False)

    async def stop(self) -> None:
        """End the jobs, and what waits for them."""
        for task in self._background:
            task.cancel()
        if self._entering is not None:
            self._entering.cancel()  # a job of validation may wait long for its quota
        await asyncio.gather(*self._background, return_exceptions=True)
        async with self._starting:
            await self._stack.aclose()
            self._jobs.clear()

    async def _job(self, *, validate: bool) -> PushedGroups:
        async with self._starting:
            if validate not in self._jobs:
                made = verl_job(self.settings, self.endpoints, validate=validate)
                self._entering = asyncio.ensure_future(self._stack.enter_async_context(made))
                self._jobs[validate] = await self._entering
            return self._jobs[validate]

    # -- DataProto ----------------------------------------------------------------------------------------------------

    async def generate(self, prompts: Any) -> Any:
        """A row for each row of a DataProto, in order."""
        validate = bool(prompts.meta_info.get("validate", False))
        kind = self.settings.validation if validate else self.settings.train
        samples = samples_of(prompts.non_tensor_batch, len(prompts))
        if any(sample.greedy for sample in samples) and not validate:
            raise Unsupported("__do_sample__: all sessions of a job are sampled alike", field="__do_sample__")
        firsts: dict[str, BatchSample] = {}
        for sample in samples:
            firsts.setdefault(sample.uid, sample)
        job = await self._job(validate=validate)
        began = time.monotonic()
        tasks = [self._task(sample.columns) for sample in firsts.values()]
        told = await job.push(tasks)
        took: dict[str, float] = {}

        async def group(uid: str, future: asyncio.Future[tuple[Trajectory, ...]]) -> list[Trajectory]:
            rows = await job.group(uid, future, self.settings.wait_s)
            self._vocabulary.compare(rows)
            found = await scored(rows, firsts[uid].columns, self.score, self.settings.truncated_reward)
            took[uid] = time.monotonic() - began
            return found

        found = await asyncio.gather(*map(group, firsts, told))
        groups = dict(zip(firsts, found, strict=True))
        rows = aligned(samples, groups, self.settings.lengths, n=kind.n, pad=self.pad)
        seconds = [took[sample.uid] for sample in samples]
        truncated = self.settings.truncated_in(validate=validate)
        made = dataproto(
            rows, samples, self.settings.lengths, self.pad, seconds, truncated=truncated, validate=validate
        )
        self._columns.settle(made, prompts.meta_info)
        count(made, self.counters)
        return made

    async def rows(self) -> tuple[dict[str, float], str]:
        """What teaches and what does not, since the start: for a trainer's log, and for Prometheus."""
        return self.counters.metrics(), self.counters.prometheus()

    def _task(self, columns: Mapping[str, Any]) -> Any:
        return task_of(columns, public=self.settings.public, further=self.settings.columns)

    # -- TransferQueue ------------------------------------------------------------------------------------------------

    async def submit(self, batch: Any) -> None:
        """Push a TransferQueue batch and return; each group is written when it is there, its tag last. Raises for
        prompts that are no tasks; then every one of them has failed."""
        if not self._queue:
            import transfer_queue as tq  # type: ignore[import-not-found]

            tq.init()
            self._queue = True
        prompts, validate = prompts_of(batch)
        partition = VALIDATION if validate else TRAIN
        kind = self.settings.validation if validate else self.settings.train
        try:
            _all_alike(prompts, kind.n)
            job = await self._job(validate=validate)
            told = await job.push([self._task(prompt) for prompt in prompts])
        except BaseException:
            await asyncio.gather(
                *(put_status(str(one["uid"]), "failure", partition=partition) for one in prompts)
            )
            raise
        for prompt, future in zip(prompts, told, strict=True):
            work = self._into_queue(job, prompt, future, validate=validate)
            task = asyncio.get_running_loop().create_task(work)
            self._background.add(task)
            task.add_done_callback(functools.partial(_done, self._background))

    async def _into_queue(
        self,
        job: PushedGroups,
        prompt: Mapping[str, Any],
        told: asyncio.Future[tuple[Trajectory, ...]],
        *,
        validate: bool,
    ) -> None:
        uid, kind = str(prompt["uid"]), self.settings.validation if validate else self.settings.train
        columns = {name: value for name, value in prompt.items() if not name.startswith("__")}
        rows: Sequence[Trajectory] = ()
        try:
            group = await job.group(uid, told, self.settings.wait_s)
            self._vocabulary.compare(group)
            rows = await scored(group, columns, self.score, self.settings.truncated_reward)
        finally:  # also where the job ended: verl would wait for a group that stays pending
            without = kind.n - len({row.session_id for row in rows})
            self.counters.add(0, {LeftOut.FAILURE.value: max(without, 0)})
            await put_group(
                uid,
                rows,
                global_steps=int(prompt.get("global_steps", 0)),
                lengths=self.settings.lengths,
                partition=VALIDATION if validate else TRAIN,
                columns=columns,
                truncated=self.settings.truncated_in(validate=validate),
                counters=self.counters,
                samples=kind.n,
            )


def _all_alike(prompts: Sequence[Mapping[str, Any]], n: int) -> None:
    """Raises Unsupported for a prompt that wants another number of sessions."""
    for prompt in prompts:
        if (asked := int(prompt.get("__rollout_n__", n))) != n:
            raise Unsupported(
                f"prompt {prompt['uid']}: __rollout_n__ is {asked}, and every group of the job has {n}",
                field="__rollout_n__",
            )


def _done(background: set[asyncio.Task[None]], task: asyncio.Task[None]) -> None:
    background.discard(task)
    if not task.cancelled() and (error := task.exception()) is not None:
        known = isinstance(error, SandgateError)
        log.error("a group failed: %s", error, exc_info=None if known else error)
