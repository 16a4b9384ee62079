"""Readings of what engines have to do in all, other gateways' generations included: gauges of their /metrics."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from sandgate.gateway.engine.routing import ReplicaTable
from sandgate.gateway.engine.transport import Lost, Transport

READ_S = 2.0
"""Seconds between two readings of a replica: load changes by the second, as turns take some seconds."""
READINGS_PER_S_MAX = 4.0
"""Of one replica by all gateways together: its server makes the page in some milliseconds."""
TIMEOUT_S = 2.0


def every_s(peers: int) -> float:
    """Seconds between two readings by one gateway."""
    return max(READ_S, peers / READINGS_PER_S_MAX)


def load_in(page: bytes, gauges: Sequence[str]) -> float | None:
    """The sum of these gauges, over all label sets (data-parallel ranks have one each); None if none is there."""
    names = "|".join(map(re.escape, gauges))
    found = re.findall(rb"^(?:%s)(?:\{[^\n]*\})? ([0-9.eE+]+)" % names.encode(), page, re.MULTILINE)
    return sum(map(float, found)) if found else None


async def load_of(http: Transport, url: str, gauges: Sequence[str]) -> float | None:
    """What a replica has running and waiting; None if it does not say so now."""
    try:
        answer = await http.ask("GET", f"{url}/metrics", timeout_s=TIMEOUT_S)
        return load_in(answer.body, gauges) if answer.status == 200 else None
    except (Lost, ValueError):
        return None


async def watch(http: Transport, table: ReplicaTable, gauges: Sequence[str], *, every_s: float) -> None:
    """Tells the table what each replica that is up has to do, for ever. With one replica there is nothing to choose."""
    while True:
        await asyncio.sleep(every_s)
        urls = [replica.url for replica in table.replicas.values() if replica.healthy]
        if len(urls) < 2:
            continue
        for url, load in zip(
            urls, await asyncio.gather(*(load_of(http, url, gauges) for url in urls)), strict=True
        ):
            if load is not None:
                table.reported(url, load)
