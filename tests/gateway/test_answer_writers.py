"""An answer that is written straight to its connection is, byte for byte, the one that any ASGI server would write."""

from __future__ import annotations

import asyncio
import re
from collections.abc import MutableMapping
from typing import Any

import httpx
import orjson
import pytest

from sandgate.gateway.web import answer_writers
from sandgate.gateway.web.server import AsgiApp
from tests.support.gateway import WITHIN_S, Agent, Running, eventually, gateway

CLOSE = b"connection: close\r\n"
REQUESTS: dict[str, tuple[bytes, bytes, dict[str, Any]]] = {
    "JSON": (b"1.1", b"", {}),
    "a stream": (b"1.1", b"", {"stream": True}),
    "JSON, connection: close": (b"1.1", CLOSE, {}),
    "a stream, connection: close": (b"1.1", CLOSE, {"stream": True}),
    "JSON over HTTP/1.0": (b"1.0", b"", {}),
    "a stream over HTTP/1.0": (b"1.0", b"", {"stream": True}),
    "JSON, expect: 100-continue": (b"1.1", b"expect: 100-continue\r\n", {}),
    "a stream with usage and logprobs": (
        b"1.1",
        b"",
        {"stream": True, "logprobs": True, "stream_options": {"include_usage": True}},
    ),
    "several choices": (b"1.1", b"", {"stream": True, "n": 2}),
    "what is refused": (b"1.1", b"", {"model": "another"}),
}
NEW = re.compile(rb"req_[0-9a-f]+|chatcmpl-[0-9a-f]+|[0-9a-f]{24}|\"created\":\d+|call_\w+")


def request(agent: Agent, version: bytes = b"1.1", more: bytes = b"", **members: Any) -> bytes:
    """The bytes of a model call."""
    body = orjson.dumps({**agent.body("hi"), **members})
    line = b"POST /sessions/%b/v1/chat/completions HTTP/%b\r\n" % (agent.id.encode(), version)
    key = agent.http.headers["authorization"].encode()
    headers = b"host: x\r\nauthorization: %b\r\ncontent-length: %d\r\n" % (key, len(body))
    return line + headers + more + b"\r\n" + body


async def connect(g: Running) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    url = httpx.URL(g.origin)
    return await asyncio.open_connection(url.host, url.port)


async def answer_of(reader: asyncio.StreamReader) -> bytes:
    """One answer, without ids that are new each time, and as if each chunk had been one of the same size."""
    async with asyncio.timeout(WITHIN_S):
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"HTTP/1.1 100"):
            return head + await answer_of(reader)
        if (length := re.search(rb"content-length: (\d+)", head)) is not None:
            body = await reader.readexactly(int(length[1]))
        else:
            assert b"transfer-encoding: chunked" in head
            body = b""
            while size := int(await reader.readline(), 16):
                body += await reader.readexactly(size)
                assert await reader.readexactly(2) == b"\r\n"
            assert await reader.readexactly(2) == b"\r\n"
    return NEW.sub(b"new", head + body)


async def by_messages(self: AsgiApp, scope: MutableMapping[str, Any], receive: Any, send: Any) -> None:
    scope.pop(answer_writers.ANSWER)
    await _CALL(self, scope, receive, send)


_CALL = AsgiApp.__call__


async def told(asked: tuple[bytes, bytes, dict[str, Any]]) -> tuple[bytes, bool]:
    """The answer to a request, and whether another may be sent behind it."""
    version, more, members = asked
    async with gateway(["kiwi and plum"] * 4) as g:
        reader, writer = await connect(g)
        agent = await g.session()
        writer.write(request(agent, version, more, **members))
        seen = await answer_of(reader)
        if version == b"1.0" or more == CLOSE:
            async with asyncio.timeout(WITHIN_S):
                assert await reader.read() == b""
            kept = False
        else:
            writer.write(request(agent))
            kept = (await answer_of(reader)).startswith(b"HTTP/1.1 200")
        writer.close()
        return seen, kept


@pytest.mark.parametrize("asked", REQUESTS.values(), ids=REQUESTS)
async def test_it_is_what_messages_would_have_made(
    asked: tuple[bytes, bytes, dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    direct = await told(asked)
    monkeypatch.setattr(AsgiApp, "__call__", by_messages)
    assert direct == await told(asked)
    assert direct[0].startswith((b"HTTP/1.1 200", b"HTTP/1.1 404", b"HTTP/1.1 100"))


async def test_requests_that_were_sent_at_once_are_answered_in_their_order() -> None:
    streamed = (True, False, True)
    async with gateway(["a"] * 3) as g:
        reader, writer = await connect(g)
        agent = await g.session()
        writer.write(b"".join([request(agent, stream=one, seed=at) for at, one in enumerate(streamed)]))
        try:
            seen = [await answer_of(reader) for _ in streamed]
        finally:
            writer.close()
    assert [answer.endswith(b"data: [DONE]\n\n") for answer in seen] == list(streamed)
    assert [b"200 OK" in answer for answer in seen] == [True] * 3


async def test_a_stream_that_begins_with_a_token_begins_in_one_write(monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []
    write = answer_writers.DirectAnswer._write

    def noted(self: answer_writers.DirectAnswer, *pieces: bytes) -> None:
        writes.append(self._held + b"".join(pieces))
        write(self, *pieces)

    monkeypatch.setattr(answer_writers.DirectAnswer, "_write", noted)
    async with gateway(["kiwi"]) as g:
        agent = await g.session()
        assert (await agent.post("hi", stream=True)).status_code == 200
    assert writes[0].startswith(b"HTTP/1.1 200 OK\r\n")
    assert b'"role":"assistant"' in writes[0]
    assert b"kiwi" in writes[0]
    assert writes[-1].endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


async def test_a_client_that_left_before_its_call_began_is_noticed() -> None:
    async with gateway(["kiwi"]) as g:
        agent = await g.session()
        await g.admin.post("/v1/pause")
        _, writer = await connect(g)
        writer.write(request(agent))
        await eventually(lambda: g.core.turns.load.in_flight == 1, "the turn is held")
        writer.transport.abort()
        await eventually(lambda: not g.connections or all(not one.busy() for one in g.connections), "it left")
        await eventually(lambda: g.call().listeners == 0, "nobody waits for it")
        await g.admin.post("/v1/resume")
