"""Tasks that a trainer pushes: in order, once, durably, bounded, until they are finished."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.contract.errors import Conflict, Forbidden, NotFound, Overloaded, SandgateError
from sandgate.contract.job import Task
from sandgate.contract.keys import Scope
from sandgate.gateway.client import GatewayClient
from sandgate.gateway.journal.memory import MemoryDisk, MemoryStore
from sandgate.gateway.journal.records import (
    TASKS,
    Record,
    TaskRow,
    TasksForgotten,
    TasksPushed,
    decode,
    encode,
)
from sandgate.gateway.service import task_queue
from sandgate.gateway.service.task_queue import TaskQueue
from tests.support.gateway import Latch, Running, admin_key, eventually, gateway, within

Q1, Q2, Q3 = (Task(uid=f"q{n}", prompt=f"buy {n}", data={"n": n}) for n in (1, 2, 3))


@asynccontextmanager
async def serving(
    store: MemoryStore | None = None, **settings: Any
) -> AsyncIterator[tuple[Running, GatewayClient, GatewayClient]]:
    """Running, the operator, the trainer."""
    async with (
        gateway(store=store, **settings) as g,
        GatewayClient(g.origin, admin_key(), deadline_s=0.0) as operator,
        GatewayClient(g.origin, admin_key(Scope.TRAINER, job="shop-job"), deadline_s=0.0) as trainer,
    ):
        yield g, operator, trainer


# -- over HTTP ------------------------------------------------------------------------------------------------------


async def test_a_job_without_a_queue_takes_no_task_and_says_what_to_do() -> None:
    async with serving(limits={"tasks": 0}) as (_, operator, trainer):
        with pytest.raises(Conflict, match=r"never run: .* `tasks: \{queue: \{\}\}`"):
            await trainer.push_tasks([Q1], last=True)
        await trainer.push_tasks([], last=True)  # a trainer need not know whose tasks they were
        page = await operator.tasks()
        assert (page.tasks, page.last) == ((), True)


async def test_tasks_come_in_the_order_in_which_they_were_pushed() -> None:
    async with serving() as (_, operator, trainer):
        await trainer.push_tasks([Q2])
        await trainer.push_tasks([Q1, Q3])
        page = await operator.tasks()
        assert (page.tasks, page.cursor, page.last) == (((1, Q2), (2, Q1), (3, Q3)), 3, False)
        assert (await operator.tasks(2)).tasks == ((3, Q3),)
        await trainer.push_tasks([], last=True)
        assert (await operator.tasks(3)).last


async def test_a_repeated_push_changes_nothing() -> None:
    async with serving() as (g, operator, trainer):
        for _ in range(3):
            await trainer.push_tasks([Q1, Q2], last=True)
        assert [number for number, _ in (await operator.tasks()).tasks] == [1, 2]
        assert len(list(g.store.scan(TASKS))) == 1


async def test_what_does_not_fit_what_was_pushed_is_409_and_nothing_of_it_is_kept() -> None:
    async with serving() as (_, operator, trainer):
        await trainer.push_tasks([Q1])
        with pytest.raises(Conflict, match="'q1'"):
            await trainer.push_tasks([Q2, Task(uid="q1", prompt="sell")])
        with pytest.raises(Conflict, match="'q2'"):
            await trainer.push_tasks([Q2, Task(uid="q2", prompt="sell")])
        await trainer.push_tasks([Q3], last=True)
        with pytest.raises(Conflict, match="'q2' came after the last"):
            await trainer.push_tasks([Q2])
        assert [task for _, task in (await operator.tasks()).tasks] == [Q1, Q3]


async def test_a_push_is_told_which_of_its_tasks_had_finished_before() -> None:
    """Whoever waits for their groups would wait for ever. Also when the gateway started anew, with a log that was
    compacted. What is queued again may be run again, and so has not finished."""
    disk = MemoryDisk()
    async with serving(MemoryStore(disk)) as (g, operator, trainer):
        assert await trainer.push_tasks([Q1, Q2]) == ()
        assert await trainer.push_tasks([Q1, Q2]) == (), "the repeat of a push whose answer was lost"
        await operator.forget_tasks(1)
        assert await trainer.push_tasks([Q1, Q2, Q3]) == ("q1",)
        assert [task for _, task in (await operator.tasks(2)).tasks] == [Q1, Q3], "to run what is retried"
        await operator.forget_tasks(4)
        assert len(list(g.store.scan(TASKS))) == 1
        await g.store.aclose()
    async with serving(MemoryStore(disk)) as (_, operator, trainer):
        assert await trainer.push_tasks([Q3, Q1]) == ("q3", "q1")
        assert await trainer.push_tasks([Q3, Q1]) == (), "they are queued again"
        with pytest.raises(
            Conflict, match="'q2' has finished, with another prompt or data: a task is run once"
        ):
            await trainer.push_tasks([Task(uid="q4"), Task(uid="q2", prompt="sell")])
        assert {task.uid for _, task in (await operator.tasks()).tasks} == {"q1", "q3"}


async def test_the_repeat_of_a_last_push_is_none_after_the_end() -> None:
    async with serving() as (_, operator, trainer):
        await trainer.push_tasks([Q1, Q2], last=True)
        await operator.forget_tasks(1)
        assert await trainer.push_tasks([Q1, Q2], last=True) == ("q1",)
        assert [task for _, task in (await operator.tasks()).tasks] == [Q2]


def test_so_many_finished_tasks_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_queue, "FINISHED_MAX", 3)
    queue = TaskQueue()
    tasks = [(f"t{number}", number, None) for number in range(5)]
    for some in (tasks, tasks[1:3]):
        pushed = queue.push(some, 0.0)
        assert pushed is not None
        queue.fold(pushed)
        finished = queue.forget(queue.pushed, 0.0)
        assert finished is not None
        queue.fold(finished)
    assert queue.finished_of(tasks) == ("t1", "t2", "t4"), "the newest"


async def test_at_capacity_a_push_is_429_until_tasks_are_finished() -> None:
    async with serving(limits={"tasks": 2}) as (g, operator, trainer):
        await trainer.push_tasks([Q1])
        with pytest.raises(Overloaded, match="limit 2"):
            await trainer.push_tasks([Q2, Q3])
        assert len((await operator.tasks()).tasks) == 1, "all or nothing"
        await trainer.push_tasks([Q2])
        refused = await g.admin.post("/v1/tasks", json={"tasks": [{"uid": "q3"}]})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "5")
        await trainer.push_tasks([Q1, Q2])  # what is there already fits always
        await operator.forget_tasks(1)
        await trainer.push_tasks([Q3])
        assert [number for number, _ in (await operator.tasks()).tasks] == [2, 3]


async def test_tasks_are_bounded_in_bytes_too() -> None:
    async with serving(limits={"task_bytes": 1_000}) as (_, _, trainer):
        await trainer.push_tasks([Task(uid="a", prompt="x" * 900)])
        with pytest.raises(Overloaded, match="bytes of tasks"):
            await trainer.push_tasks([Task(uid="b", prompt="x" * 900)])


async def test_a_restart_goes_on_where_it_was() -> None:
    disk = MemoryDisk()
    async with serving(MemoryStore(disk)) as (g, operator, trainer):
        await trainer.push_tasks([Q1, Q2])
        await operator.forget_tasks(1)
        await trainer.push_tasks([Q3], last=True)
        await g.store.aclose()
    async with serving(MemoryStore(disk)) as (_, operator, trainer):
        page = await operator.tasks()
        assert (page.tasks, page.last) == (((2, Q2), (3, Q3)), True)
        await trainer.push_tasks([Q2, Q3], last=True)
        assert (await operator.tasks()).cursor == 3
        assert [one async for one in operator.sessions()] == [], "its log is no session"


async def test_who_waits_hears_of_the_first_task_and_of_the_end() -> None:
    async with serving() as (g, operator, trainer):
        for push, after, want in ([Q1], 0, (((1, Q1),), False)), ([], 1, ((), True)):
            waiting = asyncio.ensure_future(operator.tasks(after, wait_s=60.0))
            await eventually(lambda: bool(g.core.sessions.changed._waiters), "it waits")
            await trainer.push_tasks(push, last=not push)
            page = await waiting
            assert (page.tasks, page.last) == want
        assert (await operator.tasks(1, wait_s=60.0)).last, "nothing to wait for any more"


async def test_two_pushes_at_once_are_one_after_the_other() -> None:
    latch = Latch()
    async with serving(MemoryStore(gate=latch)) as (_, operator, trainer):
        latch.shut()
        pushes = [asyncio.ensure_future(trainer.push_tasks([Q1, one])) for one in (Q2, Q3)]
        await within(latch.reached)
        assert (await operator.tasks()).tasks == (), "not told before it is durable"
        latch.open()
        await asyncio.gather(*pushes)
        assert {task.uid for _, task in (await operator.tasks()).tasks} == {"q1", "q2", "q3"}
        assert [number for number, _ in (await operator.tasks()).tasks] == [1, 2, 3]


async def test_a_push_that_is_not_durable_is_no_push() -> None:
    disk = MemoryDisk()
    async with serving(MemoryStore(disk)) as (_, operator, trainer):
        disk.failure = "database or disk is full"
        with pytest.raises(SandgateError, match="disk is full"):
            await trainer.push_tasks([Q1])
        assert (await operator.tasks()).tasks == ()


async def test_the_log_stays_short() -> None:
    async with serving() as (g, operator, trainer):
        for number in range(1, 101):
            await trainer.push_tasks([Task(uid=f"t{number}")])
            await operator.forget_tasks(number)
        assert len(list(g.store.scan(TASKS))) < 50, "of 200"
        with pytest.raises(NotFound, match="the last is 100"):
            await operator.forget_tasks(101)


BAD: dict[str, tuple[Any, str, int]] = {
    "no uid": ({"tasks": [{"prompt": "x"}]}, "tasks.0.uid", 400),
    "a uid that is longer than an AgentSession's": ({"tasks": [{"uid": "q" * 257}]}, "tasks.0.uid", 400),
    "an empty uid": ({"tasks": [{"uid": ""}]}, "tasks.0.uid", 400),
    "no list": ({"tasks": {"uid": "q"}}, "tasks", 400),
    "a prompt that no journal keeps": ({"tasks": [{"uid": "q", "prompt": 2**70}]}, "tasks.0.prompt", 400),
    "a last that is no truth": ({"last": "soon"}, "last", 400),
}


@pytest.mark.parametrize(("body", "field", "status"), BAD.values(), ids=BAD)
async def test_a_bad_push_names_the_field(body: Any, field: str, status: int) -> None:
    async with serving() as (g, _, _):
        answer = await g.admin.post("/v1/tasks", json=body)
        assert (answer.status_code, answer.json()["error"]["param"]) == (status, field)


async def test_tasks_of_another_job_are_refused() -> None:
    async with serving() as (g, _, _):
        body = {"job": "other", "tasks": [{"uid": "q"}]}
        assert (await g.admin.post("/v1/tasks", json=body)).status_code == 404
        async with GatewayClient(g.origin, admin_key(Scope.TRAINER, job="other"), deadline_s=0.0) as stranger:
            with pytest.raises(Forbidden, match="another job"):
                await stranger.push_tasks([Q1])


# -- the queue itself -----------------------------------------------------------------------------------------------


def numbers(rows: Sequence[TaskRow]) -> list[int]:
    return [row.number for row in rows]


def test_pages_are_bounded_by_count_and_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_queue, "PAGE_TASKS", 3)
    monkeypatch.setattr(task_queue, "PAGE_BYTES", 100)
    queue = TaskQueue()
    for size in (1, 1, 1, 1, 70, 500, 1):
        record = queue.push([(f"t{queue.pushed}", "x" * size, None)], 0.0)
        assert record is not None
        queue.fold(record)
    end = queue.push([], 0.0, last=True)
    assert end is not None
    queue.fold(end)
    pages, at = [], 0
    while (found := queue.after(at))[0]:
        pages.append((numbers(found[0]), found[1]))
        at = found[0][-1].number
    assert pages == [([1, 2, 3], False), ([4, 5], False), ([6], False), ([7], True)]


def test_a_reader_that_begins_after_all_were_finished_is_told_that_these_were_all() -> None:
    """A driver that starts again begins at 0; it would wait for ever."""
    queue = TaskQueue()
    pushed = queue.push([("t1", "", None), ("t2", "", None)], 0.0, last=True)
    assert pushed is not None
    queue.fold(pushed)
    for upto, left in ((1, [2]), (2, [])):
        finished = queue.forget(upto, 0.0)
        assert finished is not None
        queue.fold(finished)
        rows, last = queue.after(0)
        assert (numbers(rows), last) == (left, True)


def test_what_is_remembered_is_not_written_anew_for_each_finished_task(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(task_queue, "FINISHED_MAX", 500)
    queue, logged, rewritten = TaskQueue(), 0, 0
    for number in range(1, 2_001):
        for record in (queue.push([(f"t{number}", "buy", None)], 0.0), queue.forget(number - 3, 0.0)):
            if record is not None:
                queue.fold(record)
                logged += len(encode(record))
        if queue.is_stale:
            rewritten += sum(len(encode(record)) for record in queue.snapshot(0.0))
            queue.stale = 0
    assert 0 < rewritten < 2 * logged


steps = st.lists(
    st.one_of(
        st.tuples(st.just("push"), st.lists(st.integers(0, 12), max_size=4), st.booleans()),
        st.tuples(st.just("forget"), st.integers(0, 20), st.just(False)),
    ),
    max_size=25,
)


@given(steps, st.integers(1, 6))
def test_memory_is_the_fold_of_the_log_and_of_its_snapshot(steps: Any, limit: int) -> None:
    queue, log, given_out = TaskQueue(limit), list[Record](), dict[int, str]()
    for what, said, last in steps:
        record: TasksPushed | TasksForgotten | None = None
        try:
            if what == "push":
                record = queue.push([(f"t{one}", one, None) for one in said], 0.0, last=last)
            else:
                record = queue.forget(said, 0.0)
        except SandgateError:
            continue
        if record is not None:
            log.append(decode(encode(record)))
            queue.fold(record)
        for row in record.tasks if isinstance(record, TasksPushed) else ():
            assert row.number not in given_out, "a number is given once"
            given_out[row.number] = row.uid
        assert len(queue.held) <= limit
        assert queue.size == sum(queue.sizes.values())
        assert {given_out[number] for number in queue.held} == queue.numbers.keys(), "a uid is held once"
    for records in (log, [decode(encode(record)) for record in queue.snapshot(1.0)]):
        again = TaskQueue(limit)
        for one in records:
            again.fold(one)
        assert again == queue
