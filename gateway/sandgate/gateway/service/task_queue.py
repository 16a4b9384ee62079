"""Tasks that a trainer pushes while its job runs, until the operator says that they are finished. (pure)

State is the fold of TasksPushed and TasksForgotten records, live and in replay alike. One push at a time: each is
decided, made durable and folded before the next is decided (`Sessions.push`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
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
ANOTHER_UID = "a task is run once; in the next epoch, and for another prompt, it needs a uid of its own"
SNAPSHOT_BYTES = 16 << 20
"""Size of one record of a compacted log, about."""
RECORD_BYTES = 64
"""Of the log for each task, about, beside its JSON."""
PAGE_TASKS, PAGE_BYTES = 1_000, 8 << 20
"""Limits of one answer, so that it takes the event loop some ms; one task always fits."""
FINISHED_MAX = 10_000
"""Finished tasks that are remembered, the newest: a few MB, and 160 kB of each compacted log."""
DIGEST = 8
"""Bytes of a digest: that two of so few are alike by chance is out of the question."""

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
    finished: dict[bytes, bytes] = field(default_factory=dict)
    """Digest of the uid -> of prompt and data, of the newest FINISHED_MAX of those."""
    ended: bool = False
    """No more tasks will come."""
    stale: int = field(default=0, compare=False)
    """Bytes of the log, about, that a snapshot leaves out: of finished tasks. Whoever writes one sets it to 0."""

    def push(self, tasks: Sequence[Pushed], now: float, *, last: bool = False) -> TasksPushed | None:
        """Decides a push: all tasks or none. A task that is held already, word for word, is the repeat of a push whose
        answer was lost. None if there is nothing new. One that is finished is given to the operator once more, which
        knows best: it runs again what `--retry-failed` gave up.

        Raises Conflict (a uid that is held, or remembered as finished, with another prompt or data; anything new after
        the end, or in a job that has no queue), Overloaded.
        """
        fresh: dict[str, Pushed] = {}
        for task in tasks:
            queued = self.held[self.numbers[task[0]]] if task[0] in self.numbers else None
            before = (queued.uid, queued.prompt, queued.data) if queued else fresh.get(task[0])
            if before is None:
                known = self.finished.get(_uid_digest(task[0]))
                if known is not None and known != _content_digest(task):
                    raise Conflict(
                        f"task {task[0]!r} has finished, with another prompt or data: {ANOTHER_UID}"
                    )
                if known is None or not self.ended:
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

    def finished_of(self, tasks: Iterable[Pushed]) -> tuple[str, ...]:
        """The uids of those that had finished before, as far as they are remembered, and are not queued again."""
        return tuple(
            uid for uid, *_ in tasks if uid not in self.numbers and _uid_digest(uid) in self.finished
        )

    @property
    def is_stale(self) -> bool:
        """Whether a snapshot would be less than half of the log: it costs each finished task a few of its own bytes,
        however many are held or remembered."""
        return self.stale >= self.size + 2 * DIGEST * len(self.finished)

    def _remember(self, digests: Iterable[tuple[bytes, bytes]]) -> None:
        for uid, content in digests:
            self.finished.pop(uid, None)
            self.finished[uid] = content
        for uid in list(islice(self.finished, max(0, len(self.finished) - FINISHED_MAX))):
            del self.finished[uid]

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
                self._remember(_unpacked(record.known))
                for number in [number for number in self.held if number <= record.upto]:
                    row = self.held.pop(number)
                    del self.numbers[row.uid]
                    size = self.sizes.pop(number)
                    self.size -= size
                    self.stale += size + RECORD_BYTES
                    task = row.uid, row.prompt, row.data
                    self._remember([(_uid_digest(row.uid), _content_digest(task))])

    def snapshot(self, now: float) -> list[Record]:
        """Records that fold to the same state, and so may replace the log in the journal."""
        known = b"".join(uid + content for uid, content in self.finished.items())
        out: list[Record] = []
        if self.forgotten:
            out.append(TasksForgotten(at=now, upto=self.forgotten, known=known))
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


def _uid_digest(uid: str) -> bytes:
    return blake2b(uid.encode(), digest_size=DIGEST).digest()


def _content_digest(task: Pushed) -> bytes:
    content = orjson.dumps(task[1:], option=orjson.OPT_SORT_KEYS)
    return blake2b(content, digest_size=DIGEST).digest()


def _unpacked(known: bytes) -> Iterable[tuple[bytes, bytes]]:
    for at in range(0, len(known), 2 * DIGEST):
        yield known[at : at + DIGEST], known[at + DIGEST : at + 2 * DIGEST]
