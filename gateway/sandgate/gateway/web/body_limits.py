"""Request bodies: the deadline for reading one, and the limits on bytes in memory per body, per key and in all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

from sandgate.contract.errors import InvalidBody, Overloaded, TooLarge, Unsupported

AsgiScope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

SMALL_BYTES = 512 * 1024
"""Size limit of a body by which an agent or a verifier reports its result: 64 KiB of reward_info, where each character
may be an escape of six."""
RETRY_S = 1.0
"""Seconds until a refused client may send its body again: bodies arrive in milliseconds."""


class EncodedBody(Unsupported):
    """415 for a body that is compressed: no client does it, and a few bytes may be gigabytes."""

    status = 415


class ClientGone(Exception):
    """The client's connection is gone; there is nobody to answer."""


@dataclass(slots=True)
class Bodies:
    """Counts the bytes of bodies that were received and are not decoded yet."""

    most: int
    most_of_one: int
    """Bytes with one agent's key."""
    held: int = 0
    of: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class BodyHold:
    """The bytes that one request's body holds in `bodies`. `name`: its key's name; empty = only the limit on all bodies
    together counts."""

    bodies: Bodies
    name: str
    size: int = 0

    def take(self, size: int) -> None:
        """Counts `size` bytes more that were received. Raises Overloaded."""
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
        """Counts them no longer: the body was decoded, or dropped."""
        self.bodies.held -= self.size
        if self.name and self.size:
            left = self.bodies.of.pop(self.name) - self.size
            if left:
                self.bodies.of[self.name] = left
        self.size = 0


def announced(scope: AsgiScope) -> int:
    """The request's Content-Length; 0 if there is none."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit():
            return int(value[:20])
    return 0


async def read_body(scope: AsgiScope, receive: Receive, limit: int, within_s: float, hold: BodyHold) -> bytes:
    """The whole body. Raises TooLarge early if the length is announced; InvalidBody if it did not come in time;
    Overloaded; ClientGone if the client went away."""
    for name, value in scope["headers"]:
        if name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            said = value[:40].decode("latin-1")
            raise EncodedBody(
                f"content-encoding is {said!r}; send the body as it is", field="content-encoding"
            )
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
    """A `receive` that gives an app the body once more, and then whatever comes behind it."""
    given = False

    async def first() -> MutableMapping[str, Any]:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return first
