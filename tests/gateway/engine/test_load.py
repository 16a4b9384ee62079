"""What engines have to do in all: read of their gauges, and told to the routing table."""

from __future__ import annotations

import asyncio
import contextlib
from array import array
from collections.abc import AsyncIterator

import pytest

from sandgate.gateway.conversation.messages import SamplingParams
from sandgate.gateway.engine import load
from sandgate.gateway.engine.api import Prompt
from sandgate.gateway.engine.factory import ENGINES
from sandgate.gateway.engine.routing import ReplicaTable
from sandgate.gateway.engine.scripted.script import Player
from sandgate.gateway.engine.scripted.server import ScriptedServer
from sandgate.gateway.engine.transport import Transport
from sandgate.gateway.engine.vllm import VLLM, VllmEngine
from tests.support.gateway import eventually

PAGES: dict[str, tuple[bytes, float | None]] = {
    "running and waiting are added": (
        b'# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running{engine="0",model_name="m"} 3.0\n'
        b'# TYPE vllm:num_requests_waiting gauge\nvllm:num_requests_waiting{engine="0",model_name="m"} 2.0\n',
        5.0,
    ),
    "data-parallel ranks are added": (
        b'vllm:num_requests_running{engine="0"} 3.0\nvllm:num_requests_running{engine="1"} 4.0\n',
        7.0,
    ),
    "gauges of a longer name are others": (b'vllm:num_requests_waiting_by_reason{reason="x"} 9.0\n', None),
    "without labels": (b"vllm:num_requests_running 1e1\n", 10.0),
    "a label with a brace": (b'vllm:num_requests_running{model_name="a}b"} 2.0\n', 2.0),
    "an idle engine": (b'vllm:num_requests_running{engine="0"} 0.0\n', 0.0),
    "an engine that does not say": (b"process_cpu_seconds_total 1.0\n", None),
    "an empty page": (b"", None),
}


@pytest.mark.parametrize(("page", "want"), PAGES.values(), ids=PAGES)
def test_load_in(page: bytes, want: float | None) -> None:
    assert load.load_in(page, VLLM.gauges) == want


def test_many_gateways_read_seldom() -> None:
    assert [load.every_s(peers) for peers in (1, 8, 64)] == [2.0, 2.0, 16.0]


@pytest.fixture
async def http() -> AsyncIterator[Transport]:
    http = Transport()
    yield http
    await http.aclose()


def prompt(name: str) -> Prompt:
    return Prompt(request_id=name, ids=array("i", [5]), sampling=SamplingParams(), max_tokens=9, session=name)


async def test_a_session_goes_where_nobody_else_samples(http: Transport) -> None:
    """Another process keeps the first engine busy."""
    busy, idle = Player([[11, 12]]), Player([[11, 12]])
    async with ScriptedServer(busy) as first, ScriptedServer(idle) as second:
        other = await VllmEngine.connect([first.url])
        mine = await VllmEngine.connect([first.url, second.url])
        busy.pause("keep")
        held = [asyncio.ensure_future(other.generate(prompt(f"other-{number}"))) for number in range(3)]
        await eventually(lambda: busy.running == 3, "the other's are running")
        watching = asyncio.ensure_future(load.watch(http, mine.table, VLLM.gauges, every_s=0.01))
        await eventually(lambda: mine.table.replicas[first.url].others == 3, "it was told")
        assert (await mine.generate(prompt("mine"))).engine == second.url
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
        busy.resume()
        await asyncio.gather(*held)
        await mine.aclose()
        await other.aclose()


async def test_an_engine_that_is_gone_says_nothing(http: Transport) -> None:
    async with ScriptedServer(Player([[11]])) as server:
        url = server.url
        assert await load.load_of(http, url, VLLM.gauges) == 0.0
    assert await load.load_of(http, url, VLLM.gauges) is None


def test_every_kind_of_engine_names_its_gauges() -> None:
    assert all(engine.dialect.gauges for engine in ENGINES.values())
    assert ReplicaTable.of(()).reserve("g") is None
