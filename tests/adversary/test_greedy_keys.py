"""One key holds so many connections and so many bytes, so long; whoever has another key does not notice."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import time
from typing import Any

import pytest

from sandgate.contract.errors import BadRequest, SandgateError
from sandgate.gateway.web import connections
from sandgate.gateway.web.agent_requests import parse_complete
from sandgate.gateway.web.connections import ConnectionTable, places
from tests.adversary.victim import Wires, head, status_of
from tests.support.gateway import Agent, Wire, eventually, gated, gateway, user
from tests.support.waiting import paced


def part(agent: Agent, size: int, of: int) -> bytes:
    """A model call of which so many bytes are sent."""
    return head("POST", "/v1/chat/completions", agent.handle["api_key"], content_length=str(of)) + b" " * size


async def test_a_body_that_drips_ends_at_its_deadline() -> None:
    async with gateway(limits={"body_s": 0.3}) as g, Wires(g.origin) as wires:
        agent = await g.session()
        reader, writer = await wires.open(part(agent, 1, 1_000_000))

        async def drip() -> None:
            async for _ in paced():
                writer.write(b" ")

        dripping = asyncio.ensure_future(drip())
        assert await status_of(reader) == 400
        dripping.cancel()
        await eventually(lambda: g.front.bodies.held == 0, "nothing is held any more")


LIMITS = {"body_bytes": 1_000, "buffered_bytes_per_key": 1_500, "buffered_bytes": 2_500}


async def test_bytes_are_bounded_for_each_key_and_for_all() -> None:
    async with gateway(["hello"] * 9, limits=LIMITS) as g:
        agents = [await g.session() for _ in range(3)]
        async with Wires(g.origin) as wires:
            await wires.open(part(agents[0], 900, 1_000))
            await eventually(lambda: g.front.bodies.held == 900, "the first part is here")
            assert await wires.status(part(agents[0], 900, 1_000)) == 429, "of the same key, beyond its share"
            await wires.open(part(agents[1], 900, 1_000))
            await eventually(lambda: g.front.bodies.held == 1_800, "another key's part is here")
            assert await wires.status(part(agents[2], 900, 1_000)) == 429, "beyond what all may hold"
            assert (await agents[2].post("hi")).status_code == 200, "a small one has room"
        await eventually(lambda: g.front.bodies.held == 0, "what was cut is held no more")
        assert g.front.bodies.of == {}
        assert (await agents[0].post("hi")).status_code == 200


async def test_an_agents_key_opens_no_large_body_but_a_model_calls() -> None:
    async with gateway() as g:
        agent = await g.session()
        reward = f"/v1/sessions/{agent.id}/reward"
        for path in ("/complete", "/v1/leases", reward, "/rl/set_reward", "/rl/end_session"):
            answer = await agent.http.post(g.origin + path, content=b"[" * 600_000)
            assert (path, answer.status_code) == (path, 413)


SHAPES = {
    "brackets that never close": "[" * 500_000,
    "objects that never close": '{"a":' * 100_000,
    "empty lists": '{"reward_info":{"a":[' + "[]," * 160_000 + "[]]}}",
    "empty objects": '{"reward_info":{"a":[' + "{}," * 160_000 + "{}]}}",
    "numbers": '{"reward_info":{"a":[' + "0," * 240_000 + "0]}}",
    "escapes": '{"reward_info":{"a":"' + "\\u0041" * 80_000 + '"}}',
    "the most that is kept": json.dumps({"reward_info": {"a": [0] * 21_000}}),
    "fields that nobody reads": '{"x":[' + "[]," * 160_000 + "[]]}",
}


@pytest.mark.parametrize("raw", SHAPES.values(), ids=SHAPES)
def test_no_complete_body_holds_the_loop_for_a_tenth_of_a_second(raw: str) -> None:
    assert len(raw) <= 512 * 1024
    best = 9.0
    for _ in range(3):
        began = time.thread_time()
        with contextlib.suppress(BadRequest):
            parse_complete(raw.encode())
        best = min(best, time.thread_time() - began)
    assert best < 0.1


# -- connections ----------------------------------------------------------------------------------------------------


async def test_idle_connections_of_a_key_are_as_many_as_it_may_have() -> None:
    async with gateway(["hello"] * 9, limits={"connections_per_key": 4}) as g:
        agent, other = await g.session(), await g.session()
        await other.post("hi")
        async with Wires(g.origin) as wires:
            for _ in range(12):
                assert await wires.status(head("GET", "/v1/models", agent.handle["api_key"])) == 200
            assert len(g.front.connections.of[agent.id]) == 4
            await eventually(lambda: len(g.connections) <= 4 + 2, "the older ones are cut")
            assert (await other.post("hi")).status_code == 200


async def test_busy_connections_of_a_key_are_as_many_as_it_may_have() -> None:
    reply, gate = gated("hello")
    async with gateway(lambda ids, number: reply, limits={"connections_per_key": 2}) as g:
        agent, other = await g.session(), await g.session()
        wires = [await Wire.chat(agent, agent.body(user(str(n)))) for n in range(2)]
        await eventually(lambda: g.core.turns.load.in_flight == 2, "both are being answered")
        late = await Wire.chat(agent, agent.body(user("late")))
        assert b" 429 " in await late.until(b"\r\n")
        await late.cut()
        asked = asyncio.ensure_future(other.post("hi"))
        await eventually(lambda: g.core.turns.load.in_flight == 3, "another key's is taken")
        gate.open.set()
        assert (await asked).status_code == 200
        for wire in wires:
            await wire.until(b"hello")
            await wire.cut()
        assert (await agent.post("again")).status_code == 200


async def test_probes_are_answered_when_every_place_is_taken_by_the_busy() -> None:
    reply, gate = gated("hello")
    async with gateway(lambda ids, number: reply, limits={"connections": 3}) as g:
        agents = [await g.session() for _ in range(3)]
        await g.admin.aclose()
        wires = [await Wire.chat(agent, agent.body(user("hi"))) for agent in agents]
        await eventually(lambda: g.core.turns.load.in_flight == 3, "all places are taken")
        async with Wires(g.origin) as strangers:
            for _ in range(2 * connections.SPARE):
                await strangers.open()
            assert await strangers.status(head("GET", "/healthz")) == 200
        late = await Wire.chat(agents[0], agents[0].body(user("late")))
        assert b" 429 " in await late.until(b"\r\n")
        await late.cut()
        gate.open.set()
        for wire in wires:
            await wire.until(b"hello")
            await wire.cut()
        assert (await agents[1].post("hi")).status_code == 200


class Someone:
    def __init__(self, *, busy: bool = False) -> None:
        self.is_busy, self.is_cut = busy, False

    def busy(self) -> bool:
        return self.is_busy

    def cut(self) -> None:
        self.is_cut = True


def test_whoever_shows_no_key_makes_room_first() -> None:
    full = ConnectionTable(most=connections.SPARE + 2, most_of_one=9)
    mine, busy = Someone(), Someone(busy=True)
    for one in (mine, busy):
        full.enter(one)
        full.show(one, "s", bounded=True)
    strangers = [Someone() for _ in range(connections.SPARE + 5)]
    for one in strangers:
        full.enter(one)
    assert [one.is_cut for one in strangers] == [True] * 5 + [False] * connections.SPARE
    assert not mine.is_cut


def test_who_has_a_key_makes_room_when_idle_and_never_when_busy() -> None:
    full = ConnectionTable(most=2, most_of_one=9)
    idle, busy, new, late = Someone(), Someone(busy=True), Someone(busy=True), Someone()
    for one in (busy, idle):
        full.enter(one)
        full.show(one, "s", bounded=False)
    full.enter(new)
    assert (idle.is_cut, busy.is_cut) == (True, False)
    full.show(new, "t", bounded=False)
    full.enter(late)
    with pytest.raises(SandgateError):
        full.show(late, "u", bounded=False)
    assert list(full.without_key) == [late]
    for one in (busy, idle, new, late):
        full.leave(one)
    assert (full.names, full.of, full.without_key) == ({}, {}, {})


FILES: dict[str, Any] = {
    "as many as are wanted": (65_536, 65_536, 16_384, 1_024, 16_384),
    "the limit is raised as far as it may be": (1_024, 4_096, 16_384, 1_024, 4_096 - 32 - 1_024 - 128),
    "few are shared with the engines": (256, 256, 16_384, 1_024, 96),
    "fewer are wanted": (1_024, 1_024, 10, 8, 10),
}


@pytest.mark.parametrize(("soft", "hard", "wanted", "generations", "made"), FILES.values(), ids=FILES)
def test_places_are_as_many_as_there_are_descriptors(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, wanted: int, generations: int, made: int
) -> None:
    limit = [soft, hard]
    monkeypatch.setattr(resource, "getrlimit", lambda which: tuple(limit))
    monkeypatch.setattr(resource, "setrlimit", lambda which, new: limit.__setitem__(slice(None), new))
    assert places(wanted, generations) == made
    assert limit[0] <= hard
