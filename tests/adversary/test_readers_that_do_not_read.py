"""Whoever does not read an answer is cut at a deadline, and holds little until then; his turn is kept."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.server import ServerState

from sandgate.gateway.protocols.base import Context
from sandgate.gateway.protocols.openai_chat_out import ChatStream
from sandgate.gateway.tokens.api import TextDelta
from sandgate.gateway.web import header_limits, server
from sandgate.gateway.web.connections import ConnectionTable
from sandgate.gateway.web.header_limits import LimitedConnection
from tests.adversary.victim import PATIENCE_S, Victim, Wires, chat, head, victim
from tests.support.gateway import WITHIN_S, eventually, gateway, user
from tests.support.waiting import until

LONG = "word " * 3_000
STREAMS = 10
SAMPLED_S = 3 * PATIENCE_S
"""30,000 tokens with 20 alternatives each take 5 s of a core: a minute beside busy processes."""
CONTEXT = Context(turns=("t1",), model="shop", created=1)


def stream(path: str, key: str, number: int, **more: Any) -> bytes:
    """A model call that differs from all others."""
    body = chat(stream=True, messages=[user(f"hi {number}")], **more)
    return head("POST", path + "v1/chat/completions", key, content_length=str(len(body))) + body


async def turns_are(v: Victim, path: str, count: int) -> bool:
    said = (await v.admin.get(f"/v1{path.rstrip('/')}")).json()
    return bool(said["turns"] == count)


@pytest.mark.timeout(SAMPLED_S + 2 * PATIENCE_S)
async def test_streams_that_nobody_reads_are_cut_and_their_turns_are_kept(tmp_path: Path) -> None:
    limits = {"write_s": 2.0, "linger_s": 0.1}
    async with victim(tmp_path, lambda ids, number: LONG, limits=limits) as v, Wires(v.origin) as wires:
        agent = await v.session()
        path, key = str(agent.base_url.path), agent.headers["authorization"].split()[1]
        assert await turns_are(v, path, 0)
        before = v.connections()
        v.forget_peak()
        for number in range(STREAMS):
            await wires.deaf(stream(path, key, number, logprobs=True, top_logprobs=20))
        await until(lambda: turns_are(v, path, STREAMS), what="every turn is captured", within_s=SAMPLED_S)

        async def cut() -> bool:
            return v.connections() < before + STREAMS // 2

        await until(cut, what="whoever does not read is cut", within_s=PATIENCE_S)
        assert v.grown_mb() < STREAMS * 9, "14 MB each were held; now 5 to 6, most of it by the allocator"
        answer = await agent.post("v1/chat/completions", content=chat(max_tokens=3))
        assert answer.status_code == 200, answer.text


async def test_what_is_behind_is_encoded_a_piece_at_a_time() -> None:
    async with gateway([LONG]) as g, Wires(g.origin) as wires:
        agent = await g.session()
        path, key = f"/sessions/{agent.id}/", agent.handle["api_key"]
        reader = await wires.deaf(stream(path, key, 1, logprobs=True, top_logprobs=20))
        await eventually(lambda: g.core.sessions.get(agent.id).turns == 1, "the turn is captured")
        assert all(one.transport.get_write_buffer_size() < 4 * server.CHUNK_BYTES for one in g.connections)
        raw = b""
        async with asyncio.timeout(WITHIN_S):
            while b"[DONE]" not in raw[-100:] and (more := await reader.read(65_536)):
                raw += more
        sampled = g.core.sessions.get(agent.id).sampled
        assert raw.count(b'"top_logprobs"') == sampled > 2_900, "all of it is told to who reads it late"


def test_pieces_are_of_bounded_size_and_are_the_whole() -> None:
    told = ChatStream(CONTEXT)
    steps: list[Any] = [(0, [TextDelta("w" * size)], None) for size in (10, 70_000, 60_000, 60_000, 5)]
    steps.append((0, [], None))
    pieces = list(server.chunks(told, steps))
    assert b"".join(pieces) == b"".join(server.encoded(ChatStream(CONTEXT), step) for step in steps)
    assert [len(piece) // 10_000 for piece in pieces] == [7, 12, 0]
    assert list(server.chunks(told, [])) == []


class Transport:
    """Of a client that reads as it is told to."""

    waiting, cut, closed = 0, False, False

    def get_write_buffer_size(self) -> int:
        return self.waiting

    def abort(self) -> None:
        self.cut = True

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.cut or self.closed


class Timers:
    """An event loop's, of which the newest is run by hand."""

    def __init__(self) -> None:
        self.set: list[Any] = []

    def call_later(self, seconds: float, call: Any, *args: Any) -> Any:
        self.set.append((seconds, call, args))
        return self

    def cancel(self) -> None:
        self.set.clear()

    def ring(self) -> None:
        ((_, call, args),) = self.set
        call(*args)


READERS: dict[str, tuple[list[int], bool]] = {
    "a reader that takes nothing": ([9 * header_limits.READ_BYTES_MIN] * 2, True),
    "a little": ([9 * header_limits.READ_BYTES_MIN, 9 * header_limits.READ_BYTES_MIN - 65_536], True),
    "enough": (
        [
            9 * header_limits.READ_BYTES_MIN,
            8 * header_limits.READ_BYTES_MIN,
            7 * header_limits.READ_BYTES_MIN,
        ],
        False,
    ),
    "enough, then nothing": (
        [9 * header_limits.READ_BYTES_MIN, *[8 * header_limits.READ_BYTES_MIN] * 2],
        True,
    ),
    "a reader that does not take the last bytes": ([70_000, 69_000], True),
}


@pytest.mark.parametrize(("waiting", "cut"), READERS.values(), ids=READERS)
def test_who_reads_in_time_is_told_on_and_who_does_not_is_cut(waiting: list[int], cut: bool) -> None:
    transport, timers = Transport(), Timers()
    one = guarded(transport, timers)
    transport.waiting = waiting[0]
    one.pause_writing()
    for left in waiting[1:]:
        transport.waiting = left
        timers.ring()
    assert transport.cut is cut
    one.resume_writing()
    assert timers.set == [], "whoever has read all is not waited for"


def test_an_idle_connection_that_left_an_answer_unread_is_not_closed_politely() -> None:
    """A close waits until all is read."""
    transport = Transport()
    one = guarded(transport, Timers())
    transport.waiting = 10
    one.timeout_keep_alive_handler()
    assert (transport.cut, transport.closed) == (True, False)


def guarded(transport: Any, timers: Any) -> LimitedConnection:
    config = uvicorn.Config(lambda scope: None, log_config=None)
    one = LimitedConnection(
        ConnectionTable(9, 9), 60.0, config=config, server_state=ServerState(), app_state={}, _loop=timers
    )
    one.transport, one.flow = transport, FlowControl(transport)
    return one
