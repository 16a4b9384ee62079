"""A journal that cannot write: turns are refused with a time to come back, nothing durable is lost, and it heals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import openai
import pytest

from sandgate.gateway.engine.scripted.script import Fault, Reply
from sandgate.gateway.journal.memory import MemoryDisk, MemoryStore
from sandgate.gateway.journal.sqlite import SqliteStore
from tests.gateway.journal.disks import small_disk
from tests.support.gateway import Running, Wire, events, eventually, gated, gateway, said, within

FULL = "database or disk is full"


@pytest.fixture
def disk() -> MemoryDisk:
    return MemoryDisk()


@pytest.fixture
async def g(disk: MemoryDisk) -> Any:
    async with gateway(lambda ids, number: f"answer {number}", store=MemoryStore(disk)) as running:
        yield running


async def test_a_turn_that_cannot_be_made_durable_is_503_in_openais_words(
    g: Running, disk: MemoryDisk
) -> None:
    agent = await g.session()
    await agent.ask("before")
    disk.failure = FULL
    with pytest.raises(openai.InternalServerError) as caught:
        await agent.openai().chat.completions.create(
            model="shop", messages=[{"role": "user", "content": "hi"}]
        )
    assert caught.value.status_code == 503
    assert caught.value.type == "server_error"
    assert int(caught.value.response.headers["retry-after"]) >= 1
    assert caught.value.response.headers["x-sandgate-reason"] == "JournalUnavailable"
    assert len(await g.tree(agent)) == 1, "what was committed is there"
    assert g.core.turns.load.in_flight == 0


async def test_who_was_refused_for_it_is_counted_until_its_next_turn(g: Running, disk: MemoryDisk) -> None:
    """An agent that dies of it has not failed; one that goes on has got over it."""
    agent, other = await g.session(), await g.session()

    async def failing(who: Any) -> tuple[int, int, str]:
        said = (await g.admin.get(f"/v1/sessions/{who.id}")).json()
        return said["engine_errors"], said["engine_failing"], said["engine_reason"]

    disk.failure = FULL
    await agent.post("the first to be told", stream=True)
    await agent.post("known to be down by now")
    assert (await agent.http.post("complete", json={})).status_code == 503
    assert await failing(agent) == (3, 3, "JournalUnavailable")
    assert await failing(other) == (0, 0, "")
    disk.failure = ""
    await agent.ask("again")
    assert await failing(agent) == (3, 0, "JournalUnavailable")


@pytest.mark.parametrize("stream", [True, False])
async def test_an_engine_that_fails_in_the_middle_of_a_turn_is_counted(stream: bool) -> None:
    """Also where the stream's beginning is kept as a turn: an agent that dies of it has not failed."""
    failing = Reply("one two three four", fault=Fault("sentinel", after=2))
    async with gateway([failing, "done"]) as g:
        agent = await g.session()
        await agent.post("go", stream=stream)
        said = (await g.admin.get(f"/v1/sessions/{agent.id}")).json()
        assert (said["engine_errors"], said["engine_failing"], said["engine_reason"]) == (
            1,
            1,
            "EngineFailed",
        )
        await agent.ask("again")
        assert (await g.admin.get(f"/v1/sessions/{agent.id}")).json()["engine_failing"] == 0


async def test_a_cut_turn_that_cannot_be_made_durable_is_counted() -> None:
    """Its client has seen tokens that no record has: the session says so."""
    disk, (reply, gate) = MemoryDisk(), gated("one two three four", at=2)
    async with gateway([reply], store=MemoryStore(disk), limits={"linger_s": 0.0}) as g:
        agent = await g.session()
        wire = await Wire.chat(agent, agent.body("hi", stream=True))
        await within(gate.reached)
        await wire.until(b"one")
        disk.failure = FULL
        await wire.cut()
        await eventually(lambda: not g.core.turns.registry.calls, "the call is over")
        said = (await g.admin.get(f"/v1/sessions/{agent.id}")).json()
        assert (said["engine_errors"], said["engine_reason"]) == (1, "JournalUnavailable")


async def test_health_turns_red_and_green_again(g: Running, disk: MemoryDisk) -> None:
    agent = await g.session()
    assert (await g.admin.get("/healthz")).status_code == 200
    disk.failure = FULL
    await agent.post("hi")
    red = await g.admin.get("/healthz")
    assert (red.status_code, red.json()) == (503, {"healthy": False, "detail": FULL})
    assert (await g.admin.get("/readyz")).status_code == 503
    assert b"sandgate_journal_healthy 0.0" in (await g.admin.get("/metrics")).content
    disk.failure = ""
    assert (await g.admin.get("/healthz")).status_code == 200
    assert (await agent.post("hi")).status_code == 200
    assert len(await g.tree(agent)) == 1


@pytest.mark.parametrize("stream", [False, True], ids=["json", "sse"])
async def test_a_journal_known_to_be_down_is_refused_before_the_engine_is_asked(
    g: Running, disk: MemoryDisk, stream: bool
) -> None:
    agent = await g.session()
    disk.failure = FULL
    await agent.post("hi")
    asked = g.generations
    answer = await agent.post("hi", stream=stream)
    assert answer.status_code == 503, "a status, for a stream too"
    assert int(answer.headers["retry-after"]) >= 1
    assert g.generations == asked


async def test_a_stream_whose_commit_fails_ends_with_an_error_not_with_an_end(
    g: Running, disk: MemoryDisk
) -> None:
    agent = await g.session()
    disk.failure = FULL
    answer = await agent.post("hi", stream=True)
    last = events(answer.content)[-1]
    assert last["error"]["type"] == "server_error"
    assert b'"finish_reason":"stop"' not in answer.content
    assert said(answer.content) == "answer 0"
    assert await g.tree(agent) == []
    disk.failure = ""
    again = await agent.post("hi", stream=True)
    assert b'"finish_reason":"stop"' in again.content
    assert len(await g.tree(agent)) == 1


async def test_the_sdk_comes_back_by_itself_once_the_journal_heals(g: Running, disk: MemoryDisk) -> None:
    agent = await g.session()
    disk.fail_next = 1
    sdk = agent.openai(max_retries=2)
    sdk._calculate_retry_timeout = lambda *_: 0.0  # type: ignore[method-assign]  # not to wait
    answer = await sdk.chat.completions.create(model="shop", messages=[{"role": "user", "content": "hi"}])
    assert answer.choices[0].message.content
    assert len(await g.tree(agent)) == 1


async def test_a_session_that_cannot_be_made_durable_does_not_exist(g: Running, disk: MemoryDisk) -> None:
    disk.failure = FULL
    answer = await g.admin.post("/v1/sessions", json={"session_id": "s1"})
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) >= 1
    assert (await g.admin.get("/v1/sessions/s1")).status_code == 404
    disk.failure = ""
    assert (await g.admin.post("/v1/sessions", json={"session_id": "s1"})).status_code == 201


@pytest.mark.parametrize("end", ["complete", "finalize", "abort", "reward"])
async def test_an_end_that_cannot_be_made_durable_did_not_happen(
    g: Running, disk: MemoryDisk, end: str
) -> None:
    agent = await g.session()
    await agent.ask("hi")
    disk.failure = FULL
    url = f"/v1/sessions/{agent.id}/{end}"
    body = {"reward": 1.0} if end == "reward" else {}
    assert (await g.admin.post(url, json=body)).status_code == 503
    seen = (await g.admin.get(f"/v1/sessions/{agent.id}")).json()
    assert (seen["state"], seen["reward"]) == ("open", None)
    disk.failure = ""
    assert (await agent.post("more")).status_code == 200
    assert (await g.admin.post(url, json=body)).status_code == 200


async def test_a_lease_that_cannot_be_made_durable_is_not_given(g: Running, disk: MemoryDisk) -> None:
    agent = await g.session(uid="q1")
    await agent.ask("hi")
    await g.finalize(agent)
    disk.failure = FULL
    assert (await g.admin.post("/v1/leases", json={})).status_code == 503
    disk.failure = ""
    lease = (await g.admin.post("/v1/leases", json={})).json()
    assert lease["sessions"] == [agent.id]
    disk.failure = FULL
    assert (await g.admin.post(f"/v1/leases/{lease['lease_id']}/ack")).status_code == 503
    disk.failure = ""
    assert (await g.admin.post(f"/v1/leases/{lease['lease_id']}/ack")).status_code == 200


async def test_a_policy_version_that_cannot_be_made_durable_is_not_set(g: Running, disk: MemoryDisk) -> None:
    disk.failure = FULL
    assert (await g.admin.put("/v1/policy-version", json={"version": 5})).status_code == 503
    assert (await g.admin.get("/v1/status")).json()["policy_version"] == 0


async def test_a_disk_that_is_really_full(tmp_path: Path) -> None:
    """SQLite on a tmpfs of 1 MiB: it fills, refuses, loses nothing, and heals when there is room again."""
    clock = [0.0]
    with small_disk(tmp_path / "disk") as folder:
        store = await SqliteStore.open(folder / "journal.sqlite", now=lambda: clock[0])
        long = "kiwi " * 900
        async with store, gateway(lambda ids, number: long, store=store) as g:
            agent = await g.session()
            told = [(await agent.post("first")).headers["x-sandgate-turn"]]
            ballast = folder / "ballast"
            with ballast.open("wb", buffering=0) as file:
                while _wrote(file):
                    pass
            codes, answer = [], None
            for number in range(40):
                answer = await agent.post(f"ask {number}")
                codes.append(answer.status_code)
                if answer.status_code != 200:
                    break
                told.append(answer.headers["x-sandgate-turn"])
            assert answer is not None
            assert codes[-1] == 503
            assert int(answer.headers["retry-after"]) >= 1
            assert (await g.admin.get("/healthz")).status_code == 503
            assert [turn["turn"] for turn in await g.tree(agent)] == told
            ballast.unlink()
            clock[0] += 2.0
            await eventually(lambda: store.status().healthy, "a probe finds that there is room again")
            last = await agent.post("last")
            assert last.status_code == 200
            told.append(last.headers["x-sandgate-turn"])
            handle = agent.handle
        async with (
            await SqliteStore.open(folder / "journal.sqlite") as again,
            gateway(store=again) as g,
        ):
            assert [turn["turn"] for turn in await g.tree(g.agent(handle))] == told


def _wrote(file: Any) -> bool:
    try:
        return bool(file.write(b"\0" * 4096))
    except OSError:
        return False
