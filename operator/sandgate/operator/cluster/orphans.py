"""Remote AgentSessions whose job does not run here: there is none (yet), which their status says while they wait; or it
is another shard's, whose label they are given."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from sandgate.contract.agent_session import AgentSession
from sandgate.contract.errors import NotFound, SandgateError
from sandgate.contract.job import RolloutJob
from sandgate.contract.names import OPERATOR
from sandgate.contract.status import SessionReason
from sandgate.operator.cluster.adoption import label, shard_of
from sandgate.operator.cluster.api import Api
from sandgate.operator.cluster.object_store import SessionSeen, text_of
from sandgate.operator.cluster.remote_sessions import tell
from sandgate.operator.plan.actions import Told

log = logging.getLogger(__name__)

SETTLE_S = 5.0
"""A job that was applied together with its sessions, or is listed after them, is there by then."""
ORPHANS_MAX = 10_000
"""Remembered until they were told; more are told when the next operator starts."""


@dataclass(slots=True)
class Orphans:
    """Of one operator. A job that comes later lists its AgentSessions itself."""

    kube: Api
    has_job: Callable[[str, str], bool]
    """(namespace, name): does it run here?"""
    now: Callable[[], float]
    shard: str
    """Ours."""
    spawn: Callable[..., None]
    _held: dict[tuple[str, str], SessionSeen] = field(default_factory=dict)
    _busy: bool = False

    def saw(self, namespace: str, seen: SessionSeen | None, *, gone: bool = False) -> None:
        """An AgentSession whose job does not run here."""
        if seen is None or not seen.spec.remote:
            return
        if gone or seen.deleting or seen.told >= Told.FINALIZED:
            self._held.pop((namespace, seen.name), None)
        elif len(self._held) < ORPHANS_MAX:
            self._held[namespace, seen.name] = seen
            if not self._busy:
                self._busy = True
                self.spawn(self._run())

    async def _run(self) -> None:
        try:
            while self._held:
                await asyncio.sleep(SETTLE_S)
                for key in list(self._held):
                    if (seen := self._held.pop(key, None)) is not None:
                        await self._tell(key[0], seen)
        finally:
            self._busy = False

    async def _tell(self, namespace: str, seen: SessionSeen) -> None:
        job = seen.spec.job_name
        if self.has_job(namespace, job):
            return
        why = f"spec.jobName: no RolloutJob {job} runs in this namespace"
        try:
            if await self._is_anothers(namespace, seen):
                return
            await tell(self.kube, namespace, seen, SessionReason.NO_JOB, why, self.now())
        except (SandgateError, OSError, TimeoutError) as error:
            log.info("AgentSession %s/%s waits: %s", namespace, seen.name, error)
            self._held.setdefault((namespace, seen.name), seen)

    async def _is_anothers(self, namespace: str, seen: SessionSeen) -> bool:
        """Its job is another shard's, whose label it is given, for that shard's operator to see it; or another
        controller's, whose sessions are none of our affair."""
        try:
            job = await self.kube.get(RolloutJob.KIND, namespace, seen.spec.job_name)
        except NotFound:
            return False
        if text_of(job, "metadata", "deletionTimestamp"):
            return False
        if text_of(job, "spec", "managedBy") not in ("", OPERATOR):
            return True
        if (shard := shard_of(job)) == self.shard:
            return False
        body = {"metadata": {"namespace": namespace, "name": seen.name}}
        await label(self.kube, AgentSession.KIND, body, shard)
        return True
