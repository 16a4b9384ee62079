"""JobController: all jobs of one operator: a driver for each, one queue of keys; a broken job stops no other."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sandgate.contract.agent_session import AgentSession
from sandgate.contract.conditions import JobCondition, JobReason
from sandgate.contract.errors import Forbidden, NotFound, SandgateError
from sandgate.contract.job import RolloutJob
from sandgate.contract.labels import JOB, PRIORITY_CLASS, QUEUE, SHARD
from sandgate.contract.manifest_decoder import decode
from sandgate.contract.names import OPERATOR
from sandgate.contract.status import RolloutJobStatus
from sandgate.operator.cluster.adoption import lost
from sandgate.operator.cluster.api import Api, Connect, connect
from sandgate.operator.cluster.health import OperatorHealth
from sandgate.operator.cluster.job import ClusterJob
from sandgate.operator.cluster.object_store import session_seen, text_of
from sandgate.operator.cluster.orphans import Orphans
from sandgate.operator.cluster.refused_job import MESSAGE_MAX, began, mended, status_in, verdict, was_refused
from sandgate.operator.cluster.spec_acceptance import tell
from sandgate.operator.cluster.status_writer import StatusWriter
from sandgate.operator.cluster.workload_looks import WorkloadLooks
from sandgate.operator.driver.reconcile import Reconciler
from sandgate.operator.kubernetes.kinds import selector
from sandgate.operator.manifests import check_cluster
from sandgate.operator.observed.events import TimerSet
from sandgate.operator.plan.actions import Action
from sandgate.operator.plan.conditions import find, is_over, is_true
from sandgate.operator.settings import Settings

log = logging.getLogger(__name__)

DRAIN_S = 20.0
"""What is in hand may take as long; Kubernetes kills after 30 s."""
DELETED = "DELETED"
WAITED_FOR = (JobReason.NO_GATEWAY, JobReason.NO_ENGINE)
"""Why jobs are not ready, mostly: series that are there from the beginning."""

Body = Mapping[str, Any]
EVERYTHING: tuple[type[Exception], ...] = (Exception,)
"""A mistake in one job, or in us, is logged and tried again later; the other jobs go on."""


@dataclass(frozen=True, slots=True)
class Listed:
    """Uids of all objects of a kind, but those of namespaces of which nothing is known."""

    uids: set[str]
    unknown: set[str]

    def lacks(self, namespace: str, uid: str) -> bool:
        """That object is not there any more."""
        return namespace not in self.unknown and uid not in self.uids


class JobController:
    """Not for several threads: `saw` is called in the event loop of `run`."""

    def __init__(
        self,
        kube: Api,
        settings: Settings,
        *,
        now: Callable[[], float] = time.time,
        connect: Connect = connect,
    ) -> None:
        self.kube, self.settings, self.now, self.connect = kube, settings, now, connect
        self.runs: dict[str, ClusterJob] = {}
        """RolloutJob's uid -> its driver."""
        self.reconciler = Reconciler(
            self._plan,
            self._carry_out,
            woke=self._woke,
            now=now,
            retried=EVERYTHING,
            share_of=lambda key: key.partition("/")[0],
        )
        self.orphans = Orphans(kube, self._has_job, now, settings.shard, self._spawn)
        self.looks = WorkloadLooks(
            kube, settings.namespaces, lambda: [run.queue for run in self.runs.values()], self._spawn
        )
        self._names: dict[tuple[str, str], str] = {}
        """(namespace, name) -> uid of the job that has that name now."""
        self._refused: dict[str, StatusWriter] = {}
        """Jobs that cannot run, by uid; what was written about them."""
        self._generations: dict[str, tuple[int, str, str]] = {}
        """Uid -> what of a job counts: its spec, and the labels that say how it is queued."""
        self._draining = False
        self._last_event: float | None = None
        self._last_sweep: float | None = None
        self._beside: set[asyncio.Task[None]] = set()

    # -- news ---------------------------------------------------------------------------------------------------------

    def saw(self, kind: str, event: str | None, body: Body) -> None:
        """An object came, changed or went; `event` as the watch calls it, None: it was listed. Cheap; never raises."""
        self._last_event = self.now()
        try:
            if kind == RolloutJob.KIND:
                self._saw_job(body, gone=event == DELETED)
            elif kind == AgentSession.KIND:
                run = self._run_of(body, text_of(body, "spec", "jobName"))
                if run is not None:
                    run.saw_session(body, gone=event == DELETED)
                else:
                    namespace = text_of(body, "metadata", "namespace")
                    self.orphans.saw(namespace, session_seen(body), gone=event == DELETED)
            elif kind == "Pod":
                run = self._run_of(body, text_of(body, "metadata", "labels", JOB))
                if run is not None:
                    run.saw_pod(body, gone=event == DELETED)
        except Exception:  # one object that nobody foresaw must not end the watch
            log.exception("%s %s is not understood", kind, text_of(body, "metadata", "name"))

    def _run_of(self, body: Body, job: str) -> ClusterJob | None:
        return self.runs.get(self._names.get((text_of(body, "metadata", "namespace"), job), ""))

    def _has_job(self, namespace: str, name: str) -> bool:
        return self._names.get((namespace, name), "") in self.runs

    def _saw_job(self, body: Body, *, gone: bool) -> None:
        uid = text_of(body, "metadata", "uid")
        mine = text_of(body, "metadata", "labels", SHARD) == self.settings.shard
        if gone or not mine or text_of(body, "metadata", "deletionTimestamp"):
            self._drop(uid)
            return
        generation = int((body.get("metadata") or {}).get("generation") or 0)
        queue, wanted = (text_of(body, "metadata", "labels", name) for name in (QUEUE, PRIORITY_CLASS))
        counts = generation, queue, wanted
        if not uid or self._generations.get(uid) == counts:
            return
        before = self._generations.get(uid)
        self._generations[uid] = counts
        try:
            self._take_on(uid, body, counts)
        except Exception:  # a mistake of ours: the next news of the job is another try
            if before is None:
                self._generations.pop(uid, None)
            else:
                self._generations[uid] = before
            raise

    def _take_on(self, uid: str, body: Body, counts: tuple[int, str, str]) -> None:
        """It is new, or another."""
        if (manager := text_of(body, "spec", "managedBy")) not in ("", OPERATOR):
            log.info("job %s/%s is %s's to run", *_called(body), manager)
            return
        self._names[_called(body)] = uid
        try:
            made = {name: value for name, value in body.items() if name != "status"}
            job = decode(RolloutJob, made, stored=uid in self.runs or began(status_in(body)))
            check_cluster(job)
        except SandgateError as error:
            self._refuse(uid, body, counts[0], error)
            return
        before = status_in(body)
        if (run := self.runs.get(uid)) is not None:
            run.respec(job)
        elif uid in self._refused or was_refused(before):
            self._spawn(self._mend(uid, job, counts))
        else:
            self._begin(uid, job, before)
        self.looks.wake()

    async def _mend(self, uid: str, job: RolloutJob, counts: tuple[int, str, str]) -> None:
        """Every field of a job that was refused may change. It begins once the API server holds it to this spec."""
        meta = job.metadata
        writer = self._refusals(uid, meta.namespace, meta.name)
        status = await tell(self.kube, writer, meta.generation, lambda old: mended(old) or RolloutJobStatus())
        if status is not None and self._generations.get(uid) == counts and uid not in self.runs:
            self._begin(uid, job, status)
            self.looks.wake()

    def _begin(self, uid: str, job: RolloutJob, status: RolloutJobStatus | None) -> None:
        self._refused.pop(uid, None)
        self.runs[uid] = run = ClusterJob(
            self.kube,
            self.settings,
            job,
            status,
            touch=lambda key: self._touch(f"{uid}/{key}"),
            forget=lambda key: self.reconciler.forget(f"{uid}/{key}"),
            connect=self.connect,
            now=self.now,
        )
        run.start()

    def _refuse(self, uid: str, body: Body, generation: int, error: SandgateError) -> None:
        """Say why in its status; a job that ran goes on under its last good spec."""
        namespace, name = text_of(body, "metadata", "namespace"), text_of(body, "metadata", "name")
        log.warning("job %s/%s cannot run: %s", namespace, name, error)
        if (run := self.runs.get(uid)) is not None:
            run.refuse(str(error)[:MESSAGE_MAX])
            return
        writer, text = self._refusals(uid, namespace, name), str(error)
        self._spawn(
            tell(self.kube, writer, generation, lambda old: verdict(text, generation, old, self.now()))
        )

    def _refusals(self, uid: str, namespace: str, name: str) -> StatusWriter:
        anew = StatusWriter(self.kube, namespace, name, uid=uid, now=self.now)
        return self._refused.setdefault(uid, anew)

    def _drop(self, uid: str) -> None:
        self._generations.pop(uid, None)
        self._refused.pop(uid, None)
        for name in [name for name, held in self._names.items() if held == uid]:
            del self._names[name]
        run = self.runs.pop(uid, None)
        if run is not None:
            self._spawn(run.stop())
            for one in run.at.sessions.held.values():
                self.orphans.saw(run.at.namespace, one)

    # -- plans --------------------------------------------------------------------------------------------------------

    def _touch(self, key: str) -> None:
        self.reconciler.touch(key)

    def _plan(self, key: str) -> list[Action]:
        uid, _, inner = key.partition("/")
        run = self.runs.get(uid)
        if run is None:
            self.reconciler.forget(key)
            return []
        return [] if self._draining else run.plan(inner)

    async def _carry_out(self, key: str, action: Action) -> None:
        uid, _, inner = key.partition("/")
        if (run := self.runs.get(uid)) is not None:
            await run.driver.carry_out(inner, action)

    def _woke(self, key: str) -> None:
        uid, _, inner = key.partition("/")
        if (run := self.runs.get(uid)) is not None:
            run.at.observe(TimerSet(inner, None))

    # -- life ---------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """For ever."""
        await self.reconciler.run()

    async def sweep(self) -> None:
        """Notice what went while no watch told: everything that was known before a list and is not in it."""
        known = {uid: run.at.namespace for uid, run in self.runs.items()}
        known |= {uid: writer.namespace for uid, writer in self._refused.items()}
        there = await self._list(RolloutJob.KIND)
        for uid, namespace in known.items():
            if there.lacks(namespace, uid):
                self._drop(uid)
        runs = list(self.runs.values())
        sessions = [run.at.sessions.uids() for run in runs]
        there = await self._list(AgentSession.KIND)
        for run, before in zip(runs, sessions, strict=True):
            missing = {uid for uid in before.values() if there.lacks(run.at.namespace, uid)}
            gone = await lost(run.at, AgentSession.KIND, missing)
            for name, uid in before.items():
                if uid in gone:
                    run.session_gone(name, uid)
        pods = [{**run.pods.held()} for run in runs]
        there = await self._list("Pod")
        for run, held in zip(runs, pods, strict=True):
            missing = {uid for uid in held if there.lacks(run.at.namespace, uid)}
            for uid in await lost(run.at, "Pod", missing):
                run.pods.gone(held[uid], uid)
        self._last_sweep = self.now()

    async def _list(self, kind: str) -> Listed:
        """Of a namespace that is gone, or forbidden, nothing is known. Raises if that is so of all there are."""
        labels = selector(kind, self.settings.shard)
        found, unknown = set(), set()
        namespaces = self.settings.namespaces or ("",)
        for namespace in namespaces:
            try:
                listed = await self.kube.list_metadata(kind, namespace, labels=labels)
            except (Forbidden, NotFound) as error:
                unknown.add(namespace)
                if len(unknown) == len(set(namespaces)):
                    raise
                log.warning("sweep: of %s in namespace %s nothing is known: %s", kind, namespace, error)
            else:
                found |= {text_of(one, "metadata", "uid") for one in listed}
        return Listed(found, unknown)

    async def drain(self) -> None:
        """Finish what is in hand, start nothing, write the last statuses."""
        self._draining = True
        try:
            async with asyncio.timeout(DRAIN_S):
                await self.reconciler.quiet()
        except TimeoutError:
            log.warning("drain: something is still in hand after %.0f s", DRAIN_S)
        await asyncio.gather(*(run.stop(flush=True) for run in self.runs.values()))
        for task in list(self._beside):
            task.cancel()
        await asyncio.gather(*self._beside, return_exceptions=True)

    def health(self) -> OperatorHealth:
        """For probes and metrics."""
        now = self.now()
        return OperatorHealth(
            queue_age_s=self.reconciler.oldest_s,
            last_event_age_s=None if self._last_event is None else now - self._last_event,
            sweep_age_s=None if self._last_sweep is None else now - self._last_sweep,
            jobs=len(self.runs),
            unready=self._unready(),
            sessions=self._sessions(),
            queue_length=self.reconciler.length,
        )

    def _unready(self) -> dict[str, int]:
        found = {reason.value: 0 for reason in WAITED_FOR}
        for run in self.runs.values():
            status = run.observed.status
            ready = find(status, JobCondition.READY)
            if ready is None or ready.status == "True" or ready.reason == JobReason.IDLE:
                continue
            if not is_over(status) and not is_true(status, JobCondition.SUSPENDED):
                found[ready.reason] = found.get(ready.reason, 0) + 1
        return found

    def _sessions(self) -> dict[str, int]:
        found = dict.fromkeys(("starting", "running", "ending"), 0)
        for run in self.runs.values():
            for seen in run.observed.live:
                agent = seen.sandbox
                begun = agent is not None and agent.started_at is not None
                over = seen.stop is not None or (agent is not None and agent.exit is not None)
                found["ending" if over else "running" if begun else "starting"] += 1
        return found

    def _spawn(self, what: Any) -> None:
        task = asyncio.get_running_loop().create_task(what)
        self._beside.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._beside.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("beside: %s", error)


def _called(body: Body) -> tuple[str, str]:
    """(namespace, name)."""
    return text_of(body, "metadata", "namespace"), text_of(body, "metadata", "name")
