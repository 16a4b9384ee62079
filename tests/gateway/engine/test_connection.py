"""Connections to engines: answers in every form that HTTP/1.1 has, cut anywhere; what is kept, and what is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.gateway.engine import transport
from sandgate.gateway.engine.connection import HELD_BYTES, Broken, EngineConnection
from sandgate.gateway.engine.connections import place_of
from sandgate.gateway.engine.transport import Lost, Transport

Reader: TypeAlias = asyncio.StreamReader
Writer: TypeAlias = asyncio.StreamWriter
OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
LENGTH = OK + b"Content-Length: 2\r\n\r\n"


@dataclass
class Engine:
    """Answers each request with the next bytes; counts connections."""

    answers: list[bytes]
    close: bool = False
    """After each answer."""
    connections: int = 0
    requests: list[bytes] = field(default_factory=list)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    """A client let go of its connection."""
    url: str = ""

    async def serve(self, reader: Reader, writer: Writer) -> None:
        self.connections += 1
        try:
            while self.answers:
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
                self.requests.append(head + await reader.readexactly(size))
                writer.write(self.answers.pop(0))
                await writer.drain()
                if self.close:
                    return
            await reader.read()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.gone.set()
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


@asynccontextmanager
async def serving(serve: Callable[[Reader, Writer], Coroutine[Any, Any, None]]) -> AsyncIterator[str]:
    tasks: set[asyncio.Task[None]] = set()

    def met(reader: Reader, writer: Writer) -> None:
        tasks.add(asyncio.ensure_future(serve(reader, writer)))

    server = await asyncio.start_server(met, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def talking(*answers: bytes, close: bool = False) -> AsyncIterator[tuple[Engine, Transport]]:
    engine, http = Engine(list(answers), close), Transport(api_key="k")
    try:
        async with serving(engine.serve) as engine.url:
            yield engine, http
            await http.aclose()
    finally:
        await http.aclose()


async def ask(http: Transport, engine: Engine) -> tuple[int, bytes]:
    async with http.post(f"{engine.url}/a?b=c", b"{}", request_id="r1") as answer:
        return answer.status, await answer.body()


async def so(condition: Callable[[], bool]) -> None:
    """Returns when it holds; the test's time-out is what ends a wait for nothing."""
    loop = asyncio.get_running_loop()
    while not condition():
        turn = loop.create_future()
        loop.call_soon(turn.set_result, None)
        await turn


FORMS: dict[str, tuple[bytes, tuple[int, bytes]]] = {
    "with a length": (LENGTH + b"ok", (200, b"ok")),
    "in chunks": (CHUNKED + b"1\r\no\r\n1;x=y\r\nk\r\n0\r\n\r\n", (200, b"ok")),
    "in chunks, with a trailer": (CHUNKED + b"2\r\nok\r\n0\r\nA: b\r\n\r\n", (200, b"ok")),
    "of no bytes": (OK + b"Content-Length: 0\r\n\r\n", (200, b"")),
    "without a body": (b"HTTP/1.1 204 No Content\r\n\r\n", (204, b"")),
    "behind an interim one": (b"HTTP/1.1 100 Continue\r\n\r\n" + LENGTH + b"ok", (200, b"ok")),
    "with early hints": (b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + LENGTH + b"ok", (200, b"ok")),
    "a refusal": (b"HTTP/1.1 429 No\r\nContent-Length: 2\r\nRetry-After: 7\r\n\r\nno", (429, b"no")),
}


@pytest.mark.parametrize("form", FORMS, ids=str)
async def test_an_answer_is_read_and_its_connection_kept(form: str) -> None:
    raw, expected = FORMS[form]
    async with talking(raw, raw) as (engine, http):
        assert [await ask(http, engine), await ask(http, engine)] == [expected, expected]
        assert engine.connections == 1
        assert engine.requests[0] == (
            b"POST /a?b=c HTTP/1.1\r\nHost: "
            + engine.url[7:].encode()
            + b"\r\nContent-Type: application/json\r\n"
            b"Authorization: Bearer k\r\nX-Request-Id: r1\r\nContent-Length: 2\r\n\r\n{}"
        )


NOT_KEPT: dict[str, bytes] = {
    "the server says close": OK + b"Connection: close\r\nContent-Length: 2\r\n\r\nok",
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
    "something comes behind the answer": LENGTH + b"ok" + LENGTH + b"no",
}


@pytest.mark.parametrize("why", NOT_KEPT, ids=str)
async def test_a_connection_is_not_kept_where(why: str) -> None:
    async with talking(NOT_KEPT[why], LENGTH + b"ok") as (engine, http):
        assert [await ask(http, engine), await ask(http, engine)] == [(200, b"ok")] * 2
        assert engine.connections == 2


async def test_an_answer_without_a_length_ends_with_its_connection() -> None:
    async with talking(OK + b"\r\nok", close=True) as (engine, http):
        assert await ask(http, engine) == (200, b"ok")


async def test_a_connection_that_the_server_let_go_of_is_not_used_again() -> None:
    async with talking(LENGTH + b"ok", LENGTH + b"ok", close=True) as (engine, http):
        assert await ask(http, engine) == (200, b"ok")
        ((_, kept),) = next(iter(http._connections._idle.values()))
        await so(lambda: kept.closed)
        assert await ask(http, engine) == (200, b"ok")
        assert engine.connections == 2


async def test_an_idle_connection_is_closed_before_the_server_closes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transport, "KEEPALIVE_S", 0.05)
    async with talking(LENGTH + b"ok", LENGTH + b"ok") as (engine, http):
        assert await ask(http, engine) == (200, b"ok")
        await engine.gone.wait()
        assert await ask(http, engine) == (200, b"ok")
        assert engine.connections == 2


BREAKS: dict[str, tuple[bytes, bytes, str]] = {
    "before the headers": (b"", b"", "the server closed the connection"),
    "in the headers": (OK + b"Content-Le", b"", "the server closed the connection"),
    "in a body with a length": (LENGTH + b"o", b"o", "the server closed the connection"),
    "in a chunk": (CHUNKED + b"9\r\no", b"o", "the server closed the connection"),
    "between chunks": (CHUNKED + b"1\r\no\r\n", b"o", "the server closed the connection"),
    "no HTTP": (b"SSH-2.0-x\r\n\r\n", b"", "what came is not HTTP"),
    "a chunk of no size": (CHUNKED + b"1\r\no\r\nzz\r\n", b"o", "what came is not HTTP"),
    "an upgrade": (b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", b"", "not HTTP"),
}


@pytest.mark.parametrize("gather_s", [0.0, 30.0])
@pytest.mark.parametrize("where", BREAKS, ids=str)
async def test_what_came_before_the_break_is_given_first(where: str, gather_s: float) -> None:
    raw, came, words = BREAKS[where]
    got: list[bytes] = []

    async def reads(http: Transport, url: str) -> None:
        async with http.post(url, b"", request_id="r") as answer:
            async for data in answer.chunks(gather_s):
                got.append(data)  # noqa: PERF401  (what came before the error is what is looked at)

    async with talking(raw, close=True) as (engine, http):
        with pytest.raises(Lost, match=words) as lost:
            await reads(http, engine.url)
        assert not lost.value.refused
    assert b"".join(got) == came


async def test_nobody_who_listens_is_refused_and_nothing_was_sent() -> None:
    async with serving(Engine([]).serve) as url:
        pass
    http = Transport()
    with pytest.raises(Lost, match=r"cannot connect to 127\.0\.0\.1") as lost:
        async with http.post(url, b"", request_id="r"):
            pass
    assert lost.value.refused
    await http.aclose()


async def test_who_leaves_early_ends_the_connection() -> None:
    async with talking(CHUNKED + b"1\r\no\r\n") as (engine, http):
        async with http.post(engine.url, b"", request_id="r") as answer:
            assert await anext(answer.chunks()) == b"o"
        await engine.gone.wait()


async def test_the_engine_waits_while_nobody_reads() -> None:
    """A client that is slow, and an engine that is fast: memory stays."""
    most = 64 << 20

    async def flood(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK + b"Content-Length: %d\r\n\r\n" % most)
        with suppress(ConnectionError):
            for _ in range(most >> 16):
                writer.write(bytes(1 << 16))
                await writer.drain()
        writer.close()

    async with serving(flood) as url:
        http = Transport()
        async with http.post(url, b"", request_id="r") as answer:
            connection = answer._connection
            await so(lambda: connection._full)
            assert connection._size <= HELD_BYTES + (1 << 20)
            assert len(await answer.body()) == most
        await http.aclose()


async def test_events_that_follow_fast_come_together_but_the_first_and_the_last() -> None:
    """`gather_s` is longer than the test: only the end can have ended it."""
    first, rest = asyncio.Event(), asyncio.Event()

    async def serve(reader: Reader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(CHUNKED + b"1\r\na\r\n")
        await first.wait()
        for event in (b"b", b"c", b"d"):
            writer.write(b"1\r\n" + event + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n\r\n")
        await rest.wait()
        writer.close()

    async with serving(serve) as url:
        http = Transport()
        async with http.post(url, b"", request_id="r") as answer:
            coming = answer.chunks(600.0)
            assert await anext(coming) == b"a"
            first.set()
            assert [data async for data in coming] == [b"bcd"]
            rest.set()
        await http.aclose()


URLS: dict[str, tuple[str, int, bool, str]] = {
    "http://engine:8000/v1": ("engine", 8000, False, "POST /v1 HTTP/1.1\r\nHost: engine:8000\r\n"),
    "http://engine": ("engine", 80, False, "POST / HTTP/1.1\r\nHost: engine\r\n"),
    "https://engine/x": ("engine", 443, True, "POST /x HTTP/1.1\r\nHost: engine\r\n"),
    "http://[::1]:80/x": ("::1", 80, False, "POST /x HTTP/1.1\r\nHost: [::1]\r\n"),
    "http://[fd00::7]:8000/x": ("fd00::7", 8000, False, "POST /x HTTP/1.1\r\nHost: [fd00::7]:8000\r\n"),
    "http://bücher.example/ä b": (
        "xn--bcher-kva.example", 80, False, "POST /%C3%A4%20b HTTP/1.1\r\nHost: xn--bcher-kva.example\r\n",
    ),
    "http://u:p%40@engine/x": (
        "engine", 80, False, "POST /x HTTP/1.1\r\nHost: engine\r\nAuthorization: Basic dTpwQA==\r\n",
    ),
}  # fmt: skip


@pytest.mark.parametrize("url", URLS, ids=str)
def test_where_a_request_goes(url: str) -> None:
    assert tuple(place_of(url)) == URLS[url]


class Wire(asyncio.Transport):
    """What a connection does to its socket."""

    def __init__(self) -> None:
        super().__init__()
        self.sent, self.aborted = b"", False

    def write(self, data: Any) -> None:
        self.sent += bytes(data)

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


@given(
    body=st.binary(max_size=60),
    cuts=st.lists(st.integers(1, 7), max_size=80),
    sizes=st.lists(st.integers(1, 9), max_size=20),
    chunked=st.booleans(),
)
def test_a_body_is_the_same_wherever_it_is_cut(
    body: bytes, cuts: list[int], sizes: list[int], chunked: bool
) -> None:
    raw, rest = (CHUNKED, body) if chunked else (OK + b"Content-Length: %d\r\n\r\n" % len(body) + body, b"")
    for size in [*sizes, 1000] if chunked else []:
        if part := rest[:size]:
            raw, rest = raw + b"%x\r\n%s\r\n" % (len(part), part), rest[size:]
    raw += b"0\r\n\r\n" if chunked else b""

    async def reads() -> None:
        connection = EngineConnection()
        connection.connection_made(Wire())
        for _ in range(2):
            connection.send(b"POST / HTTP/1.1\r\n\r\n", b"")
            left = raw
            for cut in [*cuts, len(raw)]:
                if part := left[:cut]:
                    connection.data_received(part)
                left = left[cut:]
            await connection.head()
            assert (connection.status, await connection.read()) == (200, body)
            assert connection.reusable
        connection.data_received(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
        assert connection.closed
        assert not connection.reusable

    asyncio.run(reads())


async def test_what_broke_stays_broken() -> None:
    connection = EngineConnection()
    connection.connection_made(Wire())
    connection.send(b"", b"")
    connection.connection_lost(ConnectionResetError("reset by peer"))
    for _ in range(2):
        with pytest.raises(Broken, match="the connection broke: reset by peer"):
            await connection.head()
    assert not connection.reusable


async def test_an_answer_without_a_length_that_we_end_is_not_whole() -> None:
    connection = EngineConnection()
    connection.connection_made(Wire())
    connection.send(b"", b"")
    connection.data_received(OK + b"\r\no")
    connection.close()
    connection.connection_lost(None)
    coming = connection.chunks()
    assert await anext(coming) == b"o"
    with pytest.raises(Broken, match="the server closed the connection"):
        await anext(coming)
