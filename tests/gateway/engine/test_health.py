"""Health probes go on, whatever one of them meets with."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec
import pytest

from sandgate.gateway.engine import health
from sandgate.gateway.engine.health import Probe
from sandgate.gateway.engine.routing import ReplicaTable

A, B = "http://a", "http://b"


async def test_an_answer_that_cannot_be_read_ends_the_probes_of_no_replica(
    caplog: pytest.LogCaptureFixture,
) -> None:
    table, asked, learned = ReplicaTable.of((A, B)), Counter[str](), Counter[str]()
    for url in (A, B):
        table.down(url, "connection refused")
    both = asyncio.Event()

    async def probe(url: str) -> Probe:
        asked[url] += 1
        if url == A and asked[A] == 1:
            msgspec.json.decode(b'"\xff"')  # raises UnicodeDecodeError, which is no DecodeError
        return Probe(None)

    async def on_up(url: str) -> None:
        learned[url] += 1
        if url == B and learned[B] == 1:
            msgspec.json.decode(b'"\xff"')
        if learned[A] and learned[B] == 2:
            both.set()

    watching = asyncio.ensure_future(health.watch(table, probe, every_s=0.01, on_up=on_up))
    try:
        async with asyncio.timeout(10):
            await both.wait()
        assert all(one.healthy for one in table.replicas.values())
        assert "cannot be probed" in caplog.text
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
