"""The rollout client for programs without an event loop: every call of `AsyncRolloutClient`, blocking."""

from __future__ import annotations

from collections.abc import Generator
from types import TracebackType
from typing import Self

import httpx

from sandgate.contract.lease import LEASE_TTL_S
from sandgate.contract.trajectory import Trajectory
from sandgate.gateway.client import TIMEOUT_S, Retries
from sandgate.trainer.client.groups import Group as AsyncGroup
from sandgate.trainer.client.loop_thread import (
    Blocking,
    LoopThread,
    blocking,
    blocking_block,
    blocking_stream,
)
from sandgate.trainer.client.rollout_client import AsyncRolloutClient
from sandgate.trainer.client.streaming import Ahead


class Group(Blocking[AsyncGroup]):
    """See `groups.Group`."""

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

    @property
    def settled(self) -> bool:
        """It was acknowledged, or given back."""
        return self.inner.settled

    @property
    def nbytes(self) -> int:
        """Bytes of its token arrays and binaries."""
        return self.inner.nbytes

    renew = blocking(AsyncGroup.renew)
    ack = blocking(AsyncGroup.ack)
    nack = blocking(AsyncGroup.nack)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.ack()
        else:
            self.nack()


class RolloutClient(Blocking[AsyncRolloutClient]):
    """One gateway's control API. Use as `with`, or call `close`. Any thread may call; a call blocks its own thread."""

    def __init__(
        self,
        base_url: str,
        key: str = "",
        *,
        timeout_s: float = TIMEOUT_S,
        retries: Retries | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`base_url`: the gateway's origin. `key`: scope trainer or admin."""
        inner = AsyncRolloutClient(base_url, key, timeout_s=timeout_s, retries=retries, transport=transport)
        super().__init__(inner, LoopThread())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close connections, and end the thread. Leases that were not acked are offered again when they expire.
        Idempotent."""
        if not self._loop.closed:
            self._loop.run(self.inner.aclose())
            self._loop.close()

    def groups(
        self,
        *,
        job: str | None = None,
        ttl_s: float = LEASE_TTL_S,
        idle_s: float | None = None,
        ahead: Ahead | None = None,
    ) -> Generator[Group, None, None]:
        """See `AsyncRolloutClient.groups`. When the loop over it ends, what was leased ahead is given back."""
        for group in self._groups(job=job, ttl_s=ttl_s, idle_s=idle_s, ahead=ahead):
            yield Group(group, self._loop)

    _groups = blocking_stream(AsyncRolloutClient.groups)
    sessions = blocking_stream(AsyncRolloutClient.sessions)
    weight_update = blocking_block(AsyncRolloutClient.weight_update)

    call = blocking(AsyncRolloutClient.call)
    create_session = blocking(AsyncRolloutClient.create_session)
    create_sessions = blocking(AsyncRolloutClient.create_sessions)
    session = blocking(AsyncRolloutClient.session)
    wait = blocking(AsyncRolloutClient.wait)
    reward = blocking(AsyncRolloutClient.reward)
    finalize = blocking(AsyncRolloutClient.finalize)
    trajectories = blocking(AsyncRolloutClient.trajectories)
    abort = blocking(AsyncRolloutClient.abort)
    tree = blocking(AsyncRolloutClient.tree)
    lease = blocking(AsyncRolloutClient.lease)
    renew = blocking(AsyncRolloutClient.renew)
    ack = blocking(AsyncRolloutClient.ack)
    renew_leases = blocking(AsyncRolloutClient.renew_leases)
    ack_leases = blocking(AsyncRolloutClient.ack_leases)
    nack = blocking(AsyncRolloutClient.nack)
    push_tasks = blocking(AsyncRolloutClient.push_tasks)
    close_group = blocking(AsyncRolloutClient.close_group)
    policy_version = blocking(AsyncRolloutClient.policy_version)
    pause = blocking(AsyncRolloutClient.pause)
    resume = blocking(AsyncRolloutClient.resume)
    heartbeat = blocking(AsyncRolloutClient.heartbeat)
    status = blocking(AsyncRolloutClient.status)
