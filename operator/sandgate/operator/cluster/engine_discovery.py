"""What gateways and engines of a job say, and what they are told: engine sets, weights, signs of life, pushed tasks."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import Any

from sandgate.contract.errors import FailureReason, SandgateError
from sandgate.operator.cluster.engines import answering, engine_urls
from sandgate.operator.cluster.gateway_monitor import GatewayMonitor
from sandgate.operator.cluster.job_state import JobState
from sandgate.operator.driver.task_queue import Queues
from sandgate.operator.plan.actions import Outage

log = logging.getLogger(__name__)

ENGINES_S = 5.0
"""Between looks at the engines' pods."""
TASKS_S = 2.0
"""Between looks at the gateways' task queues."""


@dataclass(slots=True)
class EngineDiscovery:
    """Of one job."""

    at: JobState
    engines: list[str] | None = None
    """Where they are; None until that was looked at."""
    queues: Queues = field(default_factory=Queues)
    _healthy: dict[str, int] = field(default_factory=dict)
    """Gateway -> engines that answer it."""
    _dry_since: dict[str, float] = field(default_factory=dict)
    """Gateway -> since when no engine answers it."""
    occasion: asyncio.Event = field(default_factory=asyncio.Event)
    """An engine's pod changed."""

    # -- what a gateway says ------------------------------------------------------------------------------------------

    async def says(self, door: GatewayMonitor, status: dict[str, Any]) -> None:
        """Its GET /v1/status; the set of engines is corrected by it."""
        seen, now = self.at.observed, self.at.now()
        known, healthy = answering(status)
        if self.engines is not None and known != set(self.engines):
            await door.client.set_engines(self.engines)
        seen.version(int(status.get("policy_version") or 0))
        if status.get("trainer_seen_at"):
            seen.heard(float(status["trainer_seen_at"]), now)
        self._engines_at(door, healthy, now)

    def _engines_at(self, door: GatewayMonitor, healthy: int, now: float) -> None:
        self._healthy[door.name] = healthy
        self.at.observed.engines_answer(max(self._healthy.values()))
        if not healthy:
            since = self._dry_since.setdefault(door.name, now)
            self.at.observed.outage(door.name, Outage(since, None, FailureReason.ENGINE_LOST))
        elif (since_dry := self._dry_since.pop(door.name, None)) is not None:
            self.at.observed.outage(door.name, Outage(since_dry, now, FailureReason.ENGINE_LOST))

    def left(self, door: GatewayMonitor) -> None:
        """It is away: no new groups, and what runs there may be hurt by it."""
        self._healthy.pop(door.name, None)
        self._dry_since.pop(door.name, None)
        self.at.observed.gateway(door.name, ready=False)
        since = self.at.now() if door.away_since is None else door.away_since
        self.at.observed.outage(door.name, Outage(since, None, FailureReason.GATEWAY_LOST))

    def back(self, door: GatewayMonitor) -> None:
        """It answers again."""
        if door.absences:  # of those before, the store knows
            self.at.observed.outage(door.name, door.absences[-1])

    # -- engines ------------------------------------------------------------------------------------------------------

    async def run_engines(self) -> None:
        """For ever: look where engines are, tell gateways whose set differs (they say in their status)."""
        while True:
            try:
                found = await engine_urls(self.at.kube, self.at.job)
                if found != self.engines:
                    self.engines = found
                    for door in tuple(self.at.doors.values()):
                        if door.open:
                            await door.client.set_engines(found)
            except (SandgateError, OSError, TimeoutError) as error:
                log.warning("job %s/%s: engines: %s", self.at.namespace, self.at.name, error)
            self.occasion.clear()
            try:
                async with asyncio.timeout(ENGINES_S):
                    await self.occasion.wait()
            except TimeoutError:
                pass

    # -- pushed tasks -------------------------------------------------------------------------------------------------

    async def run_queue(self) -> None:
        """For ever: tasks that the trainer pushed to any of the gateways."""
        while True:
            ended = self.queues.ended
            observed = self.at.observed
            asked = [await self._look(door) for door in list(self.at.doors.values())]
            if ended and all(asked) and self.at.observed is observed:
                observed.no_more()
            await asyncio.sleep(TASKS_S)

    async def _look(self, door: GatewayMonitor) -> bool:
        """Whether it said all that it has."""
        if not door.open or not self.at.observed.loaded:
            return False
        try:
            await self.queues.look(door.name, door.client, self.at)
        except (SandgateError, OSError, TimeoutError) as error:
            log.info("job %s/%s: tasks: %s", self.at.namespace, self.at.name, error)
            return False
        return True
