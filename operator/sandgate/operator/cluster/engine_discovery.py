"""EngineDiscovery: follows a job's engines and gateways: replicas, policy versions, the trainer's heartbeat, pushed
tasks.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any

from sandgate.contract.errors import SandgateError
from sandgate.contract.failure_reasons import FailureReason
from sandgate.operator.cluster.api import Json
from sandgate.operator.cluster.engines import engines
from sandgate.operator.cluster.gateway_monitor import GatewayMonitor
from sandgate.operator.cluster.gateway_pods import in_trouble, slow
from sandgate.operator.cluster.heard_trainers import HeardTrainers
from sandgate.operator.cluster.job_state import JobState
from sandgate.operator.cluster.told_versions import ToldVersions
from sandgate.operator.driver.engine_health import Answering, answering
from sandgate.operator.driver.task_queue import Queues
from sandgate.operator.observed import events
from sandgate.operator.observed.pace import Shelf
from sandgate.operator.plan.actions import Outage

log = logging.getLogger(__name__)

ENGINES_S = 5.0
"""Between looks at the engines' pods."""
SLOW_S = 20.0
"""Between looks at Events of engines' pods, while none is ready and none says why."""
TASKS_S = 2.0
"""Between looks at the gateways' task queues."""


@dataclass(slots=True)
class EngineDiscovery:
    """Of one job."""

    at: JobState
    engines: list[str] | None = None
    """Where they are; None until that was looked at."""
    nodes: dict[str, str] = field(default_factory=dict)
    """Engine -> its node, where that is known."""
    trouble: str = ""
    """What their pods say of why none is ready."""
    _asked_at: float = 0.0
    _said: str = ""
    queues: Queues = field(default_factory=Queues)
    _heard: dict[str, Answering] = field(default_factory=dict)
    """Gateway -> what it last said of its engines."""
    _versions: ToldVersions = field(default_factory=ToldVersions)
    _dry_since: dict[str, float] = field(default_factory=dict)
    """Gateway -> since when no engine answers it."""
    _trainers: HeardTrainers = field(default_factory=HeardTrainers)
    occasion: asyncio.Event = field(default_factory=asyncio.Event)
    """An engine's pod changed."""

    # -- what a gateway says ------------------------------------------------------------------------------------------

    async def repeat_version(self, monitor: GatewayMonitor, status: dict[str, Any]) -> None:
        """Tells a gateway that lost its journal what the trainer told it, or the others."""
        if (owed := self._versions.owed(monitor.name, status)) is not None:
            log.info("job %s/%s: %s is told %s", self.at.namespace, self.at.name, monitor.name, owed)
            await monitor.client.repeat_policy_version(
                owed.version, labelled=owed.labelled, adapter=owed.adapter
            )

    async def says(self, monitor: GatewayMonitor, status: dict[str, Any]) -> None:
        """Its GET /v1/status; the set of engines is corrected by it."""
        now = self.at.now()
        await self.repeat_version(monitor, status)
        self.at.journals.heard(monitor.name, status)
        heard = answering(status)
        stale = heard.nodes is not None and heard.nodes != self.nodes
        if self.engines is not None and (stale or heard.urls != set(self.engines)):
            await monitor.client.set_engines(self.engines, self.nodes)
        self.at.observe(events.GatewayLooked(monitor.name, Shelf.of(status)))
        self._trainers.says(monitor.name, status, now)
        told = self._trainers.all_told(self.at.monitors)
        self.at.observe(events.TrainerHeard(self._trainers.newest, now, told))
        self._engines_at(monitor, heard, now)

    def _engines_at(self, monitor: GatewayMonitor, heard: Answering, now: float) -> None:
        self._heard[monitor.name] = heard
        most = max(one.healthy for one in self._heard.values())
        first = self._heard[
            min(self._heard)
        ]  # always the same gateway's words, so that the status keeps still
        why = f"{first.why}: {self.trouble}" if self.trouble and not self.engines else first.why
        self.at.observe(events.EnginesCounted(most, "" if most else why))
        if not heard.healthy:
            since = self._dry_since.setdefault(monitor.name, now)
            self._outage(monitor, Outage(since, None, FailureReason.ENGINE_LOST))
        elif (since_dry := self._dry_since.pop(monitor.name, None)) is not None:
            self._outage(monitor, Outage(since_dry, now, FailureReason.ENGINE_LOST))

    def _outage(self, monitor: GatewayMonitor, outage: Outage) -> None:
        self.at.observe(events.OutageSeen(monitor.name, outage))

    def left(self, monitor: GatewayMonitor) -> None:
        """It is away: no new groups, and what runs there may be hurt by it."""
        self.at.journals.over(monitor.name)
        self._heard.pop(monitor.name, None)
        self._dry_since.pop(monitor.name, None)
        self.at.observe(events.GatewayChanged(monitor.name, ready=False))
        since = self.at.now() if monitor.away_since is None else monitor.away_since
        self._outage(monitor, Outage(since, None, FailureReason.GATEWAY_LOST))

    def back(self, monitor: GatewayMonitor) -> None:
        """It answers again."""
        if monitor.absences:  # of those before, the store knows
            self._outage(monitor, monitor.absences[-1])

    # -- engines ------------------------------------------------------------------------------------------------------

    async def run_engines(self) -> None:
        """For ever: look where engines are, tell gateways whose set differs (they say in their status)."""
        while True:
            try:
                found, self.nodes, pods = await engines(self.at.kube, self.at.job)
                self.trouble = in_trouble(pods) or await self._slow(pods)
                if found != self.engines:
                    self.engines = found
                    for monitor in tuple(self.at.monitors.values()):
                        if monitor.open:
                            await monitor.client.set_engines(found, self.nodes)
            except (SandgateError, OSError, TimeoutError) as error:
                log.warning("job %s/%s: engines: %s", self.at.namespace, self.at.name, error)
            self.occasion.clear()
            try:
                async with asyncio.timeout(ENGINES_S):
                    await self.occasion.wait()
            except TimeoutError:
                pass

    async def _slow(self, pods: list[Json]) -> str:
        """What Events say of them; asked now and then, for an image may be pulled for long."""
        now = self.at.now()
        if not pods:
            return ""
        if now >= self._asked_at + SLOW_S:
            self._asked_at, self._said = now, await slow(self.at.kube, self.at.namespace, pods)
        return self._said

    # -- pushed tasks -------------------------------------------------------------------------------------------------

    async def run_queue(self) -> None:
        """For ever: tasks that the trainer pushed to any of the gateways."""
        while True:
            ended = self.queues.ended
            queues = self.queues
            asked = [await self._look(monitor) for monitor in list(self.at.monitors.values())]
            anew = self.at.rebuilding or self.queues is not queues  # then all is looked at again
            if ended and all(asked) and not anew:
                self.at.observe(events.TasksEnded())
            await asyncio.sleep(TASKS_S)

    async def _look(self, monitor: GatewayMonitor) -> bool:
        """Whether it said all that it has."""
        if not monitor.open or not self.at.observed.loaded or self.at.rebuilding:
            return False
        try:
            await self.queues.look(monitor.name, monitor.client, self.at)
        except (SandgateError, OSError, TimeoutError) as error:
            log.info("job %s/%s: tasks: %s", self.at.namespace, self.at.name, error)
            return False
        return True
