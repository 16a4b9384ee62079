"""Clients that never finish what they began are cut; those that are only slow are served."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from sandgate.gateway.web import header_limits
from tests.support.gateway import WITHIN_S, Running, eventually, gateway


async def _connect(g: Running) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    url = httpx.URL(g.origin)
    return await asyncio.open_connection(url.host, url.port)


async def _ended(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(WITHIN_S):
        return await reader.read()


@pytest.mark.parametrize("sent", [b"", b"POST /v1/chat/com", b"POST / HTTP/1.1\r\nhost: x\r\nx-slow: "])
async def test_a_head_that_never_ends_is_cut(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    monkeypatch.setattr(header_limits, "HEAD_S", 0.02)
    async with gateway() as g:
        reader, writer = await _connect(g)
        writer.write(sent)
        try:
            seen = await _ended(reader)
        except ConnectionResetError:  # cut before it had read what was sent
            seen = b""
        assert seen == b""
        writer.transport.abort()


async def test_a_head_that_grows_without_end_is_cut() -> None:
    async with gateway() as g:
        reader, writer = await _connect(g)
        writer.write(b"GET /healthz HTTP/1.1\r\n")
        try:
            for _ in range(100):
                writer.write(b"x-more: " + b"a" * 8_000 + b"\r\n")
                await writer.drain()
                await asyncio.sleep(0)
            seen = await _ended(reader)
        except ConnectionError:
            seen = b""
        assert b"200" not in seen
        writer.transport.abort()
        assert (await g.admin.get("/healthz")).status_code == 200


@pytest.mark.parametrize("path", ["v1/chat/completions", "/v1/sessions"])
async def test_a_body_that_stops_coming_is_refused(path: str) -> None:
    async with gateway(limits={"body_s": 0.2}) as g:
        agent = await g.session()
        target = path if path.startswith("/") else f"/sessions/{agent.id}/{path}"
        key = (
            g.admin.headers["authorization"] if path.startswith("/") else f"Bearer {agent.handle['api_key']}"
        )
        reader, writer = await _connect(g)
        head = f"POST {target} HTTP/1.1\r\nhost: x\r\nauthorization: {key}\r\ncontent-length: 1000\r\n"
        writer.write(head.encode() + b"connection: close\r\n\r\n{")
        seen = await _ended(reader)
        assert seen.startswith(b"HTTP/1.1 400")
        assert b"the body did not come within 0.2 s" in seen
        writer.close()
        assert g.core.turns.load.in_flight == 0


async def test_a_head_that_is_here_is_no_longer_waited_for() -> None:
    """However long the answer takes, and on a connection that is used again."""
    async with gateway(lambda ids, number: "kiwi") as g:
        agent = await g.session()
        await g.admin.post("/v1/pause")
        asked = asyncio.ensure_future(agent.post("hi"))
        await eventually(lambda: g.core.turns.load.in_flight == 1, "the turn is held")
        assert g.connections
        assert all(one._deadline is None for one in g.connections)
        await g.admin.post("/v1/resume")
        assert (await asked).status_code == 200
        assert (await agent.post("more")).status_code == 200
        assert all(one._deadline is None for one in g.connections), "idle ones end by their own, longer time"
