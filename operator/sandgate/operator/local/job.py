"""LocalJob: a RolloutJob without a cluster: engine, gateways and agents are processes of this machine.

Agents run as local processes with this user's rights: there is no isolation. Everything that matters is in the
`out` folder: a run that was interrupted, killed or drained goes on when it is started again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from sandgate.contract import descriptors
from sandgate.contract.attach import RunState
from sandgate.contract.errors import SandgateError
from sandgate.contract.job import BackendKind, RolloutJob, Task
from sandgate.contract.session import SessionOutcome, SessionState, SessionSummary
from sandgate.contract.status import JobCondition, RolloutJobStatus
from sandgate.operator.driver.job_driver import JobDriver
from sandgate.operator.driver.reconcile import Reconciler
from sandgate.operator.driver.state import DriverState
from sandgate.operator.driver.tasks import load_tasks
from sandgate.operator.local import versions
from sandgate.operator.local.attendance import awaited as awaited
from sandgate.operator.local.clock import RunClock
from sandgate.operator.local.folder import Folder
from sandgate.operator.local.gateways import LocalGateway, LocalGateways
from sandgate.operator.local.group_files import GroupFiles
from sandgate.operator.local.group_files import Merge as Merge
from sandgate.operator.local.group_files import SamplesIn as SamplesIn
from sandgate.operator.local.group_files import WriteGroups as WriteGroups
from sandgate.operator.local.journals import Journals
from sandgate.operator.local.manifest import load_job as load_job
from sandgate.operator.local.preflight import descriptors_needed, files
from sandgate.operator.local.progress import Counts as Counts
from sandgate.operator.local.progress import DrainStarted as DrainStarted
from sandgate.operator.local.progress import EngineReady as EngineReady
from sandgate.operator.local.progress import EngineStarting as EngineStarting
from sandgate.operator.local.progress import Event as Event
from sandgate.operator.local.progress import GatewayReady as GatewayReady
from sandgate.operator.local.progress import GroupCollected as GroupCollected
from sandgate.operator.local.progress import GroupSettled as GroupSettled
from sandgate.operator.local.progress import JobResult as JobResult
from sandgate.operator.local.progress import Note as Note
from sandgate.operator.local.progress import Problem as Problem
from sandgate.operator.local.progress import ProcessRestarted as ProcessRestarted
from sandgate.operator.local.progress import Resumed as Resumed
from sandgate.operator.local.progress import SessionEnded as SessionEnded
from sandgate.operator.local.progress import SessionStarted as SessionStarted
from sandgate.operator.local.progress import Tell
from sandgate.operator.local.progress import TrainerNews as TrainerNews
from sandgate.operator.local.pushed_tasks import PushedTasks
from sandgate.operator.local.report import Meter, result
from sandgate.operator.local.resuming import reopen, reopened
from sandgate.operator.local.retrying import own_sessions, to_retry
from sandgate.operator.local.sandboxes import Sandboxes, check
from sandgate.operator.local.stack import LocalStack, absolute, standing
from sandgate.operator.local.supervise import Supervised
from sandgate.operator.local.trainers import Trainers
from sandgate.operator.observed import events
from sandgate.operator.observed.job import JOB_KEY, Observed
from sandgate.operator.observed.restarts import recalled
from sandgate.operator.plan import actions
from sandgate.operator.plan.actions import Action, JobWant, SessionObserved
from sandgate.operator.plan.conditions import is_over, is_true
from sandgate.operator.plan.job import plan_job
from sandgate.operator.plan.missing_groups import Gaps, Sample, gaps
from sandgate.sandbox.process import watch_memory

COUNTS_S = 1.0
"""Between Counts events."""
EVENTS_WAIT_S = 2.0
"""Of one long poll at a gateway; one that shuts down waits for it."""
BOOKS_S = 5.0
"""For the gateways' own books, at the end of a run that is aborted: a person waits."""
NEWS = (SessionState.COMPLETE.value, SessionState.ABORTED.value)
"""What others do to a session; that it was opened or finalized we know, because we did it."""


def ignore(event: Event) -> None:
    """The default `progress`."""


async def run_local(
    job: RolloutJob,
    *,
    manifest_dir: Path,
    out: Path,
    write_groups: WriteGroups,
    merge: Merge,
    samples_in: SamplesIn,
    engine_url: str | None = None,
    progress: Tell = ignore,
    stop: asyncio.Event | None = None,
    abort: asyncio.Event | None = None,
    retry_failed: bool = False,
    tasks: tuple[Task, ...] | None = None,
    retire_s: float = 0.0,
) -> JobResult:
    """Run `job` to its end, or until it was told to stop; running it again with the same `out` goes on.

    `manifest_dir`: what relative paths of the manifest begin at. `progress` is called on the event loop. `stop`:
    start nothing new, let sessions end. `abort`: end now; sessions that run are tried again by the next run.
    `retry_failed`: samples without a row, of groups that are not there, are tried again whatever they failed of.
    `tasks`: the job's, if they were read already. `retire_s`: gateways let go of a group that long after a trainer has
    acknowledged all of it; 0: never, as a run that is to be gone on with must know what it has. `spec.output` has no
    effect here: files are always written, and groups are always there for a trainer (see `sandgate.trainer.local`).
    `staleness` and `trainer` hold while a trainer is attached, or may come back.

    Raises BadManifest, Unsupported (the job cannot run here), Conflict (`out` is in use, or holds another job, or rows
    that this manifest would not make), Unavailable (engine or gateway do not start, or keep dying).
    """
    check(job)
    manifest_dir, out = absolute(manifest_dir), absolute(out)
    if tasks is None:
        tasks = await asyncio.to_thread(load_tasks, job.spec.tasks, manifest_dir)
    descriptors.raise_to(descriptors_needed(job, tasks))
    for text in files(job, tasks, descriptors.most(), anew=False)[1]:
        progress(Note(text=text))
    if not Folder(out).job_file().exists():
        asked = job.spec.agent.backend
        instead = "" if asked is BackendKind.PROCESS else f"backend {asked.value}: here "
        progress(Note(text=f"{instead}agents run as local processes of this user, without isolation"))
    async with standing(
        job,
        manifest_dir=manifest_dir,
        out=out,
        tell=progress,
        engine_url=engine_url,
        tasks=tasks,
        retire_s=retire_s,
    ) as ours:
        run = LocalJob(job, tasks, manifest_dir, ours, progress, write_groups, samples_in)
        run.retry_failed = retry_failed
        served = [one.process for one in ours.gateways.values()]
        served += [ours.model.process] if ours.model.process else []
        abort = abort or asyncio.Event()
        await run.go(served, stop or asyncio.Event(), abort)
        if abort.is_set():
            return await run.give_up(served)
        return await run.finish(served, merge)


class LocalJob:
    """A run: its parts, its plans, and who else is told of them (`JobWatcher`)."""

    def __init__(
        self,
        job: RolloutJob,
        tasks: tuple[Task, ...],
        manifest_dir: Path,
        ours: LocalStack,
        tell: Tell,
        write_groups: WriteGroups,
        samples_in: SamplesIn,
    ) -> None:
        found, folder = ours.gateways, ours.folder
        self.job, self.folder, self.gateways, self.tell = job, folder, found, tell
        self.tasks = {task.uid: task for task in tasks}
        self.want = JobWant(name=job.metadata.name, spec=job.spec)
        # While nobody publishes weights nothing can be stale, and waiting for them would never end.
        self.alone = JobWant(name=job.metadata.name, spec=replace(job.spec, staleness=None))
        self.clock = RunClock()
        self.reconciler = Reconciler(
            self._plan,
            self._carry_out,
            woke=lambda key: self.state.observe(events.TimerSet(key, None)),
            now=self.clock,
        )
        pushed = job.spec.tasks.queue is not None
        self.state = DriverState(
            job=job,
            observed=Observed(
                want=self.want,
                started_at=self.clock(),
                more=pushed,
                heard_at=self.clock() if pushed and job.spec.trainer is not None else None,
            ),
            changed=self.reconciler.touch,
            now=self.clock,
            tasks=self.tasks,
        )
        self.journals = Journals(self.state, folder.root, tell)
        self.sandboxes = Sandboxes(
            self.state, manifest_dir, folder, ours.guard, ours.recipe, spawn=self._spawn, tell=tell
        )
        self.driver = JobDriver(
            state=self.state,
            backend=self.sandboxes,
            gateways=LocalGateways(found, self.state, self.journals),
            watcher=self,
            forget_timers=self.reconciler.forget,
        )
        self.collector = GroupFiles(job.metadata.name, folder, found, self.state, write_groups, tell)
        self.samples_in, self.retry_failed = samples_in, False
        self.state.on_settled.append(self._settled)
        self.trainers = Trainers(job, ours.desk, found, self.state, tell, self.journals)
        self.pushed = PushedTasks(self.state, found) if pushed else None
        self.meter = Meter(self.state, found, tell)
        self.clock.stepped = self._stepped
        self.resumed, self.over = asyncio.Event(), asyncio.Event()
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._beside: set[asyncio.Task[None]] = set()

    @property
    def observed(self) -> Observed:
        """What is observed now."""
        return self.state.observed

    # -- the run ------------------------------------------------------------------------------------------------------

    async def go(self, served: list[Supervised], stop: asyncio.Event, abort: asyncio.Event) -> None:
        """Until the job is over, drained or aborted. Raises what ended a part of it."""
        loop = asyncio.get_running_loop()
        parts = [
            self._resume_and_run(),
            self.collector.run(),
            self.meter.run(COUNTS_S),
            watch_memory(lambda: self.sandboxes.running),
            self._follow_trainers(),
            *([] if self.pushed is None else [self._follow_queue(self.pushed)]),
            *(self._follow(one) for one in self.gateways.values()),
        ]
        ends = [
            loop.create_task(one)
            for one in (self._to_the_end(stop), _until(abort), self._drain(stop), *parts)
        ]
        kept = [one.task for one in served if one.task is not None]
        try:
            done, _ = await asyncio.wait([*ends, *kept, self.failed], return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
        finally:
            for task in ends:
                task.cancel()
            await asyncio.gather(*ends, return_exceptions=True)
            await self.sandboxes.kill_all()
            await asyncio.gather(*self._beside, return_exceptions=True)

    def _settled(self, uids: Sequence[str]) -> None:
        for uid in uids:
            self.collector.settled(uid)
            self.tell(GroupSettled(uid=uid, sessions=self.observed.settled.get(uid, 0)))

    async def _to_the_end(self, stop: asyncio.Event) -> None:
        await self.over.wait()
        complete = is_true(self.observed.status, JobCondition.COMPLETE)
        await self.trainers.hand_over(stop, complete=complete)

    async def _resume_and_run(self) -> None:
        await self._resume()
        await self.reconciler.run()

    async def _resume(self) -> None:
        """Take in what earlier runs left. What gateways list of it is held no longer than this."""
        lost = 0
        held = await own_sessions(self.job, self.gateways, self.tasks)
        again = await self._again([one for listed in held.values() for one in listed])
        kept = await asyncio.to_thread(versions.read, self.folder.versions)
        # No wait from here until files of earlier runs are known: what is settled would be written anew.
        for name, listed in held.items():
            gateway = self.gateways[name]
            lost += sum(not one.state.ended for one in listed)
            for one in listed:
                self.collector.ended(gateway.name, one)
            known = recalled(self.want, listed)
            self.state.observe(events.SessionsFound(gateway.name, known, frozenset(again)))
        if kept is not None or self.observed.begun:  # by a release that counted none, if nothing was kept
            self.state.observe(events.VersionsRecalled(*(kept or (0, None))))
        if self.pushed is None:
            self.state.observe(events.TasksAdded(tuple(self.tasks)))
        else:
            await self.pushed.look()
        self.collector.resume()
        await self.trainers.look()
        job = self.observed.job()
        if job.begun:
            self.tell(Resumed(ended=job.tally.ended, lost=lost, collected=len(self.collector.collected)))
        for name in self.gateways:
            self.state.observe(events.GatewayChanged(name, ready=name not in self.journals.broken))
        self.resumed.set()

    async def _follow_queue(self, pushed: PushedTasks) -> None:
        await self.resumed.wait()  # before, a task of an earlier run would look new
        await pushed.run()

    async def _follow_trainers(self) -> None:
        await self.resumed.wait()  # before, what they have taken is not known
        await self.trainers.run()

    async def _again(self, listed: list[SessionSummary]) -> set[Sample]:
        """Samples that are to be tried anew; and the folder knows which groups' files to trust no more."""
        opened = set(reopened(self.folder.root))
        again: set[Sample] = set()
        if self.retry_failed:
            again = await asyncio.to_thread(
                to_retry, self.job, self.folder, self.tasks, listed, self.samples_in
            )
            opened |= {uid for uid, _ in again}
            await asyncio.to_thread(reopen, self.folder.root, opened)
        self.collector.reopened = opened
        return again

    async def _drain(self, stop: asyncio.Event) -> None:
        """Never ends by itself: an error in it ends the run, as in any other part."""
        await stop.wait()
        self.state.observe(events.DrainAsked())
        if running := len(self.observed.live):  # else it ends now, or says what it waits for
            self.tell(DrainStarted(running=running))
        self._check_over()
        await asyncio.Event().wait()

    async def _follow(self, gateway: LocalGateway) -> None:
        """Sessions that completed or were aborted by somebody else."""
        cursor = 0
        while True:
            events = await gateway.client.events(cursor, wait_s=EVENTS_WAIT_S)
            cursor = events.cursor
            changed = {name for name, state in events.sessions if state in NEWS}
            if events.reset:
                changed |= {one.ref.name for one in self.observed.live}
            for name in changed & self.observed.sessions.keys():
                seen = self.observed.sessions.get(name)  # it may have gone while another was looked at
                if seen is not None and name in self.observed.placed:
                    await self.driver.look(seen.ref)

    async def finish(self, served: list[Supervised], merge: Merge) -> JobResult:
        """Bring in what is left, merge if the job is over."""
        await self.collector.sweep()
        for action in self._plan(JOB_KEY):  # what was collected since the last plan
            if isinstance(action, actions.WriteStatus):
                self.state.observe(events.StatusWritten(action.status))
        status = self.observed.status
        over = is_over(status)
        missing: Gaps = {}
        if over:
            files = self.collector.files(self.tasks if self.pushed is None else sorted(self.observed.settled))
            await asyncio.to_thread(merge, files, self.folder.trajectories)
            have = await asyncio.to_thread(self.samples_in, self.folder.trajectories)
            missing = gaps(self.tasks, self.job.spec, set(have))
        left = set(self.collector.reopened) - self.collector.collected
        await asyncio.to_thread(reopen, self.folder.root, left)
        self.meter.counts()
        complete = is_true(status, JobCondition.COMPLETE) and not self.collector.missing()
        owed = self.trainers.seen.owed
        if over:
            self.trainers.desk.say(
                state=RunState.OVER, complete=complete and not missing, missing=len(missing), owed=owed
            )
        else:
            self.trainers.desk.say(state=RunState.STOPPED, owed=owed)
        return await result(
            self.observed,
            self.gateways,
            complete=complete,
            trajectories=self.folder.trajectories if over else None,
            groups=len(self.collector.collected),
            seconds=self.meter.seconds,
            restarts=sum(one.restarts for one in served),
            missing=missing,
            problems=self.trainers.problems(),
            message=self.meter.message,
        )

    async def give_up(self, served: list[Supervised]) -> JobResult:
        """At once: nobody waits for turns that nobody will read. Journals lose nothing by it."""
        restarts = sum(one.restarts for one in served)
        books: JobResult | None = None
        with suppress(TimeoutError, SandgateError):  # a gateway may be what this run is aborted for
            async with asyncio.timeout(BOOKS_S):
                books = await self._books(restarts)
        await asyncio.gather(*(one.stop(0.0) for one in served))
        return books or self.meter.result(groups=len(self.collector.collected), restarts=restarts)

    async def _books(self, restarts: int) -> JobResult:
        return await result(
            self.observed,
            self.gateways,
            complete=False,
            trajectories=None,
            groups=len(self.collector.collected),
            seconds=self.meter.seconds,
            restarts=restarts,
            missing={},
        )

    def _spawn(self, what: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(what)
        self._beside.add(task)

        def done(task: asyncio.Task[None]) -> None:
            self._beside.discard(task)
            error = None if task.cancelled() else task.exception()
            if error is not None and not self.failed.done():
                self.failed.set_exception(error)

        task.add_done_callback(done)

    def _stepped(self, by: float) -> None:
        """The clock jumped, and no agent ran meanwhile: that is nobody's time."""
        self.state.observe(events.ClockStepped(by, self.clock()))
        self.trainers.stepped(by)
        self.journals.stepped(by)
        for gateway in self.gateways.values():
            gateway.process.stepped(by)
        how = f"{'went ahead' if by > 0 else 'was set back'} by {abs(by):.0f} s"
        what = f"the clock {how} (this machine slept, or it was set): it is no session's time"
        self.tell(Note(text=what))

    def _check_over(self) -> None:
        drained = self.observed.draining and not self.observed.live
        if drained or is_over(self.observed.status):
            self.over.set()

    # -- plans and actions --------------------------------------------------------------------------------------------

    def _plan(self, key: str) -> list[Action]:
        now = self.clock()
        if key == JOB_KEY:
            want = self.want if self.trainers.expected else self.alone
            plan = plan_job(want, self.state.job_observed(), now)
            self._check_over()
            return plan
        return self.driver.plan_session(key) if key in self.observed.sessions else []

    async def _carry_out(self, key: str, action: Action) -> None:
        await self.driver.carry_out(key, action)

    # -- what happens (driver.backend.JobWatcher) ---------------------------------------------------------------------

    def stands(self, gateway: str, said: SessionSummary) -> None:
        """How a session stands."""
        self.collector.ended(gateway, said)

    def sealed(self, seen: SessionObserved, said: SessionSummary, outcome: SessionOutcome) -> None:
        """An attempt is over."""
        self.tell(self.meter.ended(seen, said, outcome))

    def wrote(self, status: RolloutJobStatus) -> None:
        """The job may be over by it; or teach nothing so far, which is said once."""
        self._check_over()
        self.meter.warn(status)


async def _until(event: asyncio.Event) -> None:
    await event.wait()
