"""A gateway that was taken over tells its operator what it likes: bounded in bytes, pages, time, and nowhere else."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from sandgate.contract import control_api
from sandgate.contract.errors import InvalidBody, SandgateError, Unavailable
from sandgate.contract.session import SessionOutcome
from sandgate.gateway.client import GatewayClient, Retries, control_client
from sandgate.operator.cluster import listing
from sandgate.trainer.client.blocking_client import RolloutClient
from sandgate.trainer.client.rollout_client import AsyncRolloutClient
from tests.support.waiting import paced

MIB = 1 << 20


async def _all(client: GatewayClient) -> list[Any]:
    return [one async for one in client.sessions()]


CALLS: dict[str, Callable[[GatewayClient], Awaitable[Any]]] = {
    "get": lambda c: c.get("s"),
    "events": lambda c: c.events(0, wait_s=0.0),
    "status": lambda c: c.status(),
    "ready": lambda c: c.ready(),
    "healthy": lambda c: c.healthy(),
    "wait": lambda c: c.wait("s", 0.0),
    "finalize": lambda c: c.finalize("s", SessionOutcome()),
    "sessions": _all,
}


@asynccontextmanager
async def answering(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]], **more: Any
) -> AsyncIterator[GatewayClient]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    origin = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        async with GatewayClient(origin, "key", **{"deadline_s": 0.2, **more}) as client:
            yield client
    finally:
        await runner.cleanup()


async def _endless(request: web.Request) -> web.StreamResponse:
    answer = web.StreamResponse(status=request.app.get("status", 200))
    await answer.prepare(request)
    try:
        while True:
            await answer.write(b" " * MIB)
    except ConnectionError:
        return answer


@functools.cache
def _packed() -> bytes:
    """256 MiB of spaces, many of which a reader unpacks at once."""
    packer = zlib.compressobj(9, wbits=31)
    return b"".join(packer.compress(b" " * MIB) for _ in range(256)) + packer.flush()


async def _bomb(request: web.Request) -> web.StreamResponse:
    return web.Response(body=_packed(), headers={"Content-Encoding": "gzip"})


async def _said_endlessly(request: web.Request) -> web.StreamResponse:
    return web.json_response({"error": {"message": "m" * MIB, "param": None}}, status=418)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("handler", [_endless, _bomb, _said_endlessly])
async def test_no_answer_is_read_without_end(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    call: Callable[[GatewayClient], Awaitable[Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control_api, "PAGE_BYTES_MAX", 8 * MIB)
    async with answering(handler) as client:
        tracemalloc.start()
        try:
            with pytest.raises(SandgateError) as caught:
                await call(client)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 48 * MIB
    assert len(str(caught.value)) < 3_000, "and what it says is not put into a status at length"


TRAINERS: dict[str, Callable[[AsyncRolloutClient], Awaitable[Any]]] = {
    "session": lambda c: c.session("s"),
    "lease": lambda c: c.lease(),
    "finalize": lambda c: c.finalize("s"),
}


@pytest.mark.parametrize("call", TRAINERS.values(), ids=TRAINERS)
@pytest.mark.parametrize("handler", [_endless, _bomb, _said_endlessly])
async def test_a_trainer_reads_no_answer_without_end(
    handler: Callable[[web.Request], Awaitable[web.StreamResponse]],
    call: Callable[[AsyncRolloutClient], Awaitable[Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control_api, "ROWS_BYTES_MAX", 8 * MIB)
    async with answering(handler) as there, AsyncRolloutClient(there.origin, "key") as trainer:
        tracemalloc.start()
        try:
            with pytest.raises(SandgateError) as caught:
                await call(trainer)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 48 * MIB
    assert len(str(caught.value)) < 3_000


async def test_nor_does_one_without_an_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_api, "ROWS_BYTES_MAX", 8 * MIB)

    def ask(origin: str) -> None:
        with RolloutClient(origin, "key") as trainer:
            trainer.session("s")

    async with answering(_endless) as there:
        with pytest.raises(InvalidBody, match="more than 8388608 bytes"):
            await asyncio.to_thread(ask, there.origin)


async def test_a_trainer_gives_up_an_answer_that_drips(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_client, "BODY_S", 0.3)

    async def drip(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        with contextlib.suppress(ConnectionError):
            async for _ in paced():
                await answer.write(b" ")
        return answer

    async with answering(drip) as there:
        once = AsyncRolloutClient(there.origin, "key", retries=Retries(attempts=1))
        async with once as trainer:
            with pytest.raises(Unavailable, match="did not end within"):
                await trainer.trajectories("s")


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_no_redirect_is_followed(status: int, call: Callable[[GatewayClient], Awaitable[Any]]) -> None:
    reached: list[str] = []

    async def elsewhere(request: web.Request) -> web.StreamResponse:
        reached.append(request.path)
        return web.json_response({"sessions": [], "healthy": True, "ready": True})

    async with answering(elsewhere) as other:

        async def away(request: web.Request) -> web.StreamResponse:
            return web.Response(status=status, headers={"Location": other.origin + "/stolen"})

        async with answering(away) as client:
            with pytest.raises(InvalidBody, match="redirect"):
                await call(client)
    assert reached == []


def _pages(*cursors: Any) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    asked = iter(cursors)

    async def page(request: web.Request) -> web.StreamResponse:
        line = {"session_id": "s", "state": "open", "metadata": {"x": "y" * 1_000}}
        return web.json_response({"sessions": [line], "next": next(asked)})

    return page


ENDLESS = {
    "the same cursor again and again": ["a", "a"],
    "a cursor that goes back": ["b", "a"],
    "a cursor that is no text": [7],
    "a new cursor for ever": [f"{n:09}" for n in range(100)],
}


@pytest.mark.parametrize("cursors", ENDLESS.values(), ids=ENDLESS)
async def test_a_listing_without_end_is_given_up(cursors: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_client, "PAGES_MAX", 50)
    async with answering(_pages(*cursors)) as client:
        with pytest.raises(InvalidBody, match="does not end"):
            await _all(client)


async def test_what_an_operator_keeps_of_a_listing_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "KEPT_MAX", 20_000)
    async with answering(_pages(*[f"{n:09}" for n in range(100)])) as client:
        with pytest.raises(InvalidBody, match="sessions and more is refused"):
            await listing.all_sessions(client, "shop")


async def test_a_listing_that_is_slow_on_every_page_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_client, "LISTING_S", 0.0)
    async with answering(_pages("a", "b", None)) as client:
        with pytest.raises(InvalidBody, match="does not end"):
            await _all(client)


async def test_an_answer_that_drips_is_given_up() -> None:
    over = asyncio.Event()

    async def drip(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(json.dumps({"healthy": True})[:5].encode())
        await over.wait()
        return answer

    async with answering(drip, timeout_s=0.05, deadline_s=0.0) as client:
        with pytest.raises(Unavailable):
            await client.status()
        over.set()
