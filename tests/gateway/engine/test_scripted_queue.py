"""A scripted engine's slots, its queue, and the prefix cache that it counts."""

from __future__ import annotations

import asyncio
from array import array
from collections.abc import Sequence

import pytest

from sandgate.gateway.engine import load
from sandgate.gateway.engine.scripted.prefix_cache import BLOCK, PrefixCache
from sandgate.gateway.engine.scripted.script import Ask, Gate, Player, Reply
from sandgate.gateway.engine.scripted.server import ScriptedServer
from sandgate.gateway.engine.transport import Transport
from sandgate.gateway.engine.vllm import VLLM
from tests.support.gateway import eventually, within


def ask(name: str, ids: Sequence[int] = (5,)) -> Ask:
    return Ask(request_id=name, ids=array("i", ids), max_tokens=9)


async def play(player: Player, name: str) -> str:
    """How it ended."""
    finish = ""
    async for step in player.play(ask(name)):
        finish = step.finish or finish
    return finish


async def test_what_finds_no_slot_waits_and_the_one_that_waits_longest_is_next() -> None:
    gates = [Gate() for _ in range(3)]
    player = Player([Reply([7, 8], gate=gate) for gate in gates], slots=1)
    turns = []
    for number in range(3):
        turns.append(asyncio.ensure_future(play(player, f"turn-{number}")))
        await eventually(lambda: len(player.names()) == len(turns), "it came")
    for number, gate in enumerate(gates):
        await within(gate.reached)
        assert (player.running, player.waiting) == (1, 2 - number)
        assert not any(later.reached.is_set() for later in gates[number + 1 :])
        gate.open.set()
        assert await turns[number] == "stop"
    assert (player.running, player.waiting) == (0, 0)


@pytest.mark.parametrize("leaves", ["aborted", "its client is gone"])
async def test_one_that_leaves_the_queue_takes_no_slot(leaves: str) -> None:
    gate = Gate()
    player = Player([Reply([7], gate=gate), [8], [9]], slots=1)
    first = asyncio.ensure_future(play(player, "first"))
    await within(gate.reached)
    second = asyncio.ensure_future(play(player, "second"))
    await eventually(lambda: player.waiting == 1, "it waits")
    if leaves == "aborted":
        assert player.abort("second")
        assert await second == "abort"
    else:
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
    assert (player.running, player.waiting) == (1, 0)
    third = asyncio.ensure_future(play(player, "third"))
    await eventually(lambda: player.waiting == 1, "the slot is still the first one's")
    gate.open.set()
    assert [await first, await third] == ["stop", "stop"]


async def test_metrics_say_what_waits_and_what_was_found() -> None:
    gate = Gate()
    player = Player([Reply([7], gate=gate)], slots=1, cache_blocks=100)
    http = Transport()
    async with ScriptedServer(player) as server:
        held = [asyncio.ensure_future(play(player, f"turn-{number}")) for number in range(3)]
        await within(gate.reached)
        assert await load.load_of(http, server.url, VLLM.gauges) == 3.0
        page = (await http.ask("GET", f"{server.url}/metrics", timeout_s=9.0)).body.decode()
        assert 'vllm:num_requests_waiting{engine="0",model_name="scripted"} 2.0' in page
        assert 'vllm:prefix_cache_queries_total{engine="0",model_name="scripted"} 1.0' in page
        gate.open.set()
        await asyncio.gather(*held)
    await http.aclose()


def prompt(*words: int) -> array[int]:
    """A block for each word."""
    return array("i", [word for word in words for _ in range(BLOCK)])


ASKED: dict[str, tuple[int, list[array[int]], list[int]]] = {
    "the first finds nothing": (9, [prompt(1, 2)], [0]),
    "a longer one finds the whole of the shorter": (9, [prompt(1, 2), prompt(1, 2, 3)], [0, 32]),
    "the last token is always computed": (9, [prompt(1, 2), prompt(1, 2)], [0, 16]),
    "a part of a block is not found": (9, [prompt(1, 2)[:31], prompt(1, 2, 3)], [0, 16]),
    "the same block behind another one is another": (9, [prompt(1, 2), prompt(3, 2, 4)], [0, 0]),
    "what is left unused goes first": (2, [prompt(1), prompt(2), prompt(3), prompt(1, 9)], [0, 0, 0, 0]),
    "what is used stays": (
        2,
        [prompt(1, 9)[:17], prompt(2), prompt(1, 9)[:17], prompt(3), prompt(1, 4)],
        [0, 0, 16, 0, 16],
    ),
    "a head outlives its tail": (2, [prompt(1, 2), prompt(3), prompt(1, 2, 4)], [0, 0, 16]),
    "without a cache nothing is found": (0, [prompt(1), prompt(1, 2)], [0, 0]),
}


@pytest.mark.parametrize(("blocks", "prompts", "found"), ASKED.values(), ids=ASKED)
def test_what_a_prefix_cache_finds(blocks: int, prompts: list[array[int]], found: list[int]) -> None:
    cache = PrefixCache(blocks)
    assert [cache.ask(one) for one in prompts] == found
    assert (cache.hits, cache.queries) == (sum(found), sum(map(len, prompts)) if blocks else 0)
    cache.clear()
    assert cache.ask(prompts[0]) == 0


async def test_what_was_sampled_is_found_by_the_next_turn() -> None:
    player = Player([list(range(100, 100 + BLOCK))], cache_blocks=100)
    await play(player, "short")  # no whole block: nothing is kept
    sampled = prompt(1) + array("i", range(100, 100 + BLOCK))
    async for _ in player.play(Ask(request_id="first", ids=prompt(1), max_tokens=BLOCK)):
        pass
    async for _ in player.play(Ask(request_id="next", ids=sampled + prompt(2), max_tokens=1)):
        pass
    assert player.prefixes.hits == 2 * BLOCK
    player.restart()
    async for _ in player.play(Ask(request_id="after", ids=sampled + prompt(2), max_tokens=1)):
        pass
    assert player.prefixes.hits == 2 * BLOCK, "a restarted engine has computed nothing"
