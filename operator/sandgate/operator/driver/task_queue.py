"""Reads tasks that a trainer pushes to a job's gateways, each once, and frees their places as groups settle."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from sandgate.contract.control_api import TaskPage
from sandgate.contract.errors import NotFound
from sandgate.contract.job import Task
from sandgate.contract.names import UID_CHARS_MAX
from sandgate.operator.driver.state import DriverState
from sandgate.operator.observed.events import TasksAdded
from sandgate.operator.plan.status_events import repeated

log = logging.getLogger(__name__)

SAY_S = 600.0
"""Of a job it is said once in so long that finished tasks are pushed: a trainer may push one after another, and a job's
Events are few."""


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
    looked: bool = False
    """All was taken in once. What is settled among that is a task whose place was not freed yet; what comes later was
    pushed behind its own end."""

    async def pull(self, client: Client, take: Callable[[Iterable[Task]], None]) -> None:
        """All that was pushed since the last time. Raises what the gateway says."""
        while True:
            page = await client.tasks(self.taken)
            usable = [(number, task) for number, task in page.tasks if _is_usable(task)]
            take(task for _, task in usable)
            self.open |= {number: task.uid for number, task in usable}
            self.taken = max(self.taken, page.cursor)
            self.ended = self.ended or page.last
            if not page.tasks or page.last:
                break
        self.looked = True

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
class Queues:
    """All of a job's."""

    held: dict[str, Queue] = field(default_factory=dict)
    """Gateway -> its part."""
    said_at: float = -inf
    """When it was last said that tasks had finished before."""

    @property
    def ended(self) -> bool:
        """One gateway was told the end, which is the end of all once each was asked after it."""
        return any(one.ended for one in self.held.values())

    async def look(self, gateway: str, client: Client, state: DriverState) -> None:
        """What was pushed there, and what of it is settled. Raises what the gateway says."""
        queue = self.held.setdefault(gateway, Queue())
        looked, again = queue.looked, list[str]()
        await queue.pull(client, lambda tasks: again.extend(take(state, tasks)))
        if looked and again and not 0.0 <= (now := state.now()) - self.said_at < SAY_S:
            self.said_at = now
            log.warning("job %s: %s", state.job.metadata.name, repeated(again))
            for call in state.on_repeated:
                call(again)
        await queue.free(client, state.observed.settled)


def _is_usable(task: Task) -> bool:
    """A gateway of an older version took longer uids, of which no AgentSession can be made: tried for ever, one would
    hold up all others."""
    if len(task.uid) <= UID_CHARS_MAX:
        return True
    log.warning(
        "a pushed task is left out, its uid has more than %d characters: %.60s...", UID_CHARS_MAX, task.uid
    )
    return False


def take(state: DriverState, tasks: Iterable[Task]) -> list[str]:
    """Further tasks of a job; those that are settled are not kept. Returns the uids of those that had finished before
    and wait for no trainer: one that died pushes these anew. What agents elsewhere do is settled at once, and had not
    finished."""
    fresh = [task for task in tasks if task.uid not in state.tasks]
    state.tasks.update((task.uid, task) for task in fresh if task.uid not in state.observed.settled)
    state.observe(TasksAdded(tuple(task.uid for task in fresh)))
    seen = state.observed
    done = [one.uid for one in fresh if one.uid in seen.settled and one.uid not in seen.remotes.homes]
    owed = {one.ref.uid for one in seen.sessions.values() if not one.committed} if done else set[str]()
    return [uid for uid in done if uid not in owed]
