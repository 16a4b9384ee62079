"""PodEvents: what Events say of a pod whose own status only says that it is being made: a volume, an image."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from typing import Any

from sandgate.contract.errors import SandgateError
from sandgate.contract.exits import one_line
from sandgate.operator.cluster.api import Api, Json
from sandgate.operator.cluster.job_state import JobState
from sandgate.operator.observed import events
from sandgate.operator.observed.pod_failure import TEXT_MAX, map_of
from sandgate.operator.plan.actions import Ref, Running, SessionObserved, Waiting

log = logging.getLogger(__name__)

LOOK_S = 10.0
"""Between looks at a job's pods."""
AFTER_S = 10.0
"""A pod that starts as pods do is not asked about."""
LOOKED_MAX = 4
"""Pods that one look asks about: those that were not asked about for the longest time, and of these those that wait
longest. So of 120 each is asked within `startSeconds`, after which one whose image is not known to come is given up."""
PROGRESS = "Pulling"
"""Of Events that are no warnings, the only one that says what is waited for."""
BEFORE = frozenset({"FailedScheduling"})
"""Warnings of a pod without a node: its status says that better, and they are over once it has one."""


@dataclass(slots=True)
class PodEvents:
    """Of one job's agents and verifiers. `run` it as a task."""

    at: JobState
    _asked: dict[str, float] = field(default_factory=dict)
    """Session of a slow pod -> when it was last asked about."""

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            slow = list(self._slow())
            self._asked = {ref.name: self._asked.get(ref.name, 0.0) for ref, _ in slow}
            for ref, running in nsmallest(LOOKED_MAX, slow, key=self._turn):
                self._asked[ref.name] = self.at.now()
                await self._look(ref, running)

    def _turn(self, slow: tuple[Ref, Running]) -> tuple[float, float, str]:
        ref, running = slow
        return self._asked[ref.name], _since(running), ref.name

    def _slow(self) -> Iterator[tuple[Ref, Running]]:
        """Pods that have a node for a while, did not start, and do not say why."""
        now = self.at.now()
        for one in self.at.observed.live:
            pod = _newest(one)
            if pod is None or pod.started_at is not None or pod.exit is not None:
                continue
            says = pod.waiting is not None and not pod.waiting.from_event
            if not says and now >= _since(pod) + AFTER_S:
                yield one.ref, pod

    async def _look(self, ref: Ref, running: Running) -> None:
        before = self.at.observed.sessions.get(ref.name)
        if before is None:
            return
        judges = before.verifier is not None
        kept = (self.at.verifiers if judges else self.at.agents).held.get(ref.name)
        if kept is None:
            return
        try:
            said = await told_of(self.at.kube, self.at.namespace, kept.uid)
        except (SandgateError, OSError, TimeoutError) as error:  # a role of an older chart, too
            log.info("job %s/%s: Events of %s: %s", self.at.namespace, self.at.name, ref.name, error)
            return
        seen = self.at.observed.sessions.get(ref.name)
        if said and seen is not None and _newest(seen) == running:  # else its status has more by now
            waiting = Waiting(said, from_event=True, pulls=said.startswith(f"{PROGRESS}:"))
            tells = events.VerifierSeen if judges else events.AgentSeen
            self.at.observe(tells(ref, replace(running, waiting=waiting)))


def _newest(one: SessionObserved) -> Running | None:
    """Its verifier, once there is one: then its agent has ended."""
    return one.sandbox if one.verifier is None else one.verifier


def _since(running: Running) -> float:
    return running.asked_at if running.placed_at is None else running.placed_at


async def told_of(kube: Api, namespace: str, uid: str) -> str:
    """What Events last said of what the object of this uid waits for; empty: nothing."""
    return words(await kube.list("Event", namespace, fields=f"involvedObject.uid={uid}"))


def words(listed: Sequence[Json]) -> str:
    """The newest of these Events that says what is waited for."""
    telling = [one for one in listed if _tells(one)]
    if not telling:
        return ""
    newest = max(telling, key=_time)
    return one_line(f"{newest.get('reason')}: {newest.get('message') or ''}")[:TEXT_MAX].rstrip(": ")


def _tells(event: Json) -> bool:
    reason = event.get("reason")
    return reason == PROGRESS or (event.get("type") == "Warning" and reason not in BEFORE)


def _time(event: Any) -> str:
    """RFC 3339, in UTC: sorts as it is."""
    series = map_of(event, "series").get("lastObservedTime")
    return str(
        event.get("lastTimestamp") or series or event.get("eventTime") or event.get("firstTimestamp") or ""
    )
