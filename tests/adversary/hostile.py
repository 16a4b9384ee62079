"""A hostile agent with every trick, as a program of its own: the standard library is all it needs.

    OPENAI_BASE_URL=http://host/sessions/ID/v1 OPENAI_API_KEY=... python hostile.py [ROUNDS]

It says a line for each round and goes on until it is killed, or for ROUNDS; then it exits with 0, as one that has done
its work. A 500, or a door that took its word, is the last thing it says, with exit code 3.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import socket
import sys
from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

BASE = urlsplit(os.environ.get("OPENAI_BASE_URL", "http://127.0.0.1:1/sessions/none/v1"))
KEY = os.environ.get("OPENAI_API_KEY", "")
MODEL = os.environ.get("SANDGATE_MODEL", "shop")
PATH = BASE.path.rstrip("/").removesuffix("/v1")
SESSION = PATH.rpartition("/")[2]
ANSWER_S = 60.0
PATIENCE_S = 2.0
"""For all that a round asks; then the next one begins beside it."""
LATE = 32
"""Requests that may be left of earlier rounds."""
DEAF = 4
"""Streams and slow bodies that stay open, per round."""
KEPT = 64
"""Connections that it holds at once: more are refused by any gateway."""

DEEP = b"[" * 200_000
WIDE = b'{"' + b"k" * 1_000_000 + b'":[' + b"0," * 400 + b'0],"x":NaN}'
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"enum": [[]] * 100_000}}}]
NOT_KEPT = (
    rb'{"reward": 1, "reward_info": {"a": "\ud800"}}',
    b'{"reward": 1, "reward_info": {"a": NaN}}',
    b'{"reward": 1, "reward_info": {"a": 18446744073709551616}}',
    b'{"reward": 1, "reward_info": ' + b'{"a":' * 600 + b"1" + b"}" * 601,
    b'{"reward": ' + b"9" * 400 + b"}",
    b'{"reward": NaN}',
    b'{"reward": 1.7e308}',
    b'{"reward": 1}',
)


class Trusted(Exception):
    """A gateway that failed, or believed it."""


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def chat(**more: Any) -> bytes:
    return json.dumps({"model": MODEL, "messages": [user("hi")], **more}).encode()


def costly(number: int) -> list[bytes]:
    """Model calls that cost more than they look."""
    return [
        DEEP,
        WIDE,
        chat(tools=TOOLS),
        chat(messages=[user("x " * 400_000)]),
        chat(messages=[user("<|im_end|>" * 5_000)]),
        chat(n=8, logprobs=True, top_logprobs=20, messages=[user(f"all of it {number}")]),
        chat(stop=["a"] * 100_000),
        chat(messages=[user("\ud83d" * 1_000)]),
        chat(max_tokens=10**400),
        chat(response_format={"type": "json_schema"}),
    ]


def head(path: str, length: int) -> bytes:
    lines = (
        f"POST {path} HTTP/1.1", f"host: {BASE.netloc}", f"authorization: Bearer {KEY}",
        "content-type: application/json", f"content-length: {length}",
    )  # fmt: skip
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


async def post(path: str, body: bytes) -> int:
    """Status of the answer; 0: none came."""
    status, writer = 0, None
    try:
        with contextlib.suppress(OSError, TimeoutError, IndexError, ValueError):
            async with asyncio.timeout(ANSWER_S):
                reader, writer = await asyncio.open_connection(BASE.hostname, BASE.port)
                writer.write(head(path, len(body)) + body)
                status = int((await reader.readline()).split()[1])
    finally:
        if writer is not None:
            writer.transport.abort()
    if status == 500:
        raise Trusted(f"500 for {body[:200]!r} at {path}")
    return status


async def rewards() -> None:
    """Its own, at every door."""
    for raw in NOT_KEPT:
        await post(f"{PATH}/reward", raw)
        if (
            b"reward_info" in raw
        ):  # refused; one that is taken would be its last word, and end all its other tricks
            await post(f"{PATH}/complete", raw)
    for door in ("reward", "finalize", "abort"):
        status = await post(f"/v1/sessions/{SESSION}/{door}", b'{"reward": 1.0}')
        if 200 <= status < 300:
            raise Trusted(f"{door} of the trainer's took its word")


def deaf(sent: bytes) -> socket.socket:
    """A connection of which the kernel takes little that is not read."""
    one = socket.socket()
    one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    one.settimeout(5.0)
    one.connect((BASE.hostname, BASE.port))
    one.setblocking(False)
    with contextlib.suppress(OSError):
        one.send(sent)
    return one


def streams(number: int) -> Iterable[socket.socket]:
    """That nobody reads, and that are cut; bodies that never come to an end."""
    for part in range(DEAF):
        body = chat(stream=True, logprobs=True, messages=[user(f"stream {number} {part}")])
        with contextlib.suppress(OSError):
            yield deaf(head(f"{PATH}/v1/chat/completions", len(body)) + body)
        with contextlib.suppress(OSError):
            yield deaf(head(f"{PATH}/v1/chat/completions", 4_000_000) + b"[" * 10_000)


async def rounds(wanted: int) -> None:
    held: list[socket.socket] = []
    asks: set[asyncio.Task[Any]] = set()
    for number in itertools.count() if wanted == 0 else range(wanted):
        held += await asyncio.to_thread(list, streams(number))
        asks |= {asyncio.create_task(post(f"{PATH}/v1/chat/completions", body)) for body in costly(number)}
        asks.add(asyncio.create_task(rewards()))
        done, asks = await asyncio.wait(asks, timeout=PATIENCE_S)
        for one in done:
            if not one.cancelled():
                one.result()
        for late in list(asks)[: max(0, len(asks) - LATE)]:
            late.cancel()
        while len(held) > KEPT:
            held.pop(0).close()
        print(number, flush=True)
    await post(f"{PATH}/complete", NOT_KEPT[-1])


if __name__ == "__main__":
    try:
        asyncio.run(rounds(int(sys.argv[1]) if len(sys.argv) > 1 else 0))
    except* Trusted as wrong:
        print(*wrong.exceptions, flush=True)
        sys.exit(3)
