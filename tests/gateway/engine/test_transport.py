"""Sockets to engines: a host that vanishes is noticed, whatever was under way."""

from __future__ import annotations

import asyncio
import socket

from sandgate.gateway.engine.transport import Transport

NOTICED_S = 30


async def test_a_vanished_host_is_noticed_in_half_a_minute_whether_or_not_it_had_acknowledged_the_request() -> (
    None
):
    """An engine's node without power: nobody answers, nobody refuses. Without data under way the kernel probes; with
    a request that was never acknowledged it does not, and would resend for 15 minutes."""
    options: dict[str, int] = {}
    looked = asyncio.Event()
    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no")
        await looked.wait()
        writer.write(b"k")

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    http = Transport()
    try:
        port = server.sockets[0].getsockname()[1]
        async with http.post(f"http://127.0.0.1:{port}/", b"", request_id="a") as answer:
            sock = answer._connection.transport.get_extra_info("socket")
            for name in ("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT", "TCP_USER_TIMEOUT"):
                options[name] = sock.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))
            assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            looked.set()
            assert await answer.body() == b"ok"
    finally:
        await http.aclose()
        for writer in writers:
            writer.close()
        server.close()
    silent = options["TCP_KEEPIDLE"] + options["TCP_KEEPINTVL"] * options["TCP_KEEPCNT"]
    assert 0 < silent <= NOTICED_S
    assert 0 < options["TCP_USER_TIMEOUT"] <= NOTICED_S * 1000
