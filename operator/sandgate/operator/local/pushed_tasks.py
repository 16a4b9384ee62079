"""Tasks that a trainer pushes to a local run while it goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from sandgate.contract.job import Task
from sandgate.operator.driver.task_queue import Queue
from sandgate.operator.local.gateways import LocalGateway
from sandgate.operator.observed.job import Observed

LOOK_S = 0.5
"""Between looks of a local run at its gateways' queues."""


@dataclass(slots=True)
class PushedTasks:
    """The tasks of a local run that come while it goes on."""

    observed: Observed
    gateways: Mapping[str, LocalGateway]
    tasks: dict[str, Task]
    """By uid, of those that are not settled."""
    queues: dict[str, Queue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.observed.on_settled(self._settled)

    async def run(self) -> None:
        """For ever."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.look()

    async def look(self) -> None:
        """All that was pushed. The end that one gateway was told is the end of all, once each was asked after it."""
        ended = any(one.ended for one in self.queues.values())
        for name, gateway in self.gateways.items():
            queue = self.queues.setdefault(name, Queue())
            await queue.pull(gateway.client, self._take)
            await queue.free(gateway.client, self.observed.settled)
        if ended:
            self.observed.no_more()

    def _settled(self, uid: str) -> None:
        self.tasks.pop(uid, None)

    def _take(self, tasks: Iterable[Task]) -> None:
        fresh = [task for task in tasks if task.uid not in self.tasks]
        self.tasks.update((task.uid, task) for task in fresh if task.uid not in self.observed.settled)
        self.observed.tasks(task.uid for task in fresh)
