"""Tasks that a trainer pushes while its job runs, until the operator says that they are finished. (pure)

State is the fold of TasksPushed and TasksForgotten records, live and in replay alike. One push at a time: each is
decided, made durable and folded before the next is decided (`Sessions.push`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import orjson

from sandgate.contract.errors import Conflict, NotFound, Overloaded
from sandgate.gateway.journal.records import Record, TaskRow, TasksForgotten, TasksPushed

RETRY_AFTER_S = 5.0
"""Seconds until a refused push may be tried again: a place comes free when a group is finished."""
NO_QUEUE = (
    "this job has no queue, and a task that is pushed would never run: its manifest gives its tasks; for"
    " tasks that a trainer pushes it says `tasks: {queue: {}}`"
)
SNAPSHOT_BYTES = 16 << 20
"""Size of one record of a compacted log, about."""
PAGE_TASKS, PAGE_BYTES = 1_000, 8 << 20
"""Limits of one answer, so that it takes the event loop some ms; one task always fits."""

Pushed = tuple[str, Any, Any]
"""uid, prompt, data."""


@dataclass(slots=True)
class TaskQueue:
    """The tasks that were pushed and are not finished, in order."""

    limit: int = 10_000
    """Limit of tasks held at once; 0: this job has no queue."""
    limit_bytes: int = 256 << 20
    """Limit of the bytes of their JSON."""
    held: dict[int, TaskRow] = field(default_factory=dict)
    """Number -> task, in order of number."""
    numbers: dict[str, int] = field(default_factory=dict)
    """uid -> number of each task in `held`."""
    sizes: dict[int, int] = field(default_factory=dict)
    """Number -> bytes of its JSON."""
    size: int = 0
    pushed: int = 0
    """The last number given."""
    forgotten: int = 0
    """Tasks up to this number are finished."""
    ended: bool = False
    """No more tasks will come."""

    def push(self, tasks: Sequence[Pushed], now: float, *, last: bool = False) -> TasksPushed | None:
        """Decides a push: all tasks or none. A task that is held already, word for word, is the repeat of a push whose
        answer was lost. None if there is nothing new.

        Raises Conflict (a uid that is held with another prompt or data, anything new after the end, or in a job that
        has no queue), Overloaded.
        """
        fresh: dict[str, Pushed] = {}
        for task in tasks:
            queued = self.held[self.numbers[task[0]]] if task[0] in self.numbers else None
            before = (queued.uid, queued.prompt, queued.data) if queued else fresh.get(task[0])
            if before is None:
                fresh[task[0]] = task
            elif _size(before) != _size(task) or before != task:
                raise Conflict(f"task {task[0]!r} was pushed before with another prompt or data")
        if self.ended and fresh:
            raise Conflict(f"the queue was ended; task {next(iter(fresh))!r} came after the last")
        if not fresh and (self.ended or not last):
            return None
        self._admit(fresh.values())
        rows = (TaskRow(number, *task) for number, task in enumerate(fresh.values(), self.pushed + 1))
        return TasksPushed(at=now, tasks=tuple(rows), last=last)

    def _admit(self, fresh: Iterable[Pushed]) -> None:
        sizes = [_size(task) for task in fresh]
        if sizes and not self.limit:
            raise Conflict(NO_QUEUE)
        if sizes and len(self.held) + len(sizes) > self.limit:
            raise Overloaded(f"{len(self.held)} tasks wait, limit {self.limit}", retry_after=RETRY_AFTER_S)
        if sizes and self.size + sum(sizes) > self.limit_bytes:
            raise Overloaded(
                f"{self.size} bytes of tasks wait, limit {self.limit_bytes}", retry_after=RETRY_AFTER_S
            )

    def forget(self, upto: int, now: float) -> TasksForgotten | None:
        """Decides that tasks up to this number are finished; None if they are already. Raises NotFound for a number
        that no task has yet."""
        if upto > self.pushed:
            raise NotFound(f"no task has number {upto}; the last is {self.pushed}")
        return TasksForgotten(at=now, upto=upto) if upto > self.forgotten else None

    def after(self, number: int) -> tuple[list[TaskRow], bool]:
        """The next page of tasks beyond `number`, and whether these are the last of all."""
        page: list[TaskRow] = []
        size = 0
        beyond = islice((row for row in self.held.values() if row.number > number), PAGE_TASKS)
        for row in beyond:
            size += self.sizes[row.number]
            if page and size > PAGE_BYTES:
                break
            page.append(row)
        reached = (
            page[-1].number if page else max(number, self.forgotten)
        )  # a reader may begin after all were finished
        return page, self.ended and reached >= self.pushed

    def fold(self, record: Record) -> None:
        """Folds one record, in journal order; records of other kinds change nothing."""
        match record:
            case TasksPushed():
                for row in record.tasks:
                    self.held[row.number] = row
                    self.numbers[row.uid] = row.number
                    self.sizes[row.number] = size = _size((row.uid, row.prompt, row.data))
                    self.size += size
                    self.pushed = max(self.pushed, row.number)
                self.ended = self.ended or record.last
            case TasksForgotten():
                self.forgotten = max(self.forgotten, record.upto)
                self.pushed = max(self.pushed, record.upto)
                for number in [number for number in self.held if number <= record.upto]:
                    del self.numbers[self.held.pop(number).uid]
                    self.size -= self.sizes.pop(number)

    def snapshot(self, now: float) -> list[Record]:
        """Records that fold to the same state, and so may replace the log in the journal."""
        out: list[Record] = [TasksForgotten(at=now, upto=self.forgotten)] if self.forgotten else []
        rows: list[TaskRow] = []
        size = 0
        for row in self.held.values():
            rows.append(row)
            size += self.sizes[row.number]
            if size > SNAPSHOT_BYTES:
                out.append(TasksPushed(at=now, tasks=tuple(rows)))
                rows, size = [], 0
        if rows or self.ended:
            out.append(TasksPushed(at=now, tasks=tuple(rows), last=self.ended))
        return out


def _size(task: Pushed) -> int:
    return len(orjson.dumps(task))
