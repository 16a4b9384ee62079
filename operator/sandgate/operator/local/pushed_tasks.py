"""Follows tasks that a trainer pushes to a local run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sandgate.operator.driver.state import DriverState
from sandgate.operator.driver.task_queue import Queues
from sandgate.operator.local.gateways import LocalGateway
from sandgate.operator.observed.events import TasksEnded

LOOK_S = 0.5
"""Between looks of a local run at its gateways' queues."""


@dataclass(slots=True)
class PushedTasks:
    """The tasks of a local run that come while it goes on."""

    state: DriverState
    gateways: Mapping[str, LocalGateway]
    queues: Queues = field(default_factory=Queues)

    def __post_init__(self) -> None:
        self.state.on_settled.append(self._settled)

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """All that was pushed."""
        ended = self.queues.ended
        for name, gateway in self.gateways.items():
            await self.queues.look(name, gateway.client, self.state)
        if ended:
            self.state.observe(TasksEnded())

    def _settled(self, uids: Sequence[str]) -> None:
        for uid in uids:
            self.state.tasks.pop(uid, None)
