"""Runs one operator replica: waits for the API server and the Lease, leads, drains; gives its exit code."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Any, Protocol

from sandgate.contract.errors import SandgateError
from sandgate.operator.cluster.health import OperatorHealth, ReplicaPhase
from sandgate.operator.cluster.namespace_watches import NamespaceWatches, Watch
from sandgate.operator.cluster.watches import Watches
from sandgate.operator.kubernetes.access import Access
from sandgate.operator.kubernetes.client import KubeClient
from sandgate.operator.replica.leader_lease import CALL_S, LeaderLease, LeaseLost
from sandgate.operator.replica.metrics import OperatorMetrics
from sandgate.operator.replica.probes import ReplicaState, serving
from sandgate.operator.replica.sweeps import Sweeps
from sandgate.operator.settings import Settings

Json = Any

log = logging.getLogger(__name__)

OURS = ("RolloutJob", "AgentSession")
"""Kinds that an installation brings along."""
LOOK_S = 2.0
"""Between two looks for them."""
DRAIN_S = 25.0
"""For what is in hand when SIGTERM comes: half of the chart's grace period."""
BLIND_S = 10.0
"""For kopf to end, which closes its watches."""


class Leading(Protocol):
    """What leads: `cluster.job_controller.JobController`."""

    def saw(self, kind: str, event: str | None, body: Mapping[str, Json]) -> None: ...

    async def sweep(self) -> None: ...

    async def run(self) -> None: ...

    async def drain(self) -> None: ...

    def health(self) -> OperatorHealth: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Of one process; what all replicas share is in Settings."""

    host: str = ""
    """Where probes are answered; empty: everywhere."""
    port: int = 8080
    lease: str = ""
    """Name of the Lease; empty: lead without asking anybody."""
    lease_namespace: str = "default"
    identity: str = ""
    """In the Lease: the pod's name."""


@dataclass(slots=True)
class OperatorReplica:
    """Run it once. `die` ends the process without another line of Python: the Lease is another's."""

    access: Access
    settings: Settings
    options: Options
    hub_of: Callable[[KubeClient, Settings, OperatorMetrics], Leading]
    metrics: OperatorMetrics
    state: ReplicaState
    stop: asyncio.Event
    """Set it, or send SIGTERM: drain and end."""
    die: Callable[[], None] = lambda: os._exit(1)

    async def run(self) -> int:
        """The exit code: 0 after a stop, 1 when this replica could not go on. Raises OSError if the port is taken."""
        async with AsyncExitStack() as stack:
            kube = KubeClient(self.access, observe=self.metrics.called)
            stack.push_async_callback(kube.aclose)
            await stack.enter_async_context(serving(self.state, self.options.host, self.options.port))
            self._on_signals()
            stack.callback(self._off_signals)
            if not await self._unless_stopped(served(kube, self.state)):
                return 0
            lease = self._lease(stack)
            if lease is not None:
                self.state.lease_age = lambda: lease.age_s
                self.state.enter(ReplicaPhase.STANDBY)
                stack.push_async_callback(lease.release)
                if not await self._unless_stopped(lease.acquire()):
                    return 0
            return await self._lead(kube, lease)

    async def _lead(self, kube: KubeClient, lease: LeaderLease | None) -> int:
        hub = self.hub_of(kube, self.settings, self.metrics)
        self.state.hub = hub.health
        self.state.enter(ReplicaPhase.LEADING)
        sweeps = Sweeps(hub.sweep, lambda ok: self.metrics.swept(ok=ok))
        blind = asyncio.Event()

        def saw(kind: str, event: str | None, body: Mapping[str, Json]) -> None:
            self.metrics.saw(kind, event)
            hub.saw(kind, event, body)

        def relisted(kind: str) -> None:
            self.metrics.listed(kind)
            sweeps.soon()

        def watches(settings: Settings) -> Watches:
            return Watches(self.access, settings, saw, relisted, started=self._on_signals)

        front: Watch = watches(self.settings)
        if names := self.settings.namespaces:
            front = NamespaceWatches(
                kube,
                names,
                lambda name: watches(replace(self.settings, namespaces=(name,))),
                self.metrics.sees,
            )
        parts: dict[str, Coroutine[Any, Any, None]] = {"hub": hub.run(), "sweeps": sweeps.run()}
        if lease is not None:
            parts["lease"] = lease.hold()
        parts["watches"] = front.run(blind)
        tasks = {asyncio.create_task(part, name=name) for name, part in parts.items()}
        stopped = asyncio.create_task(self.stop.wait(), name="stop")
        try:
            done, _ = await asyncio.wait({*tasks, stopped}, return_when=asyncio.FIRST_COMPLETED)
            well = not self._broken(done)
            self.state.enter(ReplicaPhase.DRAINING)
            if well:
                well = await self._drain(hub, tasks)
            blind.set()
            await asyncio.wait([one for one in tasks if one.get_name() == "watches"], timeout=BLIND_S)
        finally:
            for one in (*tasks, stopped):
                one.cancel()
            await asyncio.gather(*tasks, stopped, return_exceptions=True)
        return 0 if well else 1

    async def _drain(self, hub: Leading, tasks: set[asyncio.Task[None]]) -> bool:
        """Let the job controller finish, as long as this replica leads."""
        draining = asyncio.create_task(hub.drain(), name="drain")
        needed = {draining, *(one for one in tasks if one.get_name() in ("lease", "watches"))}
        done, _ = await asyncio.wait(needed, timeout=DRAIN_S, return_when=asyncio.FIRST_COMPLETED)
        if draining not in done:
            draining.cancel()
            await asyncio.gather(draining, return_exceptions=True)
        if not done:
            log.warning("not drained after %g s: ends anyway", DRAIN_S)
        return not self._broken(done)

    def _broken(self, done: set[asyncio.Task[Any]]) -> bool:
        """Has a part ended that should not have? Says so; without the Lease this is the end."""
        broken = False
        for one in done:
            if one.get_name() in ("stop", "drain") and not one.cancelled() and one.exception() is None:
                continue
            broken = True
            error = None if one.cancelled() else one.exception()
            if isinstance(error, LeaseLost):
                log.error("lost the Lease: %s", error)
                self.die()
            log.error("%s ended: %s", one.get_name(), error or "by itself", exc_info=error)
        return broken

    def _lease(self, stack: AsyncExitStack) -> LeaderLease | None:
        if not self.options.lease:
            return None
        own = KubeClient(self.access, observe=self.metrics.called, deadline_s=CALL_S, attempt_s=CALL_S)
        stack.push_async_callback(own.aclose)
        options = self.options
        return LeaderLease(own, options.lease_namespace, options.lease, options.identity)

    async def _unless_stopped(self, part: Coroutine[Any, Any, None]) -> bool:
        """True when it is done; False, and it is cancelled, when the replica is to stop before that."""
        task, stopped = asyncio.create_task(part), asyncio.create_task(self.stop.wait())
        try:
            await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
            return task.done()
        finally:
            for one in (task, stopped):
                one.cancel()
            await asyncio.gather(task, stopped, return_exceptions=True)

    def _on_signals(self) -> None:
        """Again after kopf has begun, which takes them for itself."""
        for one in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(one, self.stop.set)

    def _off_signals(self) -> None:
        for one in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().remove_signal_handler(one)


async def served(kube: KubeClient, state: ReplicaState, look_s: float = LOOK_S) -> None:
    """Return when the API server answers and knows our kinds. Says what is missing, once each time it changes."""
    while True:
        try:
            missing = [kind for kind in OURS if not await kube.serves(kind)]
        except (SandgateError, OSError) as error:
            waits_for = f"the API server: {str(error) or type(error).__name__}"
        else:
            if not missing:
                return
            waits_for = f"the custom resource definitions of {' and '.join(missing)}"
        if waits_for != state.waits_for:
            log.warning("waits for %s", waits_for)
            state.waits_for = waits_for
        await asyncio.sleep(look_s)
