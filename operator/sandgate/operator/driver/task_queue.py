"""One gateway's part of the tasks that a trainer pushes: taken in once, and their places freed as groups settle."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import Protocol

from sandgate.contract.control_api import TaskPage
from sandgate.contract.errors import NotFound
from sandgate.contract.job import Task

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
