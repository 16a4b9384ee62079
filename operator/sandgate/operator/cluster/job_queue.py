"""JobQueue: a job's side of Kueue: keeps its Workload as the plan says, and tells the plan how it stands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from sandgate.contract.errors import BadRequest, Conflict, Forbidden, NotFound, SandgateError, Unavailable
from sandgate.contract.job import RolloutJob
from sandgate.contract.labels import JOB
from sandgate.contract.names import workload_name
from sandgate.operator.cluster.job_state import JobState
from sandgate.operator.cluster.object_store import owner_uid
from sandgate.operator.manifests.workload import ask_of, workload
from sandgate.operator.observed.events import QueueLooked
from sandgate.operator.observed.job import JOB_KEY
from sandgate.operator.observed.pod_failure import OVER
from sandgate.operator.observed.workload import (
    DIGEST,
    OTHERS,
    OURS,
    STOPPED,
    TAKES,
    finished,
    flavors_of,
    given_back,
    note_in,
    told,
    version_of,
    workload_seen,
)
from sandgate.operator.plan.kueue import (
    AskQuota,
    DropWorkload,
    FinishWorkload,
    GiveBack,
    QueueSeen,
    QueueStep,
    QuotaAsk,
    SwitchQuota,
    TellWorkload,
)
from sandgate.operator.plan.queueing import is_done

Json = Any
Body = Mapping[str, Json]

GONE_S = 1.0
"""Between looks whether the last pods of an evicted job are gone."""
OFF = (
    "the job names a queue of Kueue, and this operator does not work with Kueue: set kueue.enabled of the chart,"
    " or take the label kueue.x-k8s.io/queue-name away"
)


@dataclass(slots=True)
class JobQueue:
    """Of one job. `changed`: called when what the queue says is another."""

    at: JobState
    changed: Callable[[], None]
    ask: QuotaAsk | None = None
    """What the job wants of its queue."""
    _body: Body | None = None
    """The Workload as last seen."""
    _flavors: dict[str, Body] = field(default_factory=dict)
    _looked: bool = False
    """Whether it has a Workload is known: one without a queue may have, of when it had one."""

    def wants(self, job: RolloutJob) -> QuotaAsk | None:
        """The job is this now."""
        self.ask = ask_of(job, self.at.settings)
        if self.ask is not None and not self.at.settings.kueue:
            self.trouble(OFF)
        elif self.ask is None and self._body is None:
            self._tell(None)
        return self.ask

    @property
    def name(self) -> str:
        """Of its Workload."""
        meta = self.at.job.metadata
        return workload_name(meta.name, meta.uid)

    @property
    def asks(self) -> bool:
        """Somebody is to look for its Workload."""
        if not self.at.settings.kueue or (self._looked and self.ask is None and self._body is None):
            return False
        seen = self.at.observed.queue
        if not self._looked or seen is None or not is_done(self.at.observed.status):
            return True
        return seen.workload is not None and not seen.workload.finished

    @property
    def known(self) -> int:
        """Version of its Workload as last seen; 0: there is none."""
        return 0 if self._body is None else version_of(self._body)

    # -- what is seen -------------------------------------------------------------------------------------------------

    def trouble(self, why: str) -> None:
        """There is nobody to ask."""
        self._looked = True
        self._tell(None if self.ask is None else QueueSeen(trouble=why))

    async def saw(self, body: Body | None) -> None:
        """It stands so now; None: there is none. News that are older than what is known change nothing."""
        self._looked = True
        for name in () if body is None else flavors_of(body) - self._flavors.keys():
            with suppress(NotFound):
                self._flavors[name] = await self.at.kube.get("ResourceFlavor", "", name)
        if body is None:
            self._body = None
            self._flavors.clear()
            before = self.at.observed.queue
            refused = "" if before is None or before.workload is not None else before.refused
            self._tell(None if self.ask is None else QueueSeen(refused=refused))
        elif owner_uid(body) != self.at.job.metadata.uid:
            why = f"Workload {self.name} is there already, and not of this job: delete it"
            self._tell(QueueSeen(refused=why))
        elif version_of(body) >= self.known:
            self._body = body
            self._tell(QueueSeen(workload=workload_seen(body, self._flavors)))

    def _tell(self, seen: QueueSeen | None) -> None:
        if seen != self.at.observed.queue:
            self.at.observe(QueueLooked(seen))
            self.changed()

    # -- what is done (plan.kueue.QueueStep) --------------------------------------------------------------------------

    async def carry_out(self, step: QueueStep) -> None:
        """Idempotent; what another wrote meanwhile is looked at first. Raises what passes by itself."""
        try:
            await self._carry_out(step)
        except (Conflict, NotFound) as error:
            await self._look()
            raise Unavailable(f"Workload {self.name} changed meanwhile: {error}") from error
        except (BadRequest, Forbidden) as error:  # Kueue's rules, or ours are too narrow
            why = f"its Workload cannot be written: {error}"
            if self._body is None:
                self._tell(QueueSeen(refused=why))
            raise Unavailable(why, retry_after=5.0) from error

    async def _carry_out(self, step: QueueStep) -> None:
        match step:
            case AskQuota():
                await self._make()
            case SwitchQuota(active):
                await self._switch(active=active)
            case GiveBack():
                if await self._gone():
                    await self._status(lambda body: given_back(body, self.at.now()))
            case DropWorkload():
                if self.ask is None or await self._gone():
                    await self._drop()
            case TellWorkload(reclaimable, ready):
                await self._status(lambda body: told(body, reclaimable, self.at.now(), ready=ready))
            case FinishWorkload(succeeded, message):
                if await self._gone():
                    await self._status(
                        lambda body: finished(body, self.at.now(), message, succeeded=succeeded)
                    )

    async def _switch(self, *, active: bool) -> None:
        """What an administrator stopped (kueuectl) before the job's user did stays stopped when the user lets go on.
        Of what is known: if it is another by now, nothing is written."""
        body = self._body
        if body is None:
            raise NotFound(f"Workload {self.name} is not there")
        note, is_active = note_in(body), body["spec"].get("active", True) is not False
        meta = {"resourceVersion": body["metadata"]["resourceVersion"]}
        patch: Json = {"metadata": {**meta, "annotations": {STOPPED: None}}}
        if not active:
            patch["metadata"]["annotations"] = {STOPPED: note or (OURS if is_active else OTHERS)}
        if active and note != OTHERS:
            patch["spec"] = {"active": True}
        elif not active and is_active:
            patch["metadata"]["annotations"] = {STOPPED: OURS}
            patch["spec"] = {"active": False}
        await self.saw(await self.at.kube.patch("Workload", self.at.namespace, self.name, patch))

    async def _make(self) -> None:
        ask = self.ask
        if ask is None:
            return
        priority = None
        if ask.priority_class:
            try:
                found = await self.at.kube.get("WorkloadPriorityClass", "", ask.priority_class)
            except NotFound:
                why = f"there is no WorkloadPriorityClass {ask.priority_class}, which the job names"
                self._tell(QueueSeen(refused=why))
                asyncio.get_running_loop().call_later(GONE_S * 5, self.at.changed, JOB_KEY)
                return
            priority = int(found["value"])
        queue = self.at.observed.queue
        there = None if queue is None else queue.workload
        # Switching one that is there is another step.
        stopped = note_in(self._body) if there is not None and self._body else OURS if ask.stopped else ""
        notes = {DIGEST: ask.digest, TAKES: ask.takes, **({STOPPED: stopped} if stopped else {})}
        body = workload(self.at.job, self.at.settings, ask, priority, notes)
        await self.saw(await self.at.kube.apply(body))

    async def _gone(self) -> bool:
        """No pod of the job runs any more: others may have its quota."""
        pods = await self.at.kube.list("Pod", self.at.namespace, labels=f"{JOB}={self.at.name}")
        if all((one.get("status") or {}).get("phase") in OVER for one in pods):
            return True
        asyncio.get_running_loop().call_later(GONE_S, self.at.changed, JOB_KEY)
        return False

    async def _status(self, change: Callable[[Body], Json]) -> None:
        """Of the Workload as it is known: if it is another by now, nothing is written."""
        body = self._body
        if body is None:
            raise NotFound(f"Workload {self.name} is not there")
        meta = {"resourceVersion": body["metadata"]["resourceVersion"]}
        patch = {"metadata": meta, "status": change(body)}
        await self.saw(await self.at.kube.patch_status("Workload", self.at.namespace, self.name, patch))

    async def _drop(self) -> None:
        uid = "" if self._body is None else _uid(self._body)
        await self.at.kube.delete("Workload", self.at.namespace, self.name, uid=uid)
        await self._look()

    async def _look(self) -> None:
        try:
            body = await self.at.kube.get("Workload", self.at.namespace, self.name)
        except NotFound:
            body = None
        except SandgateError:
            return  # it is looked at again anyway
        await self.saw(body)


def _uid(body: Body) -> str:
    return str(body["metadata"].get("uid") or "")
