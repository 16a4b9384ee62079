"""What the simulation found, each as the shortest story that shows it."""

from __future__ import annotations

import asyncio
import json
import threading
from array import array
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import pytest

from sandgate.contract.errors import Gone, JournalUnavailable
from sandgate.gateway.conversation.messages import Message, SamplingParams, TextPart, TurnRequest
from sandgate.gateway.engine import pool, vllm
from sandgate.gateway.engine.api import Prompt, VersionSpan
from sandgate.gateway.journal.last_minute import UNSURE_S
from sandgate.gateway.journal.memory import MemoryDisk, MemoryStore
from sandgate.gateway.journal.records import Delivered, Record, Sealed
from sandgate.gateway.service.sessions import Sessions
from tests.gateway.journal.samples import turn
from tests.support.gateway import Latch, eventually, gateway, within


class Clock:
    """Unix seconds, by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_memory_folds_in_the_order_of_the_journal_whoever_wakes_first() -> None:
    """Seed 10: rows were told in one order before a restart and in another after it."""
    gates: list[Callable[[], Awaitable[None]]] = []

    async def gate() -> None:
        if gates:
            await gates.pop(0)()

    sessions = Sessions(store := MemoryStore(gate=gate), lambda: 0.0)
    session, _ = await sessions.open("s", {})
    first, second = Latch(), Latch()
    first.shut()
    second.shut()
    gates += [first, second]
    early = asyncio.ensure_future(sessions.record(session, turn("early")))
    await within(first.reached)
    late = asyncio.ensure_future(sessions.record(session, turn("late")))
    await within(second.reached)
    second.open()  # its commit takes the other one along; who waits for the first is woken later
    await eventually(lambda: store.transactions == 2, "both are durable")
    first.open()
    await asyncio.gather(early, late)
    assert [one.id for one in session.tree.turns] == ["early", "late"]
    again = Sessions(store, lambda: 0.0)
    again.replay()
    assert [one.id for one in again.get("s").tree.turns] == ["early", "late"]


async def test_a_failed_append_keeps_nobody_waiting() -> None:
    disk = MemoryDisk()
    sessions = Sessions(MemoryStore(disk), lambda: 0.0)
    session, _ = await sessions.open("s", {})
    disk.fail_next = 1
    with pytest.raises(JournalUnavailable):
        await sessions.record(session, turn("lost"))
    await sessions.record(session, turn("kept"))
    assert [one.id for one in session.tree.turns] == ["kept"]


async def test_doubt_about_a_delivery_outlives_a_second_kill() -> None:
    """Seed 18: killed before the note that a turn was told; killed again long after. The turn was in no trajectory."""
    disk, clock = MemoryDisk(), Clock()
    for life in range(3):
        store = MemoryStore(disk)
        sessions = Sessions(store, clock)
        sessions.replay()
        await sessions.keep_doubts()
        if life == 0:
            session, _ = await sessions.open("s", {})
            await sessions.record(session, msgspec.structs.replace(turn("told"), at=clock.now))
        else:
            assert sessions.get("s").unsure == {"told"}
            clock.now += 2 * UNSURE_S
            await sessions.open(f"other-{life}", {})
        store.crash()
    notes = [record for _, _, record in MemoryStore(disk).scan("s") if isinstance(record, Delivered)]
    assert [(note.turn, note.unsure) for note in notes] == [("told", True)], "once is enough"


class Forgetful(MemoryStore):
    """Refuses notes of deliveries: its disk is full just then."""

    async def append(self, session: str, *records: Record, sync: bool = True) -> None:
        if isinstance(records[0], Delivered) and not sync:
            raise JournalUnavailable("database or disk is full")
        await super().append(session, *records, sync=sync)


async def test_what_was_told_while_the_disk_was_bad_is_trained() -> None:
    """Seed 97: the note of a delivery was refused; nothing went on from that turn, so it was in no trajectory."""
    async with gateway(["told", "also told"], store=Forgetful()) as g:
        agent = await g.session()
        assert (await agent.ask("hi"))["content"] == "told"
        assert (await agent.ask("something else altogether"))["content"] == "also told"
        assert len(await g.finalize(agent)) == 2


async def test_what_a_bad_disk_did_not_retire_is_tried_again() -> None:
    """Seed 270: memory had forgotten a session that its journal then kept for ever."""
    disk, clock = MemoryDisk(), Clock()
    sessions = Sessions(MemoryStore(disk), clock)
    session, _ = await sessions.open("s", {})
    await sessions.record(session, Sealed(at=clock.now))
    record = sessions.book.lease("l", clock.now, ttl_s=60.0)
    await sessions.settle(record)
    await sessions.settle(sessions.book.ack("l", clock.now))
    clock.now += 10.0
    disk.fail_next = 1
    with pytest.raises(JournalUnavailable):
        await sessions.retire(1.0)
    assert "s" in sessions.live
    assert await sessions.retire(1.0) == 1
    assert not [row for row in disk.rows if row[1] == "s"]


async def test_a_call_cancelled_before_its_first_step_gives_back_what_it_reserved() -> None:
    """Seed 139: a session was aborted in the very moment in which a question arrived."""
    async with gateway() as g:
        await g.session()
        (session,) = g.core.sessions.live.values()
        question = Message("user", (TextPart("hi"),))
        call = g.core.turns.begin(session, TurnRequest(model="", messages=(question,)), retry=False)
        g.core.turns.registry.attach(call)
        await g.core.turns.registry.cancel(session)
        with pytest.raises(Gone):
            await asyncio.wait_for(call.done, timeout=5.0)
        g.core.turns.registry.detach(call)
        assert (g.core.turns.load.in_flight, session.in_flight, g.core.turns.registry.calls) == (0, 0, {})
        assert await g.core.turns.drain(0.1)


async def test_a_refusal_takes_no_thread() -> None:
    """Plain functions as error handlers run in a pool of threads: a hop for each refusal."""
    async with gateway() as g:
        before = set(threading.enumerate())
        answer = await g.admin.get("/v1/sessions/nobody")
        assert answer.status_code == 404
        assert (await g.admin.get("/v1/nowhere")).status_code == 404
        assert (await g.admin.post("/v1/leases", json={"max_groups": -1})).status_code == 400
        assert set(threading.enumerate()) <= before, "some of other tests may end meanwhile"


class Pausing:
    """A transport to an engine that is paused at first; meanwhile its weights are replaced. It reports no versions."""

    def __init__(self, update: Callable[[], None]) -> None:
        self.update, self.salts = update, list[str]()

    @asynccontextmanager
    async def post(self, url: str, body: bytes, *, request_id: str) -> AsyncIterator[Any]:
        self.salts.append(json.loads(body)["cache_salt"])
        first = len(self.salts) == 1
        status, said = (503, PAUSED_NOW) if first else (200, ANSWER)
        self.update()
        yield SimpleNamespace(status=status, retry_after=None, body=partial(asyncio.sleep, 0, said))

    async def aclose(self) -> None:
        """Nothing is open."""


PAUSED_NOW = b'{"error": {"message": "generation is paused"}}'
ANSWER = json.dumps(
    {
        "choices": [
            {
                "token_ids": [5],
                "logprobs": {"content": [{"token_id": 5, "logprob": -1.0}]},
                "finish_reason": "stop",
            }
        ]
    }
).encode()


async def test_what_is_sampled_after_a_pause_is_labelled_and_salted_with_the_new_weights() -> None:
    """Seed 22: the version was that of before the pause, and so was the prefix cache's salt: old keys and values under
    new weights."""
    version = 1

    def update() -> None:
        nonlocal version
        version = 2

    http = Pausing(update)
    with mock.patch.object(pool, "Transport", return_value=http):
        engine = vllm.VllmEngine(["http://engine"], version_now=lambda: version)
    prompt = Prompt(
        request_id="r", ids=array("i", [1]), sampling=SamplingParams(), max_tokens=1, stop_ids=(5,), version=1
    )
    sample = await engine.generate(prompt)
    assert http.salts == ["v1", "v2"]
    assert sample.versions == (VersionSpan(2, 0, 1),)
    await engine.aclose()
