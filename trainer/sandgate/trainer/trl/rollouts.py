"""TRL's `rollout_func`, made of a job's gateways.

with Rollouts(fleet(origins, key, job="shop"), tasks, job="shop", agent=my_agent) as rollouts:
    trainer = GRPOTrainer(..., rollout_func=rollouts, train_dataset=rollouts.dataset(800), reward_funcs=env_reward)
    rollouts.attach(trainer, FolderWeights(Path("weights")))
    trainer.train()
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import secrets
from collections.abc import Iterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from itertools import cycle, islice
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from sandgate.contract.errors import Conflict, InvalidBody
from sandgate.contract.job import Task
from sandgate.contract.trajectory import Json
from sandgate.trainer.client.fleet import AsyncFleet
from sandgate.trainer.trl import rows as of
from sandgate.trainer.trl.agents import PARALLEL, SESSION_S, Agent, Driver, QueuedAgents, inline
from sandgate.trainer.trl.background import Background
from sandgate.trainer.trl.masked import leave_out_masked
from sandgate.trainer.trl.names import Round, check_run, check_tasks
from sandgate.trainer.trl.positions import count_from_first
from sandgate.trainer.trl.ranks import Ranks, leads
from sandgate.trainer.trl.rounds import TTL_S, LeaseFile, Rounds
from sandgate.trainer.trl.served import ServedAdapters
from sandgate.trainer.trl.weights import FolderWeights, Weights
from sandgate.trainer.trl.whole import check, gathered

log = logging.getLogger(__name__)

WAIT_S = 3600.0
"""For one batch of groups; agents take minutes. For those that may take longer, twice as long as one may take."""
LOOK_S = 2.0
"""Between looks whether engines lost their weights while groups are waited for: agents give up on one that is away."""
LEASES = "sandgate-leases.json"
"""In the trainer's output_dir."""


Part = tuple[list[of.Row], int | None, int | None]
"""What a process is given of a batch: its rows, the version of the weights, and versions minus optimizer steps."""


class Rollouts:
    """Called by GRPOTrainer as its `rollout_func`. Use as `with`; agents run only inside.

    A trainer that is killed, and started again with `resume_from_checkpoint`, goes on where its checkpoint is: groups
    that are in the checkpoint are never trained on again, those that are not are there already and are used.

    In several processes (torchrun, `accelerate launch`) each makes one, of the same arguments: process 0 connects, runs
    the agents, leases and publishes, and the others are given their part of each batch. What is called in a training
    loop is called in all of them.
    """

    def __init__(
        self,
        connection: AbstractAsyncContextManager[AsyncFleet],
        tasks: Sequence[Task],
        *,
        job: str,
        agent: Agent | None = None,
        run: str = "run",
        ahead: int = 0,
        pick: of.Pick = of.final,
        parallel: int = PARALLEL,
        session: dict[str, Json] | None = None,
        session_s: float = SESSION_S,
        ttl_s: float = TTL_S,
        wait_s: float | None = None,
    ) -> None:
        """`connection`: `fleet`, `cluster_fleet` or `local_fleet`. `agent`: run here, for each sample; None: tasks are
        pushed to the job's queue, and its operator runs them. `run`: its name, the same when it goes on.
        `ahead`: optimizer steps whose rollouts are started early; 0 = on-policy. `session`: further fields of each
        session of an agent here, as `create_session` takes them. `session_s`: for how long such an agent may run; then
        its session has timed out. `wait_s`: for one batch of groups; None: an hour, or twice `session_s`. Raises
        InvalidBody for tasks with one prompt twice, as TRL tells a rollout_func prompts alone, and for a uid that is
        too long for the names of its rounds.
        """
        if not 0 < session_s < math.inf:
            raise InvalidBody(
                f"session_s: {session_s} is no time for an agent, in seconds", field="session_s"
            )
        self.tasks = {_key(task.prompt): task for task in tasks}
        if len(self.tasks) != len(tasks):
            raise InvalidBody(
                "two tasks have the same prompt, and nothing else is told apart", field="prompt"
            )
        self.job, self.run, self.ahead, self.pick = job, check_run(run), ahead, pick
        check_tasks(run, tasks)
        self._connection, self._agent, self._session = connection, agent, session or {}
        self._parallel, self._session_s, self._ttl_s = parallel, session_s, ttl_s
        self._wait_s = max(WAIT_S, 2 * session_s) if wait_s is None else wait_s
        self._background = Background("sandgate-rollouts")
        self._stack = AsyncExitStack()
        self._fleet: AsyncFleet | None = None
        self._ranks: Ranks | None = None
        self._leads = True
        """This is process 0, or the only one."""
        self._rounds: Rounds | None = None
        self._weights: Weights | None = None
        self._last = Round(-1)
        self._evaluated = secrets.randbelow(900_000) * 1_000_000
        """Number of the last evaluation's call; begins anywhere, so that no two processes use the same names."""
        self._shift: int | None = None
        """Versions minus optimizer steps."""
        self._upcoming: Iterator[list[Task]] = iter(())
        self._plan: list[list[Task]] = []
        """Batches in the trainer's order, as far as they were looked at, from one step on."""
        self._planned_from = 0

    def dataset(self, groups: int | None = None, *, tasks: Sequence[Task] | None = None) -> Any:
        """The tasks as a `datasets.Dataset` with TRL's column `prompt`; again and again until there are `groups` rows.
        `tasks`: only these of them, of a split into training and evaluation. Raises InvalidBody for one of no task.

        With as many rows as the run has groups (steps times groups of a step) the run is one epoch, and a trainer that
        goes on asks for what it would have asked for. Over several epochs it does not: GRPOTrainer's sampler begins
        anew with the order of its first epoch, and what was sampled for another order is thrown away.
        """
        from datasets import Dataset  # type: ignore[import-not-found]

        wanted = list(self.tasks.values()) if tasks is None else tasks
        for task in wanted:
            if self.tasks.get(_key(task.prompt)) != task:
                raise InvalidBody(
                    f"task {task.uid!r} is not of these rollouts: give it to Rollouts, too", field="tasks"
                )
        prompts = [{"prompt": task.prompt} for task in wanted]
        return Dataset.from_list(list(islice(cycle(prompts), groups or len(prompts))))

    def __enter__(self) -> Self:
        self._leads = leads()
        if not self._leads:
            return self
        self._background.__enter__()
        try:
            self._fleet = self._background.call(self._connect())
        except BaseException:
            self._background.__exit__(None, None, None)
            raise
        return self

    async def _connect(self) -> AsyncFleet:
        found = await self._stack.enter_async_context(self._connection)
        await self._stack.enter_async_context(
            found.beating()
        )  # a long step must not look like a trainer that died
        return found

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._fleet is None:
            return
        try:
            if self._rounds is not None:
                self._background.call(self._rounds.give_back())
            self._background.call(self._stack.aclose())
        finally:
            self._background.__exit__(kind, error, trace)

    # -- what TRL calls -----------------------------------------------------------------------------------------------

    def __call__(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        """One completion for each entry of `prompts`, which come repeated, group by group. Waits for their groups. In
        several processes a group may lie across two of them."""
        pad = of.pad_of(trainer)
        # Truncated rows are masked here (`rules_of`, by its arguments). TRL would mask, and leave in the mean, whatever
        # does not end with the tokenizer's end: each answer that a stop string ended.
        trainer.mask_truncated_completions = False
        leave_out_masked(trainer)
        ranks = self._ranks_of(trainer)
        parts = ranks.gather(prompts)
        rows, version, self._shift = ranks.each(
            lambda: self._lead(parts, trainer), join=lambda: gathered(trainer)
        )
        out: dict[str, Any] = of.rollout(rows, pad)
        if version is not None:
            out["sandgate_version"] = version
        return out

    def _lead(self, parts: list[list[Any]], trainer: Any) -> list[Part]:
        """Process 0: each process's rows, in the order of its prompts."""
        prompts = [one for part in parts for one in part]
        training = bool(trainer.model.training)
        n = int(trainer.num_generations if training else trainer.num_generations_eval)
        self._refuse_begun_anew(trainer)
        rounds = self._began(trainer)
        this = self._round(trainer, training=training)
        tasks = self._tasks_of(prompts, n)
        named = this.tasks(self.run, tasks)
        self._background.call(rounds.start(named, n))
        if training and self.ahead:
            self._look_ahead(trainer, this, tasks, n)
        groups = self._background.call(
            rounds.take([task.uid for task in named], self._wait_s),
            meanwhile=lambda: self._meanwhile(trainer),
            every_s=LOOK_S,
        )
        if not training:
            self._background.call(rounds.commit(this.step + 1, training=False))
        rules = of.rules_of(trainer.args, training=training)
        found = [row for group in groups for row in of.group_rows(group, n, self.pick, rules)]
        of.check_sampling(found, trainer.temperature)
        version = None if self._weights is None else self.version(trainer)
        left = iter(found)
        return [(list(islice(left, len(part))), version, self._shift) for part in parts]

    def _round(self, trainer: Any, *, training: bool) -> Round:
        step = int(trainer.state.global_step)
        if not training:  # never the same again: an evaluation is not resumed
            self._evaluated += 1
            return Round(step, self._evaluated, training=False)
        self._last = Round(step, self._last.call + 1 if self._last.step == step else 0)
        return self._last

    def _refuse_begun_anew(self, trainer: Any) -> None:
        """Raises Conflict where steps are counted from the start again: groups and versions are named by them, and
        would be those of the training before."""
        if (step := int(trainer.state.global_step)) < self._last.step:
            raise Conflict(
                f"step {step} after step {self._last.step}: a second training, as by another trainer.train(), needs"
                " Rollouts of its own, with another name (run=)"
            )

    def _tasks_of(self, prompts: list[Any], n: int) -> list[Task]:
        if len(prompts) % n:
            raise InvalidBody(f"{len(prompts)} prompts are not groups of {n}", field="prompts")
        found = []
        for start in range(0, len(prompts), n):
            key = _key(prompts[start])
            if any(_key(one) != key for one in prompts[start + 1 : start + n]):
                raise InvalidBody(
                    f"prompts {start} to {start + n - 1} are not one group; is this GRPOTrainer's own sampler?",
                    field="prompts",
                )
            if key not in self.tasks:
                raise InvalidBody(f"prompt {start} is of no task: {key[:200]}", field="prompts")
            found.append(self.tasks[key])
        return found

    def _look_ahead(self, trainer: Any, this: Round, tasks: list[Task], n: int) -> None:
        """Start the rounds of the next steps, as the trainer's sampler will ask for them."""
        assert self._rounds is not None, "called in a round"
        if not self._plan:
            self._planned_from, self._upcoming = this.step, self._batches(trainer, this.step)
        for step in range(this.step, min(this.step + self.ahead, int(trainer.state.max_steps) - 1) + 1):
            at = step - self._planned_from
            while len(self._plan) <= at:
                self._plan.append(next(self._upcoming))
            if step == this.step and self._plan[at] != tasks:
                raise Conflict("ahead: the trainer asks for other prompts than its sampler said; use ahead=0")
            named = Round(step).tasks(self.run, self._plan[at])
            self._background.call(self._rounds.start(named, n))

    # -- beside the trainer -------------------------------------------------------------------------------------------

    def attach(
        self,
        trainer: Any,
        weights: Weights | None = None,
        *,
        adapters: Literal["merged", "served"] = "merged",
    ) -> None:
        """Tie `trainer` to the job: groups are acknowledged when a checkpoint holds them, TRL's importance-sampling
        correction uses the captured logprobs (GRPOConfig's `vllm_importance_sampling_*`), its models count positions as
        the engine does, masked rows are no part of a mean (`leave_out_masked`), and `weights` go to the engines before
        a round is asked for. None: somebody else publishes them. `adapters`: of a model of peft, what goes to the
        engines: weights with the adapters merged in, or, served, its LoRA adapter alone, which vLLM loads beside its
        own weights; it is tried on every engine here.

        Raises InvalidBody for `ahead` where one optimizer step is not one call, for adapters over sharded weights, and
        for what is not served; Conflict for a TRL that would count masked rows; EngineFailed with the words of an
        engine that does not load it.
        """
        from sandgate.trainer.trl.callback import CheckpointAcks, EngineSync, OneModel

        of.pad_of(trainer)
        leave_out_masked(trainer)
        self._ranks_of(trainer)
        one_call = trainer.args.steps_per_generation * trainer.num_iterations
        if self.ahead and one_call != trainer.args.gradient_accumulation_steps:
            raise InvalidBody(
                "ahead: needs steps_per_generation * num_iterations == gradient_accumulation_steps",
                field="ahead",
            )
        if adapters not in ("merged", "served"):
            raise InvalidBody(f"adapters: {adapters!r} is neither merged nor served", field="adapters")
        if adapters == "served":
            weights = self._served(weights)
        if weights is not None:
            check(trainer, weights)
        if isinstance(weights, ServedAdapters):
            self._ranks_of(trainer).together(lambda: self._try(trainer, weights))
        self._weights = weights
        for model in (trainer.model, trainer.ref_model):
            if model is not None:
                count_from_first(model)
        trainer.add_callback(CheckpointAcks(self.committed))
        trainer.add_callback(OneModel(trainer))
        # TRL has one switch for both: correct with the logprobs of the sampling engine, and sync weights to it.
        trainer.use_vllm, trainer.vllm_generation = True, EngineSync(lambda: self.publish(trainer))
        trainer._last_loaded_step = -1

    def _served(self, weights: Weights | None) -> ServedAdapters:
        if not isinstance(weights, FolderWeights):
            raise InvalidBody('adapters="served" goes through a folder: give FolderWeights', field="adapters")
        return weights.served(self.job)

    def _try(self, trainer: Any, weights: ServedAdapters) -> None:
        """Process 0: each engine loads the adapter once."""
        saved = weights.try_saved(trainer.accelerator.unwrap_model(trainer.model))
        self._background.call(
            weights.try_loaded(self._connected, saved),
            meanwhile=self._ranks_of(trainer).still,
            every_s=LOOK_S,
        )

    def publish(self, trainer: Any) -> None:
        """The trainer's weights, as their `version`, into the engines; turns are held meanwhile, none is lost.
        TRL asks for it before each round; ask yourself, in all processes, before you measure what was trained."""
        if self._weights is not None:
            self._ranks_of(trainer).together(lambda: self._publish(trainer), join=lambda: gathered(trainer))

    def _publish(self, trainer: Any) -> None:
        """Process 0; the others gather."""
        self._refuse_begun_anew(trainer)
        ranks = self._ranks_of(trainer)
        assert self._weights is not None, "looked at before"
        version = self.version(trainer)
        ranks.joined()
        state = gathered(trainer)
        model = trainer.accelerator.unwrap_model(trainer.model)
        self._weights.save(model, version, state=state)
        self._background.call(
            self._weights.publish(self._connected, version), meanwhile=ranks.still, every_s=LOOK_S
        )

    def _meanwhile(self, trainer: Any) -> None:
        """While groups are waited for: the other processes hear of it, and engines that were started anew are given the
        weights again, which nobody else has for them."""
        self._ranks_of(trainer).still()
        if self._weights is None:
            return
        if bare := self._background.call(self._connected.engines_without_weights()):
            log.warning("weights are published again: %s was started anew", ", ".join(bare))
            self._publish(trainer)

    def _ranks_of(self, trainer: Any) -> Ranks:
        """The trainer's processes; made in all of them at once, by the first call. Raises Conflict where this process
        is not who it took itself for when `with` began."""
        if self._ranks is None:
            ranks = Ranks.of(trainer)
            if (ranks.rank == 0) is not self._leads:
                raise Conflict(
                    f"process {ranks.rank} of {ranks.count} did not know its number at `with Rollouts(...)`: make the"
                    " GRPOConfig before it, or set RANK and WORLD_SIZE as torchrun does"
                )
            self._ranks = ranks
        return self._ranks

    def end_job(self) -> None:
        """No more tasks will be pushed: a job whose operator runs the agents completes."""
        if not self._leads:
            return
        self._background.call(self._connected.push_tasks([], last=True))

    def version(self, trainer: Any) -> int:
        """The policy version of the trainer's weights: `global_step`, shifted when a run goes on, so that no version
        ever means two weights: a trainer that was killed may have published newer ones than its checkpoint has. In
        processes other than 0: from the first round on."""
        step = int(trainer.state.global_step)
        if self._shift is None:
            known = self._background.call(self._connected.version())
            self._shift = known + 1 - step if known or step else 0
        return step + self._shift

    def committed(self, step: int) -> None:
        """A checkpoint of `step` optimizer steps is on disk, as each process says: what it was trained on is
        acknowledged."""
        if self._ranks is not None:
            self._ranks.gather([])  # process 0 waits for what the others write of it
            self._ranks.together(lambda: self._committed(step))

    def _committed(self, step: int) -> None:
        if self._rounds is not None:
            self._background.call(self._rounds.commit(step))

    def _began(self, trainer: Any) -> Rounds:
        """At the first call, when the trainer knows the step it resumes from."""
        if self._rounds is None:
            leases = LeaseFile(Path(trainer.args.output_dir) / LEASES)
            bound = of.rules_of(trainer.args).lengths
            options: dict[str, Json] = {} if bound is None else {"limits": bound.limits()}
            begun = self._begin(leases, int(trainer.state.global_step), options | self._session)
            self._rounds = self._background.call(begun)
        return self._rounds

    @property
    def _connected(self) -> AsyncFleet:
        if self._fleet is None:
            raise Conflict("Rollouts: use it as `with Rollouts(...) as rollouts`")
        return self._fleet

    async def _begin(self, leases: LeaseFile, step: int, options: dict[str, Json]) -> Rounds:
        driver: Driver = QueuedAgents(self._connected)
        if self._agent is not None:
            driver = await self._stack.enter_async_context(
                inline(
                    self._connected,
                    self._agent,
                    job=self.job,
                    options=options,
                    wanted=lambda uid: (found := Round.of(self.run, uid)) is not None and found.step >= step,
                    parallel=self._parallel,
                    session_s=self._session_s,
                )
            )
        rounds = Rounds(self._connected, driver, job=self.job, run=self.run, leases=leases, ttl_s=self._ttl_s)
        await rounds.begin(step)
        driver.tell(rounds)
        self._stack.push_async_callback(_cancelled, asyncio.create_task(rounds.collect()))
        return rounds

    def _batches(self, trainer: Any, begun: int) -> Iterator[list[Task]]:
        """The tasks of each optimizer step from `begun` on, for ever: the trainer's own sampler, asked by us. It begins
        with the process, and transformers skips only the steps of the epoch that it goes on in."""
        sampler, prompts = trainer._get_train_sampler(), trainer.train_dataset["prompt"]
        calls = trainer.num_iterations * trainer.args.steps_per_generation
        size, n = trainer.args.generation_batch_size, trainer.num_generations
        skipped: int | None = None
        while True:
            order = list(sampler)
            steps = range(0, len(order), size * calls)
            skipped = begun % len(steps) if skipped is None else 0
            for start in steps[skipped:]:
                yield self._tasks_of([prompts[at] for at in order[start : start + size]], n)


async def _cancelled(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def _key(prompt: Any) -> str:
    """Datasets give messages back with their keys in another order, and absent keys as None."""
    return json.dumps(_bare(prompt), sort_keys=True)


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _bare(one) for name, one in value.items() if one is not None}
    return [_bare(one) for one in value] if isinstance(value, list) else value
