"""Frameworks: a batch of prompts in, training rows out (verl RFC 5790, uni-agent PR 58)."""

from __future__ import annotations

import asyncio
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.client.gateway_manager import GatewayManager
from sandgate.trainer.credit.batches import no_row, taught
from sandgate.trainer.credit.counters import RowCounters
from sandgate.trainer.credit.one_row import alone
from sandgate.trainer.credit.reasons import CreditRules, LeftOut, Truncated
from sandgate.trainer.verl.dataproto import count, to_dataproto
from sandgate.trainer.verl.multimodal import misplaced
from sandgate.trainer.verl.rows import Lengths
from sandgate.trainer.verl.runners import Runner, RunnerConfig
from sandgate.trainer.verl.sessions import BatchSample, Score, SessionRunner
from sandgate.trainer.verl.transfer import TRAIN, VALIDATION, companion, put_rows, put_status, transfer_rows

log = logging.getLogger(__name__)

OVERRIDES = ("__rollout_n__", "__do_sample__")
"""Columns by which verl's trainer changes how one prompt is sampled; not stored."""
GREEDY: Mapping[str, Any] = {"temperature": 0.0, "top_p": 1.0, "override": True}


class AgentFramework(ABC):
    """What a trainer needs of a framework."""

    @abstractmethod
    async def generate_sequences(self, prompts: Any) -> Any:
        """DataProto in, training-ready DataProto out."""
        ...


class OpenAICompatibleAgentFramework(AgentFramework):
    """Agents that speak OpenAI's or Anthropic's API, each in a session of a gateway that records its tokens.

    A session that fails is aborted alone: its siblings are kept, whatever was raised.
    """

    def __init__(
        self,
        gateways: GatewayManager,
        runners: Mapping[str, RunnerConfig],
        lengths: Lengths,
        *,
        n: int = 1,
        validation_n: int = 1,
        sampling: Mapping[str, Any] | None = None,
        validation_sampling: Mapping[str, Any] | None = None,
        pad_token_id: int = 0,
        score: Score | None = None,
        processor: Any = None,
        job: str = "",
        truncated: Truncated = "score",
        truncated_reward: float = 0.0,
    ) -> None:
        """`sampling`: as in a gateway's session; what the trainer says goes before what the agent asks. `n`: sessions
        per prompt of a TransferQueue batch; a DataProto has its repetitions as rows. `processor`: as in `to_dataproto`.
        `truncated`: whether an episode that a limit ended counts or is masked; in validation it counts.
        `truncated_reward`: see `SessionRunner`."""
        made = {name: Runner(config) for name, config in runners.items()}
        self.sessions = SessionRunner(
            gateways, made, lengths,
            score=score, job=job, truncated_reward=truncated_reward,
        )  # fmt: skip
        self._rules = {
            False: CreditRules(lengths=lengths, truncated=truncated, misplaced=misplaced(processor)),
            # an episode that was cut short did not solve its task
            True: CreditRules(lengths=lengths, misplaced=misplaced(processor)),
        }
        self.counters = RowCounters()
        """Of what this framework gave its trainer."""
        self.lengths, self.pad_token_id, self.processor = lengths, pad_token_id, processor
        self._n = {False: n, True: validation_n}
        self._sampling = {
            False: {**(sampling or {}), "override": True} if sampling else {},
            True: {**(validation_sampling or {}), "override": True} if validation_sampling else {},
        }
        self._background: set[asyncio.Task[None]] = set()

    # -- DataProto ----------------------------------------------------------------------------------------------------

    async def generate_sequences(self, prompts: Any) -> Any:
        """A row per trajectory, in the order of the prompts; none for a session that failed. Raises the first failure
        if all did."""
        validate, samples, found, took = await self._run_batch(prompts)
        flat = [
            (row, sample, each)
            for rows, sample, each in zip(found, samples, took, strict=True)
            for row in rows
        ]
        return self._batch(*zip(*flat, strict=True), validate=validate)

    async def generate_aligned(self, prompts: Any) -> Any:
        """Exactly a row per prompt, as a trainer needs that joins the batches: a session's main trajectory, with all
        that was sampled on it. One that failed is a single masked token, whose score changes nothing of the others'
        advantages where the group has room for that (`neutral_scores`)."""
        validate, samples, found, took = await self._run_batch(prompts)
        whole = aligned(samples, found, self.pad_token_id)
        self.counters.add(0, {LeftOut.OTHER_ROW.value: sum(len(rows) - 1 for rows in found if rows)})
        return self._batch(whole, samples, took, validate=validate)

    async def _run_batch(
        self, prompts: Any
    ) -> tuple[bool, list[BatchSample], list[list[Trajectory]], list[float]]:
        """Whether it is for validation; samples, what each gave, and how long it took, in seconds."""
        validate = bool(prompts.meta_info.get("validate", False))
        samples = samples_of(prompts.non_tensor_batch, len(prompts))
        took = [0.0] * len(samples)

        async def timed(at: int, sample: BatchSample) -> list[Trajectory]:
            began = time.monotonic()
            try:
                return await self._run(sample, validate=validate)
            finally:
                took[at] = time.monotonic() - began

        found = await settled(timed(at, sample) for at, sample in enumerate(samples))
        failures = [one for one in found if isinstance(one, BaseException)]
        for error in failures:
            log.error("a session failed", exc_info=error)
        if failures and len(failures) == len(found):
            raise failures[0]
        rows = [[] if isinstance(one, BaseException) else one for one in found]
        return validate, samples, rows, took

    async def _run(self, sample: BatchSample, *, validate: bool) -> list[Trajectory]:
        sampling = GREEDY if sample.greedy and not validate else self._sampling[validate]
        return await self.sessions.run(sample, sampling, self._rules[validate].truncated)

    def _batch(
        self,
        rows: Sequence[Trajectory],
        samples: Sequence[BatchSample],
        took: Sequence[float],
        *,
        validate: bool,
    ) -> Any:
        names = [name for name in samples[0].columns if name != "multi_modal_data"]
        columns = {name: [sample.columns[name] for sample in samples] for name in names}
        columns["uid"] = [sample.uid for sample in samples]
        made = to_dataproto(
            rows,
            self.lengths,
            pad_token_id=self.pad_token_id,
            columns=columns,
            processor=self.processor,
            seconds=took,
            truncated=self._rules[validate].truncated,
            validate=validate,
        )
        count(made, self.counters)
        return made

    # -- TransferQueue ------------------------------------------------------------------------------------------------

    def submit(self, batch: Any) -> None:
        """Start all sessions of a TransferQueue batch (TensorDict) and return; needs a running loop. Results are rows
        in the queue; a prompt's tag is `finished`, or `failure` if no session gave any."""
        prompts, validate = prompts_of(batch)
        for prompt in prompts:
            task = asyncio.get_running_loop().create_task(self.run_prompt(prompt, validate=validate))
            self._background.add(task)
            task.add_done_callback(self._background.discard)

    async def drain(self) -> None:
        """Wait for what `submit` started."""
        await asyncio.gather(*self._background)

    async def run_prompt(self, prompt: Mapping[str, Any], *, validate: bool = False) -> None:
        """All sessions of one prompt, into the queue. Its tag becomes terminal when the last one has been written, so
        that none comes after the trainer took the group. `failure` would have verl throw away the whole group, so it is
        for a group without a row; where one session is left to train on, a `companion` stands beside it."""
        uid, partition = str(prompt["uid"]), VALIDATION if validate else TRAIN
        status = "failure"
        await put_status(uid, "running", partition=partition)
        try:
            n = int(prompt.get("__rollout_n__", self._n[validate]))
            samples = [sample_of(prompt, index) for index in range(n)]
            said = await settled(self._into_queue(one, validate=validate) for one in samples)
            failures = [one for one in said if isinstance(one, BaseException)]
            for error in failures:
                log.error("a session of prompt %s failed", uid, exc_info=error)
            self.counters.add(0, {LeftOut.FAILURE.value: len(failures)})
            kept = {at: one for at, one in enumerate(said) if one and not isinstance(one, BaseException)}
            if len(kept) == 1 and n > 1 and not validate:
                ((at, rows),) = kept.items()
                free = next(sample for sample in samples if sample.index != at)
                await put_rows(companion(rows, **self._as(free)), partition=partition)
            status = "finished" if kept else "failure"
        finally:
            await asyncio.shield(put_status(uid, status, partition=partition))  # type: ignore[arg-type]

    async def _into_queue(self, sample: BatchSample, *, validate: bool) -> list[Trajectory]:
        """The rows that were written: those that teach."""
        found = await self._run(sample, validate=validate)
        rows, left_out = taught(found, self._rules[validate])
        self.counters.add(len(rows), left_out)
        if left_out:
            log.info("prompt %s, sample %s: %s left out", sample.uid, sample.index, dict(left_out))
        made = transfer_rows(rows, **self._as(sample))
        await put_rows(made, partition=VALIDATION if validate else TRAIN)
        return rows

    def _as(self, sample: BatchSample) -> dict[str, Any]:
        """What its rows in the queue have, beside the rows themselves."""
        return {
            "uid": sample.uid,
            "session": sample.index,
            "global_steps": int(sample.columns.get("global_steps", 0)),
            "columns": sample.columns,
            "processor": self.processor,
        }


async def settled(work: Any) -> list[Any]:
    """Results, or what was raised, BaseException included, in order. Cancelled together with the caller."""
    return list(await asyncio.gather(*work, return_exceptions=True))


def sample_of(columns: Mapping[str, Any], index: int) -> BatchSample:
    """Of one prompt's columns."""
    return BatchSample(
        uid=str(columns["uid"]),
        index=index,
        raw_prompt=columns.get("raw_prompt"),
        tools_kwargs=columns.get("tools_kwargs"),
        agent_name=columns.get("agent_name"),
        columns={name: value for name, value in columns.items() if name not in OVERRIDES},
        greedy=not columns.get("__do_sample__", True),
    )


def samples_of(columns: Mapping[str, Any], size: int) -> list[BatchSample]:
    """Rows of a DataProto's non-tensor batch; rows of one uid are samples 0, 1, ... of one task. Rows without a uid are
    tasks of their own."""
    seen: dict[str, int] = {}
    found = []
    for at in range(size):
        row = {name: values[at] for name, values in columns.items()}
        row.setdefault("uid", f"row-{at}")
        number = seen.get(str(row["uid"]), 0)
        seen[str(row["uid"])] = number + 1
        found.append(sample_of(row, number))
    return found


def prompts_of(batch: Any) -> tuple[list[dict[str, Any]], bool]:
    """Rows of a TransferQueue batch as dicts, and whether they are for validation."""
    from tensordict import NonTensorData, NonTensorStack  # type: ignore[import-not-found]

    columns: dict[str, Any] = {}
    validate = False
    for name in batch.keys():  # noqa: SIM118 - a TensorDict iterates over its rows
        value = batch.get(name)
        if isinstance(value, NonTensorStack):
            columns[name] = [one.data if isinstance(one, NonTensorData) else one for one in value]
        elif isinstance(value, NonTensorData):
            columns[name] = [value.data] * len(batch)
        else:
            columns[name] = [one.item() if one.dim() == 0 else one for one in value]
    if "validate" in columns:
        validate = bool(columns.pop("validate")[0])
    return [{name: values[at] for name, values in columns.items()} for at in range(len(batch))], validate


def aligned(
    samples: Sequence[BatchSample], found: Sequence[Sequence[Trajectory]], pad_token_id: int
) -> list[Trajectory]:
    """One row for each sample; `found`: those of its session, none if it failed."""
    return [
        alone(rows) if rows else no_row(sample.uid, sample.index, pad_token_id)
        for sample, rows in zip(samples, found, strict=True)
    ]
