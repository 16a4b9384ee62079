"""Who pushes tasks, and the operator that takes them and says where the engines are; and the judge of the queue."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from sandgate.contract.keys import Scope
from sandgate.gateway.journal.records import TasksForgotten, TasksPushed
from tests.simulation.driver import JOB, Control, Refused
from tests.simulation.engine import URLS
from tests.simulation.history import History
from tests.simulation.network import Cut
from tests.support.gateway import admin_key

if TYPE_CHECKING:
    from tests.simulation.world import World

PUSHES = 12
"""In one world."""


@dataclass(slots=True)
class Dataset:
    """The trainer's loader: pushes batches, some twice, and says which was the last."""

    world: World
    rng: Random
    control: Control

    async def run(self) -> None:
        """To the end of the data."""
        batch: list[dict[str, Any]] = []
        for number in range(PUSHES):
            await asyncio.sleep(self.rng.choice((0.1, 1.0, 10.0)))
            if self.rng.random() < 0.8:
                batch = [{"uid": f"d{number}-{one}", "data": number} for one in range(self.rng.randint(1, 3))]
            await self._push(batch)
        await self._push([], last=True)

    async def _push(self, batch: list[dict[str, Any]], *, last: bool = False) -> None:
        key = admin_key(Scope.TRAINER, job=JOB)
        body = {"job": JOB, "tasks": batch, "last": last}
        try:
            await self.control.call("POST", "/v1/tasks", body, tries=5, key=key)
        except (Cut, Refused):
            return
        self.world.say(f"pushed {','.join(task['uid'] for task in batch)} last={last}")
        self.world.history.pushed.append((tuple(task["uid"] for task in batch), len(self.world.history.ever)))


@dataclass(slots=True)
class Operator:
    """Takes tasks in order, finishes them, and moves the engines."""

    world: World
    rng: Random
    control: Control
    cursor: int = 0
    taken: list[int] = field(default_factory=list)

    async def run(self) -> None:
        """Until told to stop."""
        while True:
            await asyncio.sleep(self.rng.choice((0.2, 2.0, 8.0)))
            try:
                await self.rng.choices((self._look, self._forget, self._move), (4, 2, 1))[0]()
            except (Cut, Refused) as error:
                if isinstance(error, Refused) and error.status < 429:
                    self.world.wrong(f"the operator was refused: {error}")

    async def _look(self) -> None:
        after = 0 if self.rng.random() < 0.2 else self.cursor  # it was restarted
        said = await self.control.call("GET", f"/v1/tasks?after={after}", tries=3)
        numbers = [task["number"] for task in said["tasks"]]
        if numbers != sorted(set(numbers)) or any(number <= after for number in numbers):
            self.world.wrong(f"tasks after {after} came as {numbers}")
        for task in said["tasks"]:
            self.world.history.taken.append(
                (task["number"], task["uid"], task["data"], len(self.world.history.ever))
            )
        self.taken += [number for number in numbers if number > self.cursor]
        self.cursor = max(self.cursor, said["cursor"])

    async def _forget(self) -> None:
        if self.taken:
            upto = self.rng.choice(self.taken)
            await self.control.call("POST", "/v1/tasks/forget", {"upto": upto}, tries=3)
            self.world.say(f"forgot {upto}")
            self.world.history.forgotten.append((upto, len(self.world.history.ever)))

    async def _move(self) -> None:
        urls = self.rng.choice((URLS, URLS[:1], URLS[1:], URLS[::-1]))
        await self.control.call("PUT", "/v1/engines", {"urls": list(urls)}, tries=3)
        self.world.say(f"engines {','.join(urls)}")


@dataclass(slots=True)
class Queue:
    """The queue by what became durable."""

    numbers: dict[int, tuple[str, Any]] = field(default_factory=dict)
    uids: dict[str, int] = field(default_factory=dict)
    upto: int = 0
    after: list[tuple[int, frozenset[str], int]] = field(default_factory=list)
    """After each record: the last number, all uids, and how far it is forgotten."""

    def push(self, record: TasksPushed) -> Iterator[str]:
        """A number is one task for ever; a uid has one number until it is finished."""
        for row in record.tasks:
            before = self.numbers.setdefault(row.number, (row.uid, row.data))
            if before != (row.uid, row.data):
                yield f"number {row.number} is task {row.uid} and was {before[0]}"
            if self.uids.get(row.uid, 0) not in (row.number, *range(self.upto + 1)):
                yield f"task {row.uid} is queued twice: {self.uids[row.uid]}, {row.number}"
            self.uids[row.uid] = row.number


def check_tasks(history: History) -> Iterator[str]:
    """What was told to be queued is durable, and is given out as it was pushed, under one number."""
    queue = Queue()
    for _, record in history.ever:
        if isinstance(record, TasksPushed):
            yield from queue.push(record)
        elif isinstance(record, TasksForgotten):
            queue.upto = max(queue.upto, record.upto)
        queue.after.append((max(queue.numbers, default=0), frozenset(queue.uids), queue.upto))
    for uids, at in history.pushed:
        if uids and not set(uids) <= queue.after[at - 1][1]:
            yield f"tasks {uids} were told to be queued before they were durable"
    for number, uid, data, at in history.taken:
        if number > queue.after[at - 1][0] or queue.numbers[number] != (uid, data):
            yield f"task {number} was given out as {uid}, the disk says {queue.numbers.get(number)}"
    for number, at in history.forgotten:
        if number > queue.after[at - 1][2]:
            yield f"tasks up to {number} were told to be forgotten before that was durable"
