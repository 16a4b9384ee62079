"""PodEvents: what Events say of a pod whose own status only says that it is being made: a volume, an image."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from heapq import nsmallest
from typing import Any, Final

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
"""Pods that one look asks about by themselves: of each node one before any second, then those that were not asked about
for the longest time, and of these those that wait longest."""
CHUNKS_MAX = 4
"""Of the list that is asked for when pods of more nodes wait, 500 Events each: Events stay for an hour, and of each
node one that tells is enough."""
PROGRESS = "Pulling"
"""Of Events that are no warnings, the only one that says what is waited for."""
BEFORE = frozenset({"FailedScheduling"})
"""Warnings of a pod without a node: its status says that better, and they are over once it has one."""
TROUBLES = (SandgateError, OSError, TimeoutError)

Said = tuple[str, str]
"""(when, as `_time` has it; the words of an Event)."""
NOTHING: Final[Said] = ("", "")


@dataclass(frozen=True, slots=True)
class Slow:
    """A pod that has a node for a while, did not start, and does not say why."""

    ref: Ref
    running: Running
    judges: bool
    """It is a verifier's."""
    uid: str
    node: str

    @property
    def place(self) -> tuple[bool, str]:
        """Who shares it waits for the same images, from the same puller."""
        return self.judges, self.node


@dataclass(slots=True)
class PodEvents:
    """Of one job's agents and verifiers. `run` it as a task.

    Who is not known to wait for an image is given up after startSeconds, so it must be known of each by then, of
    thousands too: what one of a node's pods says of its image holds for the others there. Where more nodes have slow
    pods than are asked about, one list tells whose images come."""

    at: JobState
    _asked: dict[str, float] = field(default_factory=dict)
    """Session of a slow pod -> when it was last asked about."""
    _heard: dict[str, str] = field(default_factory=dict)
    """Uid of a slow pod -> the time of the Event that it was then told by."""

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """At all slow pods, in at most LOOKED_MAX + CHUNKS_MAX requests."""
        slow = list(self._slow())
        self._asked = {one.ref.name: self._asked.get(one.ref.name, 0.0) for one in slow}
        self._heard = {one.uid: self._heard.get(one.uid, "") for one in slow}
        told = await self._pulling() if len({one.place for one in slow}) > LOOKED_MAX else {}
        pulls = {one.place: told[one.uid][1] for one in slow if one.node and one.uid in told}
        for one in self._first(slow):
            self._asked[one.ref.name] = self.at.now()
            self._heard[one.uid], said = await self._ask(one)
            self._tell(one, said)
            if one.node and said.startswith(f"{PROGRESS}:"):
                pulls[one.place] = said
        for one in slow:
            waits = one.running.waiting
            at, said = told.get(one.uid, NOTHING)
            if waits is None or waits.pulls:
                self._tell(one, said or pulls.get(one.place, ""))
            elif at > self._heard[one.uid]:  # what it has are words of its own, maybe newer than its pull
                self._tell(one, said)

    def _first(self, slow: list[Slow]) -> list[Slow]:
        """Those to ask about now."""
        ranks: Counter[tuple[bool, str]] = Counter()
        found: list[tuple[int, Slow]] = []
        for one in sorted(slow, key=self._turn):
            found.append((ranks[one.place], one))
            ranks[one.place] += 1
        return [
            one for _, one in nsmallest(LOOKED_MAX, found, key=lambda pair: (pair[0], *self._turn(pair[1])))
        ]

    def _turn(self, one: Slow) -> tuple[float, float, str]:
        return self._asked[one.ref.name], _since(one.running), one.ref.name

    def _slow(self) -> Iterator[Slow]:
        now = self.at.now()
        for one in self.at.observed.live:
            pod, judges = _newest(one), one.verifier is not None
            if pod is None or pod.started_at is not None or pod.exit is not None:
                continue
            says = pod.waiting is not None and not pod.waiting.from_event
            kept = (self.at.verifiers if judges else self.at.agents).held.get(one.ref.name)
            if kept is not None and not says and now >= _since(pod) + AFTER_S:
                yield Slow(one.ref, pod, judges, kept.uid, kept.seen.node)

    async def _pulling(self) -> dict[str, Said]:
        """Uid of a pod -> what is said, of those of the namespace whose images came in the last hour, or come now."""
        try:
            listed = await self.at.kube.list(
                "Event", self.at.namespace, fields=f"reason={PROGRESS}", chunks=CHUNKS_MAX
            )
        except TROUBLES as error:
            log.info("job %s/%s: Events of its pods: %s", self.at.namespace, self.at.name, error)
            return {}
        of_pods: dict[str, list[Json]] = {}
        for one in listed:
            of_pods.setdefault(str(map_of(one, "involvedObject").get("uid")), []).append(one)
        return {uid: newest(ones) for uid, ones in of_pods.items()}

    async def _ask(self, one: Slow) -> Said:
        try:
            return newest(await events_of(self.at.kube, self.at.namespace, one.uid))
        except TROUBLES as error:  # a role of an older chart, too
            log.info("job %s/%s: Events of %s: %s", self.at.namespace, self.at.name, one.ref.name, error)
            return self._heard[one.uid], ""

    def _tell(self, one: Slow, said: str) -> None:
        seen = self.at.observed.sessions.get(one.ref.name)
        if not said or seen is None or _newest(seen) != one.running:  # else its status has more by now
            return
        waiting = Waiting(said, from_event=True, pulls=said.startswith(f"{PROGRESS}:"))
        if waiting != one.running.waiting:
            tells = events.VerifierSeen if one.judges else events.AgentSeen
            self.at.observe(tells(one.ref, replace(one.running, waiting=waiting)))


def _newest(one: SessionObserved) -> Running | None:
    """Its verifier, once there is one: then its agent has ended."""
    return one.sandbox if one.verifier is None else one.verifier


def _since(running: Running) -> float:
    return running.asked_at if running.placed_at is None else running.placed_at


async def told_of(kube: Api, namespace: str, uid: str) -> str:
    """What Events last said of what the object of this uid waits for; empty: nothing."""
    return newest(await events_of(kube, namespace, uid))[1]


async def events_of(kube: Api, namespace: str, uid: str) -> Sequence[Json]:
    """Of the object of this uid."""
    return await kube.list("Event", namespace, fields=f"involvedObject.uid={uid}")


def newest(listed: Sequence[Json]) -> Said:
    """The newest of these Events that says what is waited for."""
    telling = [one for one in listed if _tells(one)]
    if not telling:
        return NOTHING
    last = max(telling, key=_time)
    words = one_line(f"{last.get('reason')}: {last.get('message') or ''}")[:TEXT_MAX].rstrip(": ")
    return _time(last), words


def _tells(event: Json) -> bool:
    reason = event.get("reason")
    return reason == PROGRESS or (event.get("type") == "Warning" and reason not in BEFORE)


def _time(event: Any) -> str:
    """RFC 3339, in UTC: sorts as it is."""
    series = map_of(event, "series").get("lastObservedTime")
    return str(
        event.get("lastTimestamp") or series or event.get("eventTime") or event.get("firstTimestamp") or ""
    )
