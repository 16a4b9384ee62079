"""A proxy through which programs reach this machine and nothing else; it keeps what else they asked for."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import httpx

HERE = ("127.0.0.1", "localhost")
PIECE_BYTES = 65536
REFUSED = b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
OPEN = b"HTTP/1.1 200 OK\r\n\r\n"


@contextlib.asynccontextmanager
async def only_loopback() -> AsyncIterator[tuple[str, set[str]]]:
    """The proxy's URL, and the hosts that it refused. Some clients use it for loopback, too, whatever NO_PROXY says."""
    refused: set[str] = set()
    at_work: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await _serve(reader, writer, refused)
        writer.close()

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(serve(reader, writer))
        at_work.add(task)
        task.add_done_callback(at_work.discard)

    server = await asyncio.start_server(accepted, HERE[0], 0)
    try:
        yield f"http://{HERE[0]}:{server.sockets[0].getsockname()[1]}", refused
    finally:
        server.close()
        for task in list(at_work):
            task.cancel()
        await asyncio.gather(*at_work, return_exceptions=True)


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, refused: set[str]) -> None:
    first = await reader.readuntil(b"\r\n")
    method, target, _ = first.decode("latin-1").split()
    tunnel = method == "CONNECT"
    url = httpx.URL(f"http://{target}" if tunnel else target)
    if url.host not in HERE:
        refused.add(url.host)
        writer.write(REFUSED)
        return
    if tunnel:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OPEN)
    back, forth = await asyncio.open_connection(url.host, url.port or 80)
    if not tunnel:
        forth.write(first)  # servers take a whole URL where they expect a path
    try:
        await asyncio.gather(_pipe(reader, forth), _pipe(back, writer))
    finally:
        forth.close()


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(PIECE_BYTES):
        writer.write(piece)
        await writer.drain()
    writer.close()
