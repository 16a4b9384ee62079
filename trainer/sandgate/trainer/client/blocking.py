"""The fleet for programs without an event loop, as most training loops are: the same calls, blocking.

with cluster("shop") as fleet:
    for group in fleet.groups(max_behind=1):
        with group:
            train(group.trajectories)

The fleet runs in a thread with an event loop of its own, so leases are renewed, heartbeats are sent, and groups are
leased ahead while the training step has the main thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, contextmanager
from typing import Any

from sandgate.contract.choices import EngineKind
from sandgate.contract.lease import LEASE_TTL_S
from sandgate.trainer.client import fleet as asynchronous
from sandgate.trainer.client import weight_update
from sandgate.trainer.client.attach import WAIT_S, attach
from sandgate.trainer.client.blocking_client import Group as Group
from sandgate.trainer.client.cluster import ClusterPlace
from sandgate.trainer.client.counters import Counters
from sandgate.trainer.client.fleet import AsyncFleet
from sandgate.trainer.client.groups import Group as AsyncGroup
from sandgate.trainer.client.loop_thread import Blocking, LoopThread, blocking, blocking_stream, entered
from sandgate.trainer.client.streaming import POLL_S, Ahead

AHEAD = Ahead(groups=8)
"""By default: enough that a step finds its batch there, little enough that other ranks find theirs."""


class Update(Blocking[weight_update.Update]):
    """See `weight_update.Update`."""

    reload = blocking(weight_update.Update.reload)


class Fleet(Blocking[AsyncFleet]):
    """See `AsyncFleet`; made by `fleet`, `local`, `cluster`. One thread at a time may iterate over one `groups()`."""

    @property
    def counters(self) -> Counters:
        """What was counted so far."""
        return self.inner.counters

    @property
    def engines(self) -> tuple[str, ...]:
        """See `AsyncFleet.engines`."""
        return self.inner.engines

    def groups(
        self,
        *,
        job: str | None = None,
        ttl_s: float = LEASE_TTL_S,
        idle_s: float | None = None,
        ahead: Ahead | None = AHEAD,
        max_behind: int | None = None,
        on_stale: Callable[[AsyncGroup], None] | None = None,
        poll_s: float = POLL_S,
    ) -> Generator[Group, None, None]:
        """See `AsyncFleet.groups`. When the loop over it ends, however, what was leased ahead is given back.
        `on_stale` is called in the fleet's thread, where no call of this fleet may wait: note what is to be pushed
        again, and push it from your own."""
        found = self._groups(
            job=job,
            ttl_s=ttl_s,
            idle_s=idle_s,
            ahead=ahead,
            max_behind=max_behind,
            on_stale=on_stale,
            poll_s=poll_s,
        )
        for group in found:
            yield Group(group, self._loop)

    def trained(self, *groups: Group) -> None:
        """See `AsyncFleet.trained`."""

        async def told() -> None:
            self.inner.trained(*(group.inner for group in groups))

        self._loop.run(told())

    @contextmanager
    def weight_update(
        self,
        version: int,
        *,
        mode: weight_update.Mode = "keep",
        engines: Iterable[str] = (),
        kind: EngineKind | str = EngineKind.VLLM,
        drain_s: float = weight_update.DRAIN_S,
        adapter: str = "",
    ) -> Iterator[Update]:
        """See `AsyncFleet.weight_update`."""
        update = self.inner.weight_update(
            version, mode=mode, engines=engines, kind=kind, drain_s=drain_s, adapter=adapter
        )
        with entered(update, self._loop) as found:
            yield Update(found, self._loop)

    def told_version(self, version: int) -> None:
        """See `AsyncFleet.told_version`."""

        async def told() -> None:
            self.inner.told_version(version)

        self._loop.run(told())

    def over(self) -> bool:
        """See `AsyncFleet.over`."""
        return self.inner.over()

    lease = blocking(AsyncFleet.lease)
    renew = blocking(AsyncFleet.renew)
    ack = blocking(AsyncFleet.ack)
    nack = blocking(AsyncFleet.nack)
    _groups = blocking_stream(AsyncFleet.groups)
    checkpoint = blocking(AsyncFleet.checkpoint)
    commit = blocking(AsyncFleet.commit)
    resume_from = blocking(AsyncFleet.resume_from)
    push_tasks = blocking(AsyncFleet.push_tasks)
    version = blocking(AsyncFleet.version)
    status = blocking(AsyncFleet.status)
    sessions = blocking_stream(AsyncFleet.sessions)
    progress = blocking(AsyncFleet.progress)
    heartbeat = blocking(AsyncFleet.heartbeat)
    engine_urls = blocking(AsyncFleet.engine_urls)
    engines_without_weights = blocking(AsyncFleet.engines_without_weights)


@contextmanager
def _fleet(made: Callable[[], AbstractAsyncContextManager[AsyncFleet]], every_s: float) -> Iterator[Fleet]:
    loop = LoopThread()
    try:
        with entered(made(), loop) as inner, entered(inner.beating(every_s), loop):
            yield Fleet(inner, loop)
    finally:
        loop.close()


def fleet(
    origins: Mapping[str, str],
    key: str | os.PathLike[str],
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
