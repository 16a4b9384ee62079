"""Watches replicas: asks each `/health` now and then, and tells the routing table."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from sandgate.contract.errors import EngineUnavailable
from sandgate.gateway.engine.api import EngineStatus
from sandgate.gateway.engine.route import Table
from sandgate.gateway.engine.transport import Lost, Transport

PROBE_S = 5.0
"""Seconds between two probes of a replica: with two failures in a row one that hangs is left after 10-15 s (one that
refuses connections at once), and the probes stay far below an engine's notice."""

PROBE_TIMEOUT_S = 5.0
"""vLLM's API server answers /health in milliseconds; under full load it was seen to take up to a second."""

log = logging.getLogger("sandgate.gateway.engine")


async def check(http: Transport, url: str) -> str | None:
    """One probe: None = healthy, else what is wrong."""
    try:
        answer = await http.ask("GET", f"{url}/health", timeout_s=PROBE_TIMEOUT_S)
    except Lost as error:
        return str(error)
    return None if answer.status == 200 else f"/health answers {answer.status}"


async def watch(
    http: Transport,
    table: Table,
    *,
    every_s: float = PROBE_S,
    on_up: Callable[[str], Awaitable[None]] | None = None,
) -> None:
    """Probe all replicas for ever. `on_up` is awaited for one that just came up, before the next round."""
    while True:
        await asyncio.sleep(every_s)
        urls = list(table.replicas)
        for url, failure in zip(urls, await asyncio.gather(*(check(http, url) for url in urls)), strict=True):
            if not table.probed(url, failure):
                continue
            log.warning("engine %s is %s", url, f"down: {failure}" if failure else "up")
            if failure is None and on_up is not None:
                await on_up(url)


def none_up(seen: Sequence[EngineStatus]) -> EngineUnavailable:
    """No replica takes a turn, and why not."""
    why = "; ".join(f"{each.url}: {each.detail}" for each in seen) or "none is known yet"
    return EngineUnavailable(f"no engine is up ({why[:500]})", retry_after=PROBE_S)
