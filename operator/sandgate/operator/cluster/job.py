"""ClusterJob: one RolloutJob in a cluster: its parts, its plans, and the events that it observes.

Its life: gateways and engine are made, gateways are asked what they hold, objects and pods are listed; from then on it
is the same plan as everywhere. When a gateway turns out to have lost what it knew, the store is built anew, as after a
restart of the operator: there is one way to recover.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sandgate.contract.agent_session import AgentSession
from sandgate.contract.errors import SandgateError
from sandgate.contract.job import RolloutJob
from sandgate.contract.keys import Key, Scope, mint
from sandgate.contract.labels import AGENT, ENGINE, JOB, ROLE
from sandgate.contract.names import gateway_name
from sandgate.contract.session import SessionOutcome, SessionState, SessionSummary
from sandgate.contract.status import RolloutJobStatus
from sandgate.operator.cluster.adoption import is_there
from sandgate.operator.cluster.api import Api, Connect
from sandgate.operator.cluster.engine_discovery import EngineDiscovery
from sandgate.operator.cluster.finished_tasks import FinishedTasks
from sandgate.operator.cluster.garbage_collection import GarbageCollector
from sandgate.operator.cluster.gateway_monitor import GatewayMonitor
from sandgate.operator.cluster.gateway_pods import GatewayPods
from sandgate.operator.cluster.job_queue import JobQueue
from sandgate.operator.cluster.job_state import JobState
from sandgate.operator.cluster.object_store import (
    SessionSeen,
    session_seen,
    text_of,
)
from sandgate.operator.cluster.pod_backend import PodBackend
from sandgate.operator.cluster.pod_events import PodEvents
from sandgate.operator.cluster.pod_tracker import ASK_S, UNSURE, PodTracker
from sandgate.operator.cluster.providing import Providing
from sandgate.operator.cluster.remote_sessions import RemoteActs
from sandgate.operator.cluster.resync import PART, Resync
from sandgate.operator.cluster.session_objects import SessionObjects
from sandgate.operator.cluster.status_writer import StatusWriter
from sandgate.operator.cluster.trainer_key import TrainerKeys
from sandgate.operator.cluster.unopened import Unopened
from sandgate.operator.driver.job_driver import JobDriver
from sandgate.operator.driver.task_queue import Queues
from sandgate.operator.manifests import gateway_origin
from sandgate.operator.observed import events
from sandgate.operator.observed.job import JOB_KEY, Observed
from sandgate.operator.observed.pace import Pace
from sandgate.operator.plan.actions import (
    Action,
    JobObserved,
    JobWant,
    Provided,
    Ref,
    SessionObserved,
    Told,
)
from sandgate.operator.plan.ends import seconds, stamp, why_stop
from sandgate.operator.plan.job import plan_job
from sandgate.operator.plan.kueue import QueueSeen, QueueStep, QuotaAsk
from sandgate.operator.plan.queueing import hold, is_done, within
from sandgate.operator.plan.remote import RemoteObserved, plan_remote
from sandgate.operator.plan.standing import is_idle
from sandgate.operator.plan.status_events import News, agent_changed, tasks_repeated
from sandgate.operator.settings import Settings

log = logging.getLogger(__name__)

COMMITTED = "committed"
"""What events call a session whose trajectories were all acknowledged."""
NEWS = (SessionState.COMPLETE.value, SessionState.ABORTED.value)
"""What others do to a session; that it was opened or finalized we know, because we did it."""


class ClusterJob:
    """One job. Everything that it is told comes in this event loop."""

    def __init__(
        self,
        kube: Api,
        settings: Settings,
        job: RolloutJob,
        status: RolloutJobStatus | None,
        *,
        touch: Callable[[str], None],
        forget: Callable[[str], None],
        connect: Connect,
        now: Callable[[], float],
    ) -> None:
        """`touch` plans a key of this job soon; `forget` drops its timers."""
        self.job, self.kube, self.settings, self.now = job, kube, settings, now
        self.touch, self._forget, self.connect = touch, forget, connect
        self._refused = self._taken = self._unprovided = ""
        self._ask: QuotaAsk | None = None
        meta = job.metadata
        self.writer = StatusWriter(kube, meta.namespace, meta.name, status, uid=meta.uid, now=now)
        self.at = JobState(
            kube=kube, settings=settings, job=job, observed=self._observe(status), changed=touch, now=now
        )
        self.queue = JobQueue(self.at, self._queue_says)
        self.providing = Providing(self.at, self._held_up)
        self._ask = self.queue.wants(job)
        self.at.observe(events.WantChanged(self._want()))
        self.collector = GarbageCollector(self.at, FinishedTasks(self.at))
        self.at.on_settled.append(self.collector.settled)
        self.at.on_repeated.append(self._say_repeated)
        self._looked: dict[str, tuple[object, ...]] = {}
        self.objects, self.remote = SessionObjects(self.at), RemoteActs(self.at)
        self.unopened = Unopened(self.at)
        self.sandboxes = PodBackend(self.at, self.objects, self.remote, self.collector, self.unopened)
        self.pods = PodTracker(self.at, self.sandboxes.vanished, self.collector.late, self.spawn)
        self.driver = JobDriver(
            state=self.at,
            backend=self.sandboxes,
            gateways=self.at,
            watcher=self,
            forget_timers=forget,
            cluster=self,
        )
        self.follower = EngineDiscovery(self.at)
        self.gateway_pods, self.pod_events = GatewayPods(self.at), PodEvents(self.at)
        self.intake = Resync(
            at=self.at,
            collector=self.collector,
            beside=self.spawn,
            observe=lambda status: self._observe(status, self.observed.queue),
            ask_anew=self._ask_anew,
            session=self.saw_session,
            pod=self.saw_pod,
            pushed=self.follower.run_queue,
        )
        self._tasks: set[asyncio.Task[None]] = set()
        self._watching: list[asyncio.Task[None]] = []

    def _observe(self, status: RolloutJobStatus | None, queue: QueueSeen | None = None) -> Observed:
        return Observed(
            want=self._want_by(queue, status),
            queue=queue,
            status=status,
            loaded=False,
            provided=Provided.IDLE if is_idle(status) else Provided.NOTHING,
            provided_for=status.observed_generation if status else 0,
            started_at=seconds(status.start_time) if status and status.start_time else self.now(),
            pace=Pace.of_status(status),
            engines=0,
            since=self.now(),
            heard_at=self.now() if self.job.spec.trainer is not None else None,
        )

    def _ask_anew(self) -> None:
        self.follower.queues = Queues()

    def _want(self) -> JobWant:
        return self._want_by(self.observed.queue, self.observed.status)

    def _want_by(self, queue: QueueSeen | None, status: RolloutJobStatus | None) -> JobWant:
        meta = self.job.metadata
        held = hold(self._ask, queue, done=is_done(status))
        return JobWant(
            name=meta.name,
            spec=within(self.job.spec, held, queue),
            generation=meta.generation,
            selector=f"{JOB}={meta.name},{ROLE}={AGENT}",
            refused=self._refused,
            taken=self._taken,
            unprovided=self._unprovided,
            ask=self._ask,
            held=held,
        )

    @property
    def observed(self) -> Observed:
        return self.at.observed

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin; the rest is driven by plans."""
        self.spawn(self.writer.run())
        self.spawn(self.collector.run())
        self.spawn(TrainerKeys(self.at).run())
        self.touch(JOB_KEY)

    def spawn(self, what: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Beside, until this run ends."""
        task = asyncio.get_running_loop().create_task(what)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("job %s/%s: a part ended", self.at.namespace, self.at.name, exc_info=error)

    async def stop(self, *, flush: bool = False) -> None:
        """No more calls. `flush`: write the last status first."""
        if flush:
            try:
                await self.writer.flush()
            except SandgateError as error:
                log.warning("job %s/%s: last status: %s", self.at.namespace, self.at.name, error)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def respec(self, job: RolloutJob) -> None:
        """Its spec is another."""
        before, self.job, self._refused = self.job, job, ""
        self.at.job = job
        mixed = agent_changed(before.spec, job.spec, self.observed.groups.values(), stamp(self.now()))
        if mixed is not None:
            self.spawn(self._say(mixed))
        self._ask = self.queue.wants(job)
        self._want_anew()
        if job.spec.trainer is None:
            self.at.observe(events.TrainerAwaited(None))
        elif before.spec.trainer is None:
            self.at.observe(events.TrainerAwaited(self.now()))
        self.follower.occasion.set()
        self.touch(JOB_KEY)

    def _say_repeated(self, uids: Sequence[str]) -> None:
        self.spawn(self._say(tasks_repeated(uids, stamp(self.now()))))

    async def _say(self, one: News) -> None:
        await self.writer.say(one)

    def _want_anew(self) -> None:
        before = self.observed.want.spec
        self.at.observe(events.WantChanged(self._want()))
        resumed = before.suspend and not self.observed.want.spec.suspend
        if resumed and self.job.spec.trainer is not None:  # it had no reason to talk to a suspended job
            self.at.observe(events.TrainerAwaited(self.now()))

    def _queue_says(self) -> None:
        """What the queue says is another."""
        self._want_anew()
        self.touch(JOB_KEY)

    def refuse(self, why: str) -> None:
        """A newer spec cannot run: the one before stays, and the status says so."""
        self._refused = why
        self.at.observe(events.WantChanged(self._want()))
        self.touch(JOB_KEY)

    # -- plans and actions --------------------------------------------------------------------------------------------

    def plan(self, key: str) -> list[Action]:
        """What is to be done for a key now."""
        if key == JOB_KEY:
            job = self.at.job_observed()
            self._stir(job)
            want = replace(
                self.observed.want, unopened=self.unopened.words(), unwelcome=self.unopened.behind()
            )
            return plan_job(want, job, self.now())
        if key not in self.observed.sessions:
            if key in self.observed.remotes.asked:
                return self._plan_remote(key)
            self._forget(key)
            return []
        return self.driver.plan_session(key)

    def _plan_remote(self, key: str) -> list[Action]:
        seen = self.observed
        if not seen.loaded and seen.provided is not Provided.IDLE:
            return []  # asked again when it is
        ref, gateway = seen.remotes.asked[key]
        one = RemoteObserved(
            ref=ref,
            gateway=gateway,
            home=seen.remotes.homes.get(ref.uid, ""),
            own=seen.knows(ref.uid) and ref.uid not in seen.remotes.homes,
            newest=seen.remotes.of(ref.uid, ref.sample),
        )
        job = seen.job()
        self._looked[key] = self._holds(job)
        return plan_remote(seen.want, job, one, self.now())

    def _holds(self, job: JobObserved) -> tuple[object, ...]:
        """What may hold up remote sessions."""
        over = "" if job.status is None else job.status.completion_time
        return (
            *job.gateways,
            why_stop(self.observed.want.spec, job, self.now()),
            job.more,
            job.problem,
            over,
            job.provided is Provided.NOTHING,
            self._taken,
            self._unprovided,
        )

    def _stir(self, job: JobObserved) -> None:
        """Plan anew what was held up by something else than there is now."""
        asked = self.observed.remotes.asked
        self._looked = {name: holds for name, holds in self._looked.items() if name in asked}
        if asked:
            holds = self._holds(job)
            for name in asked:
                if self._looked.get(name) != holds:
                    self.touch(name)

    # -- what happens (driver.backend.JobWatcher) ---------------------------------------------------------------------

    def stands(self, gateway: str, said: SessionSummary) -> None:
        """Nobody else is told."""

    def sealed(self, seen: SessionObserved, said: SessionSummary, outcome: SessionOutcome) -> None:
        """Its AgentSession will say so."""

    def wrote(self, status: RolloutJobStatus) -> None:
        """Its object is to say so."""
        if status.start_time:
            self.at.observe(events.JobStarted(seconds(status.start_time)))
        self.writer.want(status)
        if self.observed.want.held is not None and is_done(status):
            self._want_anew()
        self.touch(JOB_KEY)  # a job that is over by this plans its end

    # -- objects (driver.backend.JobObjects) --------------------------------------------------------------------------

    async def open_remote(self, ref: Ref, gateway: str) -> None:
        """At its gateway, with the keys of its agent."""
        await self.remote.open(ref, gateway)

    async def hold_remote(self, ref: Ref, why: str, *, final: bool) -> None:
        """Its status says why it is not open."""
        await self.remote.hold(ref, why, final=final)

    async def write_session(self, ref: Ref) -> None:
        """Its AgentSession's status."""
        await self.objects.write(ref)

    async def tend_workload(self, step: QueueStep) -> None:
        """Tell its queue."""
        await self.queue.carry_out(step)

    async def delete_job(self) -> None:
        """Its ttl is over."""
        meta = self.job.metadata
        log.info("job %s/%s: its ttl is over", meta.namespace, meta.name)
        await self.kube.delete(RolloutJob.KIND, meta.namespace, meta.name, uid=meta.uid)

    async def provide(self, what: Provided) -> None:
        """Gateways and the engine, one of them or none. What is to go is not asked any more before it goes."""
        job = self.job
        if what is Provided.IDLE:
            await self._watch_nothing()
        await self.writer.begin(self.observed.want.selector)
        try:
            stands = await self.providing.bring(what)
        finally:
            if self.at.secret and what is not Provided.IDLE:
                self._watch_gateways(job)
        if stands:
            self.at.observe(events.EngineProvided(what, job.metadata.generation))

    def _held_up(self, taken: str, refused: str) -> None:
        """What keeps it from being provided is another."""
        self._taken, self._unprovided = taken, refused
        self.at.observe(events.WantChanged(self._want()))

    async def _watch_nothing(self) -> None:
        """Its gateways and engine go: nobody looks for them any more. What they held is known, and stays known."""
        async with self.intake.lock:  # what is being taken in is taken in whole
            watching, self._watching = self._watching, []
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
            for monitor in self.at.monitors.values():
                self.follower.left(monitor)
            self.at.monitors.clear()
        self.at.observe(events.EnginesCounted(0, ""))

    def _watch_gateways(self, job: RolloutJob) -> None:
        """To gateways that there was none to: their number may grow."""
        if not self._watching:
            looks = (self.follower.run_engines(), self.gateway_pods.run(), self.pod_events.run())
            self._watching = [self.spawn(each) for each in looks]
        meta = job.metadata
        key = mint(self.at.secret, Key(Scope.ADMIN, job=meta.name))
        for index in range(job.spec.gateway.replicas):
            if (name := gateway_name(meta.name, index)) in self.at.monitors:
                continue
            origin = gateway_origin(meta.name, index, meta.namespace, self.settings)
            monitor = GatewayMonitor(name, origin, meta.name, key, self.connect, self, self.now)
            self.at.monitors[name] = monitor
            self._watching.append(self.spawn(monitor.run()))

    # -- gateways (gateway_monitor.Watcher) ----------------------------------------------------------------------------

    async def arrived(self, monitor: GatewayMonitor, listed: list[SessionSummary], asked: float) -> None:
        """It answers: what it holds is taken in, or compared with what is known."""
        # Before anything is sampled there.
        await self.follower.repeat_version(monitor, await monitor.client.status())
        if await self.intake.arrived(monitor, listed):
            self.follower.back(monitor)
            if not self.observed.gateways and self.job.spec.trainer is not None:
                self.at.observe(events.TrainerAwaited(self.now()))  # until now it had nobody to talk to
            self.at.observe(events.GatewayChanged(monitor.name, ready=True))
            for number, said in enumerate(listed):
                if number % PART == PART - 1:
                    await asyncio.sleep(0)
                if said.session_id in self.observed.sessions:
                    self.at.observe(events.SessionReported(said, asked))
                    if said.committed:  # the event that told so may have died with the gateway
                        self.at.observe(events.SessionCommitted(said.session_id))

    async def changed(self, monitor: GatewayMonitor, name: str, state: str) -> None:
        """A session's state at its gateway, by others than us."""
        async with self.intake.lock:  # what is being built anew would not know of it
            seen = self.observed.sessions.get(name)
        if seen is None:
            return
        if state == COMMITTED:
            self.at.observe(events.SessionCommitted(name))
        elif state in NEWS:
            await self.driver.look(seen.ref)

    async def says(self, monitor: GatewayMonitor, status: dict[str, Any]) -> None:
        """Engines, weights, the trainer's sign of life."""
        await self.follower.says(monitor, status)

    def left(self, monitor: GatewayMonitor) -> None:
        """It does not answer any more."""
        self.follower.left(monitor)
        self.gateway_pods.away.set()

    # -- objects ------------------------------------------------------------------------------------------------------

    def saw_session(self, body: Mapping[str, Any], *, gone: bool = False) -> None:
        """An AgentSession of this job came, changed or went."""
        seen = session_seen(body)
        if seen is None or (not seen.spec.remote and seen.owner != self.job.metadata.uid):
            return  # the latter is of a job that had this name before, and being deleted with it
        if gone and not seen.deleting and self._is_live(seen):
            self.spawn(self._ask_session(seen))
        elif gone or seen.deleting:
            self.session_gone(seen.name, seen.uid)
        else:
            news = self.at.sessions.put(seen.name, seen)
            if news and seen.spec.remote and self._answers_remotes and seen.told < Told.FINALIZED:
                self.at.observe(events.RemoteAsked(seen.ref, seen.spec.gateway))

    def _is_live(self, seen: SessionSeen) -> bool:
        """What becomes of it depends on whether it is there."""
        kept, remotes = self.at.sessions.held.get(seen.name), self.observed.remotes
        live = seen.name in self.observed.sessions or seen.name in remotes.asked
        return live and kept is not None and kept.uid == seen.uid

    async def _ask_session(self, seen: SessionSeen) -> None:
        """A watch told that it is gone; see `is_there`."""
        while self._is_live(seen):
            try:
                if (
                    await is_there(self.kube, AgentSession.KIND, self.at.namespace, seen.name, seen.uid)
                    is None
                ):
                    self.session_gone(seen.name, seen.uid)
                return
            except UNSURE:
                await asyncio.sleep(ASK_S)

    @property
    def _answers_remotes(self) -> bool:
        """Of a job whose gateways are away on purpose, the answer needs none of them."""
        return self.observed.loaded or self.observed.provided is Provided.IDLE

    def session_gone(self, name: str, uid: str) -> None:
        """It is not there any more."""
        kept = self.at.sessions.held.get(name)
        if kept is not None and kept.uid == uid:
            self.objects.gone(kept)
        else:
            self.at.sessions.pop(name, uid)  # late news of it do not bring it back

    def saw_pod(self, body: Mapping[str, Any], *, gone: bool = False) -> None:
        """A pod of this job came, changed or went."""
        if text_of(body, "metadata", "labels", ROLE) == ENGINE:
            self.follower.occasion.set()
        else:
            self.pods.saw(body, gone=gone)
