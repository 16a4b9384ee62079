"""A fleet for programs without an event loop, which is what most training loops are: the same calls, blocking.

with cluster("shop") as fleet:
    for group in fleet.groups(max_behind=1):
        with group:
            train(group.trajectories)

The fleet runs in a thread with an event loop of its own, so leases are renewed, heartbeats are sent, and groups are
leased ahead while the training step has the main thread.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

from sandgate.contract.job import Task
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.client import fleet as asynchronous
from sandgate.trainer.client import lease_call, weight_update
from sandgate.trainer.client.attach import WAIT_S, attach
from sandgate.trainer.client.cluster import ClusterPlace
from sandgate.trainer.client.counters import Counters
from sandgate.trainer.client.fleet import AsyncFleet, Progress
from sandgate.trainer.client.groups import Group as AsyncGroup
from sandgate.trainer.client.streaming import Ahead
from sandgate.trainer.client.trained import Note

T = TypeVar("T")

AHEAD = Ahead(groups=4)
"""By default: enough that a step finds its batch there, little enough that other ranks find theirs."""


class LoopThread:
    """An event loop in a thread. Any thread may `run` something on it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="sandgate fleet", daemon=True)
        self._thread.start()

    def run(self, doing: Coroutine[Any, Any, T]) -> T:
        """Its result. If the caller is interrupted (Ctrl-C) it is cancelled."""
        future = asyncio.run_coroutine_threadsafe(doing, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        """Cancel what is left, and end the thread. Idempotent."""
        if not self._loop.is_closed():
            self.run(_cancel_all())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


async def _cancel_all() -> None:
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


class Group:
    """See `rollouts.Group`."""

    def __init__(self, inner: AsyncGroup, loop: LoopThread) -> None:
        self.inner, self._loop = inner, loop

    @property
    def job(self) -> str:
        return self.inner.job

    @property
    def uid(self) -> str:
        return self.inner.uid

    @property
    def trajectories(self) -> tuple[Trajectory, ...]:
        return self.inner.trajectories

    @property
    def lost(self) -> bool:
        """Another trainer has it, or may have: do not train on it."""
        return self.inner.lost

    def renew(self) -> None:
        """See `rollouts.Group.renew`."""
        self._loop.run(self.inner.renew())

    def ack(self) -> None:
        """See `rollouts.Group.ack`."""
        self._loop.run(self.inner.ack())

    def nack(self) -> None:
        """See `rollouts.Group.nack`."""
        self._loop.run(self.inner.nack())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.ack()
        else:
            self.nack()


class Fleet:
    """See `AsyncFleet`; made by `fleet` and `cluster`. One thread at a time may iterate over one `groups()`."""

    def __init__(self, inner: AsyncFleet, loop: LoopThread) -> None:
        self.inner, self._loop = inner, loop

    @property
    def counters(self) -> Counters:
        """What was counted so far."""
        return self.inner.counters

    def groups(
        self,
        *,
        job: str | None = None,
        ttl_s: float = lease_call.TTL_S,
        idle_s: float | None = None,
        ahead: Ahead | None = AHEAD,
        max_behind: int | None = None,
        on_stale: Callable[[AsyncGroup], None] | None = None,
    ) -> Generator[Group, None, None]:
        """See `AsyncFleet.groups`. When the loop over it ends, however, what was leased ahead is given back.
        `on_stale` is called in the fleet's thread."""

        async def opened() -> Any:
            return self.inner.groups(
                job=job, ttl_s=ttl_s, idle_s=idle_s, ahead=ahead, max_behind=max_behind, on_stale=on_stale
            )

        stream = self._loop.run(opened())
        try:
            while (group := self._loop.run(_next(stream))) is not None:
                yield Group(group, self._loop)
        finally:
            self._loop.run(stream.aclose())

    def trained(self, *groups: Group) -> None:
        """See `AsyncFleet.trained`."""

        async def told() -> None:
            self.inner.trained(*(group.inner for group in groups))

        self._loop.run(told())

    def checkpoint(self) -> Note:
        """See `AsyncFleet.checkpoint`."""
        return self._loop.run(self.inner.checkpoint())

    def commit(self, note: Note) -> None:
        """See `AsyncFleet.commit`."""
        self._loop.run(self.inner.commit(note))

    def resume_from(self, note: Note) -> None:
        """See `AsyncFleet.resume_from`."""
        self._loop.run(self.inner.resume_from(note))

    def push_tasks(self, tasks: Sequence[Task], *, last: bool = False) -> None:
        """See `AsyncFleet.push_tasks`."""
        self._loop.run(self.inner.push_tasks(tasks, last=last))

    def version(self) -> int:
        """See `AsyncFleet.version`."""
        return self._loop.run(self.inner.version())

    @property
    def engines(self) -> tuple[str, ...]:
        """See `AsyncFleet.engines`."""
        return self.inner.engines

    def progress(self) -> Progress:
        """See `AsyncFleet.progress`."""
        return self._loop.run(self.inner.progress())

    @contextmanager
    def weight_update(
        self,
        version: int,
        *,
        mode: weight_update.Mode = "keep",
        engines: Iterable[str] = (),
        drain_s: float = weight_update.DRAIN_S,
    ) -> Iterator[Update]:
        """See `AsyncFleet.weight_update`."""
        update = self.inner.weight_update(version, mode=mode, engines=engines, drain_s=drain_s)
        with _entered(update, self._loop) as found:
            yield Update(found, self._loop)


class Update:
    """See `weights.Update`."""

    def __init__(self, inner: weight_update.Update, loop: LoopThread) -> None:
        self.inner, self._loop = inner, loop

    def reload(self, path: str) -> None:
        """See `weights.Update.reload`."""
        self._loop.run(self.inner.reload(path))


async def _next(stream: Any) -> AsyncGroup | None:
    async for group in stream:
        found: AsyncGroup = group
        return found
    return None


@contextmanager
def _entered(manager: AbstractAsyncContextManager[T], loop: LoopThread) -> Iterator[T]:
    """An async context manager whose block is in another thread. It is entered and left in one task: locks and
    timeouts want that."""
    entered: asyncio.Future[T] = loop.run(_future())
    left: asyncio.Future[BaseException | None] = loop.run(_future())

    async def hold() -> None:
        async with manager as found:
            entered.set_result(found)
            if (error := await left) is not None:
                raise error

    async def begin() -> tuple[asyncio.Task[None], T]:
        task = asyncio.get_running_loop().create_task(hold())
        both: list[asyncio.Future[Any]] = [task, entered]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not entered.done():
            await task
        return task, entered.result()

    async def end(task: asyncio.Task[None], error: BaseException | None) -> None:
        left.set_result(error)
        await asyncio.wait([task])
        if error is None:
            task.result()
        elif not task.cancelled():
            task.exception()  # it is told as the block's own

    task, found = loop.run(begin())
    try:
        yield found
    except BaseException as error:
        # What is no Exception would end the loop's thread, too: there it is a cancellation.
        loop.run(end(task, error if isinstance(error, Exception) else asyncio.CancelledError()))
        raise
    loop.run(end(task, None))


async def _future() -> asyncio.Future[Any]:
    return asyncio.get_running_loop().create_future()


@contextmanager
def _fleet(made: Callable[[], AbstractAsyncContextManager[AsyncFleet]], every_s: float) -> Iterator[Fleet]:
    loop = LoopThread()
    try:
        with _entered(made(), loop) as inner, _entered(inner.beating(every_s), loop):
            yield Fleet(inner, loop)
    finally:
        loop.close()


def fleet(
    origins: Mapping[str, str],
    key: str,
    *,
    job: str = "",
    heartbeat_s: float = asynchronous.HEARTBEAT_S,
    **options: Any,
) -> AbstractContextManager[Fleet]:
    """A context manager that gives a Fleet of gateways, by name -> origin. Heartbeats are sent all the while.
    `options`: of AsyncRolloutClient."""
    return _fleet(lambda: asynchronous.fleet(origins, key, job=job, **options), heartbeat_s)


def local(
    out: str | os.PathLike[str],
    *,
    wait_s: float = WAIT_S,
    heartbeat_s: float = asynchronous.HEARTBEAT_S,
    **options: Any,
) -> AbstractContextManager[Fleet]:
    """A context manager that gives a Fleet of the run of this machine in the folder `out`. See `attach.attach`."""
    return _fleet(lambda: attach(out, wait_s=wait_s, **options), heartbeat_s)


def cluster(
    job: str,
    place: ClusterPlace | None = None,
    *,
    heartbeat_s: float = asynchronous.HEARTBEAT_S,
    **options: Any,
) -> AbstractContextManager[Fleet]:
    """A context manager that gives a Fleet of the gateways of a RolloutJob. See `fleet.cluster_fleet`."""
    return _fleet(lambda: asynchronous.cluster_fleet(job, place or ClusterPlace(), **options), heartbeat_s)
