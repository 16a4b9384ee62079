"""Gateways in this process (the real app over ASGI, the real journal records) on a clock that tests move, and trainers
that lease from them."""

from __future__ import annotations

import asyncio
import tempfile
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx

from sandgate.gateway import app
from sandgate.gateway.client import Retries
from sandgate.gateway.journal.memory import MemoryDisk, MemoryStore
from sandgate.gateway.service.gateway_service import GatewayService
from sandgate.trainer.client.fleet import AsyncFleet
from sandgate.trainer.client.rollout_client import AsyncRolloutClient
from tests.support.gateway import admin_key, codec, config_in, engine

JOB = "shop-job"


class Clock:
    """Unix seconds of the gateways, and monotonic ones of the trainers."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


class Site(httpx.AsyncBaseTransport):
    """One gateway: its disk outlives it. While it is down, or cut off, connections are refused."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.disk = clock, MemoryDisk()
        self.core: GatewayService | None = None
        self.cut_off = False
        self.in_flight = 0
        self.lose: list[str] = []
        """Paths of which the next answer is lost on the way."""
        self.refuse: list[int] = []
        """Statuses that somebody between answers the next requests with."""
        self.seen: list[str] = []
        """Paths that were asked for, in order."""
        self.slow: asyncio.Event | None = None
        """Answers are held back until it is set."""
        self._stack = AsyncExitStack()
        self._door: httpx.ASGITransport | None = None

    async def start(self) -> None:
        stack = AsyncExitStack()
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        store = await MemoryStore.open(self.disk)
        stack.push_async_callback(store.aclose)
        sampler = engine(lambda ids, number: f"said {number}")
        stack.push_async_callback(sampler.aclose)
        config = config_in(Path(folder))
        running = await stack.enter_async_context(
            app.gateway(
                config,
                origin="http://g",
                engine=sampler,
                store=store,
                codec=codec(),
                now=self.clock,
                steady=self.clock,
            )
        )
        self._stack, self.core = stack, running.core
        self._door = httpx.ASGITransport(running.app)

    async def stop(self) -> None:
        """As by a kill: what was not written is gone."""
        self.core = self._door = None
        await self._stack.aclose()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self._door is None or self.cut_off:
            raise httpx.ConnectError("connection refused", request=request)
        self.in_flight += 1
        self.seen.append(request.url.path)
        if self.refuse:
            self.in_flight -= 1
            return httpx.Response(self.refuse.pop(0), request=request, text="not now")
        try:
            answer = await self._door.handle_async_request(request)
        finally:
            self.in_flight -= 1
        if self.slow is not None:
            await self.slow.wait()
        if request.url.path in self.lose:
            self.lose.remove(request.url.path)
            raise httpx.ReadError("connection reset", request=request)
        return answer

    def client(self) -> AsyncRolloutClient:
        return AsyncRolloutClient("http://g", admin_key(), transport=self, retries=Retries(attempts=1))


class World:
    """Some gateways, each behind a client with an admin key."""

    def __init__(self, gateways: int = 2) -> None:
        self.clock = Clock()
        self.sites = {f"g{number}": Site(self.clock) for number in range(gateways)}
        self.admins: dict[str, AsyncRolloutClient] = {}
        self.clients: list[AsyncRolloutClient] = []
        self.version = 0

    async def __aenter__(self) -> World:
        for name, site in self.sites.items():
            await site.start()
            self.admins[name] = self._client(site)
        return self

    async def __aexit__(self, *_: object) -> None:
        for client in self.clients:
            await client.aclose()
        for site in self.sites.values():
            if site.core is not None:
                await site.stop()

    def _client(self, site: Site) -> AsyncRolloutClient:
        self.clients.append(site.client())
        return self.clients[-1]

    def fleet(self) -> AsyncFleet:
        """A trainer's view of all gateways."""
        return self.fleet_of(*self.sites)

    def fleet_of(self, *names: str) -> AsyncFleet:
        """A trainer's view of some gateways."""
        clients = {name: self._client(self.sites[name]) for name in names}
        return AsyncFleet(clients, job=JOB, away_s=0.0, clock=self.clock)

    async def roll(self, gateway: str, uid: str, size: int = 2, turns: int = 1) -> tuple[str, ...]:
        """A whole group, ready to be leased: its sessions."""
        admin = self.admins[gateway]
        names = []
        for index in range(size):
            handle = await admin.create_session(
                session_id=f"{uid}-{index}", uid=uid, job=JOB, sample_index=index, group_size=size
            )
            await self.say(gateway, handle.session_id, turns)
            await admin.finalize(handle.session_id, reward=1.0, trajectories=False)
            names.append(handle.session_id)
        return tuple(names)

    async def say(self, gateway: str, session: str, turns: int = 1) -> None:
        """Turns of one session's agent."""
        messages: list[Any] = [{"role": "user", "content": f"hi {session}"}]
        bearer = {"authorization": f"Bearer {admin_key()}"}
        async with httpx.AsyncClient(transport=self.sites[gateway], base_url="http://g") as http:
            for _ in range(turns):
                answer = await http.post(
                    f"/sessions/{session}/v1/chat/completions",
                    json={"model": "shop", "messages": messages},
                    headers=bearer,
                )
                assert answer.status_code == 200, answer.text
                messages += [answer.json()["choices"][0]["message"], {"role": "user", "content": "and"}]

    async def restart(self, gateway: str) -> None:
        """Killed and started again on its disk."""
        site = self.sites[gateway]
        if site.core is not None:
            await site.stop()
        await site.start()

    async def settle(self) -> None:
        """Let what goes on in the background go on until it waits for time to pass, or for somebody who asks."""
        still = 0
        while still < 20:
            await asyncio.sleep(0)
            still = 0 if any(site.in_flight for site in self.sites.values()) else still + 1
