"""Reading a request's body: with a deadline for all of it, and within what one key, and all together, may hold."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from sandgate.contract.errors import InvalidBody, Overloaded, TooLarge

AsgiScope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

SMALL_BYTES = 512 * 1024
"""Of a body by which an agent or a verifier says how it went: 64 KiB of reward_info, if each character is an escape of
six."""
RETRY_S = 1.0
"""When a client may send it again: bodies arrive in milliseconds."""


class ClientGone(Exception):
    """The client's connection is gone; there is nobody to answer."""


@dataclass(slots=True)
class Bodies:
    """Bytes of bodies that were received and are not understood yet."""

    most: int
    most_of_one: int
    """With one agent's key."""
    held: int = 0
    of: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class BodyHold:
    """What one request holds of them. `name`: of its key; empty = bounded only with all."""

    bodies: Bodies
    name: str
    size: int = 0

    def take(self, size: int) -> None:
        """So many bytes more were received. Raises Overloaded."""
        bodies, mine = self.bodies, self.bodies.of.get(self.name, 0)
        if self.name and mine + size > bodies.most_of_one:
            raise Overloaded(f"{mine} bytes of bodies with this key are being read", retry_after=RETRY_S)
        if bodies.held + size > bodies.most:
            raise Overloaded(f"{bodies.held} bytes of bodies are being read", retry_after=RETRY_S)
        bodies.held += size
        self.size += size
        if self.name:
            bodies.of[self.name] = mine + size

    def release(self) -> None:
        """They are understood, or dropped."""
        self.bodies.held -= self.size
        if self.name and self.size:
            left = self.bodies.of.pop(self.name) - self.size
            if left:
                self.bodies.of[self.name] = left
        self.size = 0


def announced(scope: AsgiScope) -> int:
    """Content-Length, 0 if there is none."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:20])
    return 0


async def read_body(scope: AsgiScope, receive: Receive, limit: int, within_s: float, hold: BodyHold) -> bytes:
    """The whole body. Raises TooLarge early if the length is announced; InvalidBody if it did not come in time;
    Overloaded; ClientGone if the client went away."""
    if (size := announced(scope)) > limit:
        raise TooLarge(f"body of {size} bytes; the limit is {limit}")
    try:
        async with asyncio.timeout(within_s):
            return await _read(receive, limit, hold)
    except TimeoutError:
        raise InvalidBody(f"the body did not come within {within_s:g} s", field="body") from None


async def _read(receive: Receive, limit: int, hold: BodyHold) -> bytes:
    chunks: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunk = message.get("body", b"")
        size += len(chunk)
        if size > limit:
            raise TooLarge(f"body over the limit of {limit} bytes")
        hold.take(len(chunk))
        chunks.append(chunk)
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def again(body: bytes, receive: Receive) -> Receive:
    """`receive` for an app that reads the body itself; then what comes behind it."""
    told = False

    async def first() -> MutableMapping[str, Any]:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return first
