"""GatewayPods: why no gateway of a job is ready, from its pods' statuses, for the job's Ready condition."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sandgate.contract.errors import SandgateError
from sandgate.contract.exits import last_words, one_line
from sandgate.operator.cluster.api import Api, Json
from sandgate.operator.cluster.job_state import JobState
from sandgate.operator.cluster.pod_events import told_of
from sandgate.operator.manifests import gateway_pods
from sandgate.operator.observed import events
from sandgate.operator.observed.pod_failure import PodStatus, is_trouble, map_of, maps_of
from sandgate.operator.plan.actions import Provided

log = logging.getLogger(__name__)

LOOKS_S = (5.0, 10.0, 20.0, 60.0)
"""Pauses between looks while no gateway answers, then the last one for ever. A job whose gateways answer has none."""


@dataclass(slots=True)
class GatewayPods:
    """Of one job. `away` wakes it: a gateway is there no more."""

    at: JobState
    away: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """For ever: looks while nothing takes sessions, and tells what it sees."""
        while True:
            self.away.clear()
            looks = 0
            while not self.at.observed.gateways:
                await asyncio.sleep(LOOKS_S[min(looks, len(LOOKS_S) - 1)])
                looks += 1
                if not self.at.observed.gateways and self.at.observed.provided is not Provided.NOTHING:
                    await self._look()
            self.at.observe(events.GatewaysBlocked(""))
            await self.away.wait()

    async def _look(self) -> None:
        if words := self.at.journals.words:  # their pods are well
            self.at.observe(events.GatewaysBlocked(words))
            return
        labels, owner = gateway_pods(self.at.job)
        wanted = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
        try:
            pods = await self.at.kube.list("Pod", self.at.namespace, labels=wanted)
            why = blocked(pods, owner) or await slow(self.at.kube, self.at.namespace, pods)
        except (SandgateError, OSError, TimeoutError) as error:
            log.warning("job %s/%s: pods of gateways: %s", self.at.namespace, self.at.name, error)
            return
        self.at.observe(events.GatewaysBlocked(why))


async def slow(kube: Api, namespace: str, pods: Sequence[Json]) -> str:
    """What Events say of the first of these pods, whose own status says only that it is being made."""
    for body in sorted(pods, key=_name)[:1]:
        if PodStatus(body, 0.0).waiting()[0] and (why := await told_of(kube, namespace, _uid(body))):
            return f"pod {_name(body)}: {why}"
    return ""


def _name(body: Json) -> str:
    return str(map_of(body, "metadata").get("name"))


def _uid(body: Json) -> str:
    return str(map_of(body, "metadata").get("uid"))


def blocked(pods: Sequence[Json], owner: str) -> str:
    """Why none of these pods is ready: what the first of them in trouble says, by name; empty: nothing is known to be
    wrong. `owner`: the StatefulSet that makes them."""
    if not pods:
        return f"StatefulSet {owner} has no pod yet; `kubectl describe statefulset {owner}` says why"
    return in_trouble(pods)


def in_trouble(pods: Sequence[Json]) -> str:
    """What the first of these pods that says what is wrong with it, says."""
    for body in sorted(pods, key=_name):
        words, _ = PodStatus(body, 0.0).waiting()
        if why := _crashed(map_of(body, "status")) or (words if is_trouble(words) else ""):
            return one_line(f"pod {_name(body)}: {why}")
    return ""


def _crashed(status: Mapping[str, Any]) -> str:
    """The last words of a container that ended and is started again, which its back-off does not tell."""
    for one in [*maps_of(status, "initContainerStatuses"), *maps_of(status, "containerStatuses")]:
        ended = map_of(map_of(one, "state"), "terminated")
        before = ended or map_of(map_of(one, "lastState"), "terminated")
        if before and (before.get("exitCode") or not ended):
            words = last_words(str(before.get("message") or "")).line or before.get("reason")
            return f"{one.get('name')}: exit code {before.get('exitCode')}: {words}"
    return ""
