"""What a session leaves behind in the gateway's memory is bounded, whatever it asks for."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import httpx

from sandgate.gateway.conversation import message_equality
from sandgate.gateway.conversation.byte_cache import ByteCache
from sandgate.gateway.conversation.messages import Tool
from sandgate.gateway.journal.top_logprobs import joined, packed, parted, unpacked
from sandgate.gateway.protocols import openai_tools
from sandgate.gateway.tokens import template_values
from tests.adversary.victim import PATIENCE_S, chat, victim
from tests.support.gateway import codec, gateway, user

LONG = "word " * 3_000
TURNS = 10
WARM = 20
"""Until then the allocator grows by a megabyte a turn, whatever is kept; fifty turns more add nothing."""


async def test_alternatives_are_not_kept_once_they_are_told(tmp_path: Path) -> None:
    """Twenty of each of 3,000 tokens."""
    async with victim(tmp_path, lambda ids, number: LONG) as v:
        agent = await v.session()

        async def ask(number: int) -> int:
            asked = [user(f"{number}?")]
            body = chat(logprobs=True, top_logprobs=20, messages=asked, stream=bool(number % 2))
            answer = await agent.post("v1/chat/completions", content=body)
            assert answer.status_code == 200, answer.text
            assert answer.content.count(b'"logprob"') > 20 * 3_000
            return v.held_kb()

        for number in range(WARM):
            await ask(number)
        before = after = v.held_kb()
        for number in range(WARM, WARM + TURNS):
            after = await ask(number)
        assert after - before < TURNS * 1_500


async def test_a_retry_is_told_the_same_alternatives_before_and_after_it_was_told() -> None:
    async with gateway(["one", "two"]) as g:
        agent = await g.session()
        for stream in (False, True):
            first = await agent.post("hi", logprobs=True, top_logprobs=3, stream=stream)
            assert all(turn.top == () for turn in g.core.sessions.get(agent.id).tree.turns)
            again = {"x-stainless-retry-count": "1"}
            second = await agent.post("hi", logprobs=True, top_logprobs=3, stream=stream, headers=again)
            assert second.content == first.content
            assert b"top_logprobs" in first.content
        assert g.generations == 2
        assert (g.core.turns.load.in_flight, g.core.turns.registry.calls) == (0, {})


def test_alternatives_are_packed_exactly() -> None:
    tops = [((7, -0.1), (2**40, -1e-300)), (), ((-1, -float("inf")),)]
    raw = joined([packed(top) for top in tops])
    assert [unpacked(top) for top in parted(raw)] == tops
    assert parted(joined([])) == ()


def tools(number: int, size: int) -> list[dict[str, object]]:
    """Of a list that differs from all others; empty objects take most memory for their bytes."""
    schema = {"type": "object", "properties": {f"n{number}": {"enum": [[]] * (size // 3)}}}
    return [{"type": "function", "function": {"name": "f", "parameters": schema}}]


async def test_a_long_list_of_tools_is_kept_nowhere() -> None:
    async with gateway(lambda ids, number: "done") as g:
        for number in range(3):
            agent = await g.session()  # each wastes as much as a session may
            agent.http.timeout = httpx.Timeout(PATIENCE_S)
            answer = await agent.post(f"{number}?", tools=tools(number, 200_000))
            assert answer.status_code in (200, 400), answer.text
        gc.collect()
        kept = [one for one in gc.get_objects() if type(one) is Tool and "n2" in str(one.schema)[:100]]
        assert kept == []


async def test_every_cache_that_clients_fill_has_a_bound_in_bytes() -> None:
    async with gateway(lambda ids, number: "done") as g:
        for number in range(30):
            agent = await g.session()  # each wastes as much as a session may
            agent.http.timeout = httpx.Timeout(PATIENCE_S)
            answer = await agent.post(f"{number}?", tools=tools(number, 100_000))
            assert answer.status_code in (200, 400), answer.text
        caches: list[ByteCache[Any, Any]] = [
            template_values._KEPT,
            openai_tools._CACHED,
            message_equality._TOOLS_KEYS,
            codec().prover._bases,
        ]
        for cache in caches:
            assert cache.bytes <= cache.bytes_max
