"""Health probes of engine replicas: interval, time-out; results go to the routing table."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from sandgate.contract.errors import EngineUnavailable
from sandgate.gateway.engine.api import EngineStatus
from sandgate.gateway.engine.routing import ReplicaTable
from sandgate.gateway.engine.transport import Lost, Transport

PROBE_S = 5.0
"""Seconds between two probes of a replica: with two failures in a row one that hangs is left after 10-15 s (one that
refuses connections at once), and the probes stay far below an engine's notice."""

PROBE_TIMEOUT_S = 5.0
"""vLLM's API server answers /health in milliseconds; under full load it was seen to take up to a second."""

log = logging.getLogger("sandgate.gateway.engine")


class Probe(NamedTuple):
    """The result of one health probe."""

    failure: str | None
    """Why the replica is not healthy; None = it is."""
    dead: bool = False
    """Nothing listens at its address."""
    silent: bool = False
    """It gave no answer at all."""


async def check(http: Transport, url: str) -> Probe:
    """Asks a replica's `/health` once."""
    try:
        answer = await http.ask("GET", f"{url}/health", timeout_s=PROBE_TIMEOUT_S)
    except Lost as error:
        return Probe(str(error), error.refused, silent=True)
    return Probe(None if answer.status == 200 else f"/health answers {answer.status}")


async def watch(
    table: ReplicaTable,
    probe: Callable[[str], Awaitable[Probe]],
    *,
    every_s: float = PROBE_S,
    on_up: Callable[[str], Awaitable[None]],
) -> None:
    """Probes all replicas for ever. `on_up` is awaited for each that just came up, before the next round.

    An error that nobody foresaw is of one replica, which counts as not healthy: it must not end the probes of all, or
    no replica that is down would ever be up again."""

    async def probed(url: str) -> Probe:
        try:
            return await probe(url)
        except Exception as error:
            log.exception("engine %s cannot be probed", url)
            return Probe(f"its probe failed: {error!r}")

    while True:
        await asyncio.sleep(every_s)
        urls = list(table.replicas)
        for url, (failure, dead, _) in zip(urls, await asyncio.gather(*map(probed, urls)), strict=True):
            if not table.probed(url, failure, dead=dead):
                continue
            log.warning("engine %s is %s", url, f"down: {failure}" if failure else "up")
            if failure is not None:
                continue
            try:
                await on_up(url)
            except Exception as error:
                log.exception("engine %s cannot be asked what it is", url)
                table.down(url, f"it cannot be asked what it is: {error!r}")


def none_up(seen: Sequence[EngineStatus]) -> EngineUnavailable:
    """The error where no replica takes a turn: it says why."""
    why = "; ".join(f"{each.url}: {each.detail}" for each in seen) or "none is known yet"
    return EngineUnavailable(f"no engine is up ({why[:500]})", retry_after=PROBE_S)
