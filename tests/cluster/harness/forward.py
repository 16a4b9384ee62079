"""Bytes from a socket here to an address in another network namespace: `forward.py NAMESPACE HOST PORT <socket`.

A program of its own, and of the standard library only, so it starts fast and outlives whoever started it. Standard
input is a socket that listens already: who connects before this runs waits, and nobody is refused.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import sys

CHUNK = 65536
CLONE_NEWNET = 0x40000000
ALIVE = (
    (socket.TCP_KEEPIDLE, 15),
    (socket.TCP_KEEPINTVL, 5),
    (socket.TCP_KEEPCNT, 3),
    (socket.TCP_USER_TIMEOUT, 30_000),
)
"""Who is there is looked after as a server would: a client whose machine lost its power is gone after 30 s, also where
bytes are under way to it, for which no keepalive is sent."""


def join(path: str) -> None:
    """Move this thread into a network namespace (os.setns is Python 3.12's). Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    file = os.open(path, os.O_RDONLY)
    try:
        if libc.setns(file, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)
    finally:
        os.close(file)


async def copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    """Until the source says no more; says so to the target."""
    while data := await source.read(CHUNK):
        target.write(data)
        await target.drain()
    target.write_eof()


async def serve(host: str, port: int) -> None:
    live: set[object] = set()  # asyncio alone does not keep an idle connection's task from being collected

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        live.add(task)
        client: socket.socket = writer.get_extra_info("socket")
        client.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, seconds in ALIVE:
            client.setsockopt(socket.IPPROTO_TCP, option, seconds)
        try:
            there, back = await asyncio.open_connection(host, port)
        except OSError:
            writer.transport.abort()  # as near as it gets to a refused connection
            live.discard(task)
            return
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(copy(reader, back))
                both.create_task(copy(there, writer))
        except* OSError:
            writer.transport.abort()
            back.transport.abort()
        writer.close()
        back.close()
        live.discard(task)

    server = await asyncio.start_server(connected, sock=socket.socket(fileno=0))
    await server.serve_forever()


if __name__ == "__main__":
    join(sys.argv[1])
    asyncio.run(serve(sys.argv[2], int(sys.argv[3])))
