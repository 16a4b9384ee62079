"""PodTracker: what pods of a job's agents and verifiers are and were, as watches and later looks tell it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from typing import Any

from sandgate.contract.errors import NotFound, SandgateError
from sandgate.contract.labels import AGENT, ROLE, SESSION, VERIFIER
from sandgate.operator.cluster.adoption import is_there
from sandgate.operator.cluster.job_state import JobState
from sandgate.operator.cluster.object_store import ObjectTable, PodKept, pod_kept, text_of
from sandgate.operator.observed import events
from sandgate.operator.observed.pod_record import PodSeen
from sandgate.operator.plan.actions import SideCars, Told

ASK_S = 2.0
"""Between looks whether what a watch called gone is there."""
UNSURE = (SandgateError, OSError, TimeoutError)


@dataclass(slots=True)
class PodTracker:
    """Of one job."""

    at: JobState
    vanished: Callable[[str, ObjectTable[PodKept]], None]
    """A session's pod is not there any more."""
    late: Callable[[str], None]
    """A pod came of a session that is over: whoever died as he made it, was gone by then."""
    spawn: Callable[[Coroutine[Any, Any, None]], object]
    """Beside, until the job's run ends."""
    _looks_at: dict[str, float] = field(default_factory=dict)
    """Uid of a pod -> when its status is looked at again."""

    def saw(self, body: Mapping[str, Any], *, gone: bool = False) -> None:
        """A pod came, changed or went."""
        if text_of(body, "metadata", "labels", ROLE) not in (AGENT, VERIFIER):
            return
        kept = self._understood(body)
        first = kept.seen.session not in self._table(kept.seen.role).held
        if gone and kept.seen.running.exit is None and self._is_awaited(kept):
            self.spawn(self._ask(kept))
        elif gone:
            self._ended(kept)
        elif self._table(kept.seen.role).put(kept.seen.session, kept):
            if first and self._is_over(kept):
                self.late(kept.seen.session)
            self._says(kept)

    def _is_over(self, kept: PodKept) -> bool:
        """Its session is, and nothing will be planned for it any more."""
        session = self.at.sessions.held.get(kept.seen.session)
        if session is None or not kept.is_of(session) or session.name in self.at.observed.sessions:
            return False
        return self.at.observed.loaded and session.told >= Told.FINALIZED

    def _understood(self, body: Mapping[str, Any]) -> PodKept:
        """Beside what is known of it."""
        role, session = (text_of(body, "metadata", "labels", name) for name in (ROLE, SESSION))
        return pod_kept(body, self.at.now(), self._table(role).held.get(session))

    def _table(self, role: str) -> ObjectTable[PodKept]:
        return self.at.agents if role == AGENT else self.at.verifiers

    def _says(self, kept: PodKept) -> None:
        pod = kept.seen
        session = self.at.observed.sessions.get(pod.session)
        if session is None or not kept.is_of(self.at.sessions.held.get(pod.session)):
            return
        before = session.sandbox if pod.role == AGENT else session.verifier
        if before is not None and before.exit is not None and before.side_cars is SideCars.NONE:
            return  # there is nothing to look at again, either
        seen = events.AgentSeen if pod.role == AGENT else events.VerifierSeen
        self.at.observe(seen(session.ref, pod.running))
        self._plan_look(pod)

    def _plan_look(self, pod: PodSeen) -> None:
        """One at a time of a pod, however often its status changes."""
        at = pod.again_at
        if at is None:
            self._looks_at.pop(pod.uid, None)
        elif self._looks_at.get(pod.uid) != at:
            self._looks_at[pod.uid] = at
            self.spawn(self._look_again(pod, at))

    async def _look_again(self, pod: PodSeen, at: float) -> None:
        """At that time (unix seconds): the same status may mean more by then, and no event may tell."""
        await asyncio.sleep(max(0.0, at - self.at.now()))
        if self._looks_at.get(pod.uid) != pod.again_at:
            return  # another look is planned, or none any more
        del self._looks_at[pod.uid]
        while self._is_open(pod):
            try:
                body = await self.at.kube.get("Pod", pod.namespace, pod.name)
            except NotFound:
                self.gone(pod.session, pod.uid)
            except UNSURE:
                await asyncio.sleep(ASK_S)
                continue
            else:
                fresh = self._understood(body)
                self._table(pod.role).held[pod.session] = fresh
                self._says(fresh)
            return

    def _is_open(self, pod: PodSeen) -> bool:
        """It is the one that is known, and has not ended."""
        kept = self._table(pod.role).held.get(pod.session)
        return kept is not None and kept.uid == pod.uid and kept.seen.running.exit is None

    def _is_awaited(self, kept: PodKept) -> bool:
        """Its session waits for its end."""
        held = self._table(kept.seen.role).held.get(kept.seen.session)
        session = self.at.observed.sessions.get(kept.seen.session)
        if held is None or held.uid != kept.uid or session is None:
            return False
        known = session.sandbox if kept.seen.role == AGENT else session.verifier
        return known is None or known.exit is None

    async def _ask(self, kept: PodKept) -> None:
        """A watch told that it is gone, and nobody saw how it ended; see `is_there`."""
        pod = kept.seen
        while self._is_awaited(kept):
            try:
                body = await is_there(self.at.kube, "Pod", pod.namespace, pod.name, pod.uid)
            except UNSURE:
                await asyncio.sleep(ASK_S)
                continue
            if body is None:
                self._ended(kept)
            else:
                self.saw(body)
            return

    def _ended(self, kept: PodKept) -> None:
        """With its last status, which may hold its exit."""
        table, session = self._table(kept.seen.role), kept.seen.session
        table.put(session, kept)
        if kept.seen.running.exit is not None:
            self._says(kept)
        self.gone(session, kept.uid)

    def gone(self, session: str, uid: str) -> None:
        """It is not there any more."""
        for table in (self.at.agents, self.at.verifiers):
            kept = table.held.get(session)
            if kept is not None and kept.uid == uid:
                self.vanished(session, table)

    def held(self) -> dict[str, str]:
        """Uid -> session, of all pods of sessions."""
        tables = (self.at.agents, self.at.verifiers)
        return {kept.uid: session for table in tables for session, kept in table.held.items()}
