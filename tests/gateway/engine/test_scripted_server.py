"""The scripted engine as a server that comes and goes while gateways probe it."""

from __future__ import annotations

import asyncio
import gc
import socket

import pytest

from sandgate.gateway.engine.scripted.engine import Player
from sandgate.gateway.engine.scripted.server import ScriptedServer
from sandgate.gateway.engine.scripted.serving import ACCEPT_STEPS


@pytest.mark.parametrize("steps", range(ACCEPT_STEPS + 3))
async def test_a_connection_that_is_accepted_as_it_stops_is_closed(steps: int) -> None:
    """Left open it would be an unclosed transport, reported by whatever test runs when it is collected."""
    async with ScriptedServer(Player([[1]])) as server:
        host, _, port = server.url.removeprefix("http://").rpartition(":")
        client = socket.create_connection((host, int(port)))
        for _ in range(steps):
            await asyncio.sleep(0)
    with client:
        client.settimeout(10.0)
        assert await asyncio.to_thread(_end, client) in (b"", None)
    gc.collect()  # what is left open warns here, and a warning is an error


def _end(client: socket.socket) -> bytes | None:
    """What comes last: nothing, or a reset by a server that had not accepted it."""
    try:
        return client.recv(1)
    except ConnectionResetError:
        return None
