"""Whoever has no key is heard for a head and no longer: no body is read for him, and no place is held."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from sandgate.gateway.web import header_limits
from tests.adversary.victim import MIB, PATIENCE_S, Wires, head, victim
from tests.support.gateway import WITHIN_S, admin_key, client, eventually, gateway
from tests.support.waiting import paced

USER = {"role": "user", "content": "hi"}
DOORS = {
    "a model call": "/v1/chat/completions",
    "a model call of a named session": "/sessions/s0/v1/chat/completions",
    "the agent's signal": "/sessions/s0/complete",
    "sessions": "/v1/sessions",
    "leases": "/v1/leases",
    "tasks": "/v1/tasks",
    "a reward": "/v1/sessions/s0/reward",
    "AReaL's sessions": "/rl/start_session",
    "AReaL's rewards": "/rl/set_reward",
    "a path that is none": "/nothing",
}
KEYS = {"no key": "", "a key of somebody else's making": admin_key()[:-8] + "AAAAAAAA"}


@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
@pytest.mark.parametrize("path", DOORS.values(), ids=DOORS)
async def test_the_answer_comes_before_the_body(path: str, key: str) -> None:
    """Six megabytes are announced, one byte is sent: whoever waited for the rest would wait for ever."""
    async with gateway() as g:
        await g.session(session_id="s0")
        async with Wires(g.origin) as wires:
            status = await wires.status(head("POST", path, key, content_length=str(6 * MIB)) + b"[")
        assert status in (401, 403, 404)


async def test_a_body_that_goes_on_after_its_refusal_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(header_limits, "REST_S", 0.1)
    async with gateway() as g, Wires(g.origin) as wires:
        sent = head("POST", "/v1/sessions", content_length=str(4 * MIB))
        made = [await wires.open(sent) for _ in range(20)]

        async def drip(writer: asyncio.StreamWriter) -> None:
            async for _ in paced():
                if writer.is_closing():
                    return
                writer.write(b"[")

        drips = [asyncio.ensure_future(drip(writer)) for _, writer in made]
        for reader, _ in made:
            async with asyncio.timeout(WITHIN_S):
                with contextlib.suppress(ConnectionError):
                    await reader.read()
        await eventually(lambda: not g.connections, "none is held")
        for one in drips:
            one.cancel()


async def test_who_sends_all_of_a_body_can_read_why_it_was_refused() -> None:
    async with gateway() as g, client(g.origin) as http:
        answer = await http.post("/v1/sessions", content=b" " * 4 * MIB)
        assert answer.status_code == 401
        assert (await http.get("/healthz")).status_code == 200, "on the same connection"


async def test_a_crowd_without_keys_neither_holds_memory_nor_hides_the_probes(tmp_path: Path) -> None:
    """Against a process with 256 places: 600 connections, each with part of a body of 4 MiB that never ends."""
    async with victim(tmp_path, limits={"connections": 256}) as v, Wires(v.origin) as wires:
        agent = await v.session()
        v.forget_peak()
        for _ in range(600):
            await wires.open(head("POST", "/v1/sessions", content_length=str(4 * MIB)) + b"[" * 65_536)
        async with client(v.origin) as http:
            assert (await http.get("/healthz", timeout=PATIENCE_S)).status_code == 200
            assert (await http.get("/readyz", timeout=PATIENCE_S)).status_code == 200
        answer = await agent.post("v1/chat/completions", json={"model": "shop", "messages": [USER]})
        assert answer.status_code == 200, answer.text
        assert v.connections() <= 256 + 32
        assert v.grown_mb() < 64


async def test_a_head_without_end_holds_no_place_that_others_need(tmp_path: Path) -> None:
    async with victim(tmp_path, limits={"connections": 64}) as v, Wires(v.origin) as wires:
        for _ in range(300):
            await wires.open(b"POST /v1/chat/completions HTTP/1.1\r\nx-slow: ")
        agent = await v.session()
        answer = await agent.post("v1/chat/completions", json={"model": "shop", "messages": [USER]})
        assert answer.status_code == 200, answer.text
        assert v.connections() <= 64 + 32
