"""A gateway whose streams stand still: after as many events as the request's `x-test-events` says, no more is sent.

`python -m tests.support.held_gateway --config FILE`. Everything else goes on, as it does where a client does not read:
what is killed then has its turns on disk, and has told exactly so many events of them. What the engine sends is read
event by event: what a gateway reads at once it tells at once, so a stream's events would differ from run to run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from sandgate.gateway import app
from sandgate.gateway.engine.transport import Streamed
from sandgate.gateway.web.answer_writers import ANSWER
from sandgate.gateway.web.server import AsgiApp

HEADER = "x-test-events"
END = b"\n\n"
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Holding(AsgiApp):
    """The gateway's app. `x-test-events: 0` holds a body before its first byte, JSON too."""

    async def __call__(self, scope: MutableMapping[str, Any], receive: Any, send: Send) -> None:
        told = dict(scope.get("headers") or ()).get(HEADER.encode())
        if told is not None:
            scope.pop(ANSWER, None)  # it would not ask what is held
            send = _holding(send, int(told))
        await super().__call__(scope, receive, send)


def _holding(send: Send, events: int) -> Send:
    left = events

    async def held(message: MutableMapping[str, Any]) -> None:
        nonlocal left
        body = message.get("body", b"")
        if message["type"] != "http.response.body" or (body.count(END) < left and message.get("more_body")):
            left -= body.count(END)
            await send(message)
            return
        shown = b"".join([event + END for event in body.split(END)[:left]])
        await send({"type": "http.response.body", "body": shown, "more_body": True})
        await asyncio.Event().wait()

    return held


async def one_by_one(answer: Streamed, gather_s: float = 0.0) -> AsyncIterator[bytes]:
    """`Streamed.chunks`, each event alone."""
    rest = b""
    async for data in answer._connection.chunks():
        *events, rest = (rest + data).split(END)
        for event in events:
            yield event + END
    yield rest


if __name__ == "__main__":
    setattr(Streamed, "chunks", one_by_one)  # noqa: B010  (mypy forbids the plain form)
    vars(app)["AsgiApp"] = Holding
    raise SystemExit(app.main())
