"""Tasks that a trainer pushes to a job's gateways: taken in once, and their places freed as groups settle."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from sandgate.contract.errors import NotFound
from sandgate.contract.job import Task
from sandgate.gateway.client import TaskPage
from sandgate.operator.observe import Observed

if TYPE_CHECKING:
    from sandgate.operator.drivers.gateways import LocalGateway

LOOK_S = 0.5
"""Between looks of a local run at its gateways' queues."""

log = logging.getLogger(__name__)


class Client(Protocol):
    """What is needed of a gateway's client."""

    async def tasks(self, after: int = 0) -> TaskPage: ...
    async def forget_tasks(self, upto: int) -> None: ...


@dataclass(slots=True)
class Queue:
    """One gateway's part of a job's pushed tasks."""

    taken: int = 0
    """Number of the last task taken in."""
    forgotten: int = 0
    """All up to this number are settled, and the gateway knows."""
    open: dict[int, str] = field(default_factory=dict)
    """Number -> uid of those after it."""
    ended: bool = False

    async def pull(self, client: Client, take: Callable[[Iterable[Task]], None]) -> None:
        """All that was pushed since the last time. Raises what the gateway says."""
        while True:
            page = await client.tasks(self.taken)
            take(task for _, task in page.tasks)
            self.open |= {number: task.uid for number, task in page.tasks}
            self.taken = max(self.taken, page.cursor)
            self.ended = self.ended or page.last
            if not page.tasks or page.last:
                break

    async def free(self, client: Client, settled: Container[str]) -> None:
        """Places of tasks that are settled, from the front."""
        upto = self.forgotten
        for number, uid in list(self.open.items()):
            if uid not in settled:
                break
            del self.open[number]
            upto = number
        if upto > self.forgotten:
            try:
                await client.forget_tasks(upto)
            except NotFound:
                log.warning("a gateway does not know task %d", upto)
            self.forgotten = upto


@dataclass(slots=True)
class Pushed:
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
