"""Serves /healthz, /readyz and /metrics of an operator replica, and measures its event loop's lag."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from sandgate.operator.cluster.health import OperatorHealth, ReplicaPhase, Signs, Verdict, verdict
from sandgate.operator.replica.metrics import CONTENT_TYPE, OperatorMetrics

log = logging.getLogger(__name__)

LAG_EVERY_S = 0.25
LAG_KEPT = 240
"""Samples, so a minute: longer than the period of any probe."""
STOP_S = 1.0
"""Requests under way get that long at the end."""


@dataclass(slots=True)
class LoopLag:
    """How long the event loop lately stood still, at most."""

    every_s: float = LAG_EVERY_S
    clock: Callable[[], float] = time.monotonic
    _lags: deque[float] = field(default_factory=lambda: deque(maxlen=LAG_KEPT))

    @property
    def lag_s(self) -> float:
        """Longest of the last minute."""
        return max(self._lags, default=0.0)

    async def watch(self) -> None:
        """For ever."""
        while True:
            before = self.clock()
            await asyncio.sleep(self.every_s)
            self._lags.append(max(0.0, self.clock() - before - self.every_s))


@dataclass(slots=True)
class ReplicaState:
    """What a replica knows of itself; whoever runs it moves the phase on."""

    metrics: OperatorMetrics
    loop: LoopLag = field(default_factory=LoopLag)
    hub: Callable[[], OperatorHealth] | None = None
    lease_age: Callable[[], float] = lambda: 0.0
    waits_for: str = ""
    clock: Callable[[], float] = time.monotonic
    phase: ReplicaPhase = ReplicaPhase.STARTING
    _since: float = field(default_factory=time.monotonic)

    def enter(self, phase: ReplicaPhase) -> None:
        """It does this from now on."""
        self.phase, self._since = phase, self.clock()
        log.info("%s", phase.value)

    def signs(self) -> Signs:
        """Right now."""
        return Signs(
            phase=self.phase,
            phase_age_s=self.clock() - self._since,
            loop_lag_s=self.loop.lag_s,
            lease_age_s=self.lease_age(),
            waits_for=self.waits_for,
            hub=self.hub() if self.hub is not None else None,
        )


def application(state: ReplicaState) -> web.Application:
    """The three pages. Bodies are JSON for people; probes look at the status: 200 or 503."""

    async def healthz(_: web.Request) -> web.Response:
        signs = state.signs()
        return _page(signs, verdict(signs), ready=False)

    async def readyz(_: web.Request) -> web.Response:
        signs = state.signs()
        return _page(signs, verdict(signs), ready=True)

    async def metrics(_: web.Request) -> web.Response:
        signs = state.signs()
        body = state.metrics.render(signs.phase, signs.loop_lag_s, signs.hub, phase_age_s=signs.phase_age_s)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    app.router.add_get("/metrics", metrics)
    return app


@asynccontextmanager
async def serving(state: ReplicaState, host: str, port: int) -> AsyncIterator[int]:
    """Answers probes while the block runs; gives the port that was taken. Raises OSError if it is in use."""
    runner = web.AppRunner(application(state), access_log=None, handle_signals=False, shutdown_timeout=STOP_S)
    await runner.setup()
    watch = asyncio.create_task(state.loop.watch())
    try:
        await web.TCPSite(runner, host or None, port).start()
        yield int(runner.addresses[0][1])
    finally:
        watch.cancel()
        await runner.cleanup()


def _page(signs: Signs, said: Verdict, *, ready: bool) -> web.Response:
    reasons = said.unready if ready else said.unhealthy
    body: dict[str, Any] = {
        "ready" if ready else "healthy": not reasons,
        "phase": signs.phase.value,
        "reasons": reasons,
        "loop_lag_s": round(signs.loop_lag_s, 3),
    }
    if (hub := signs.hub) is not None:
        body["queue"] = {"length": hub.queue_length, "age_s": round(hub.queue_age_s, 3)}
        body["last_event_age_s"], body["sweep_age_s"] = hub.last_event_age_s, hub.sweep_age_s
        body["jobs"], body["sessions"] = hub.jobs, dict(hub.sessions)
    text = json.dumps(body) + "\n"
    return web.Response(text=text, status=503 if reasons else 200, content_type="application/json")
