"""Pauses hold turns, versions label them, and what is too much is refused with a time to come back."""

from __future__ import annotations

import asyncio

import openai
import pytest

from sandgate.contract.errors import Draining
from sandgate.gateway.config import Limits
from sandgate.gateway.journal.memory import MemoryDisk, MemoryStore
from sandgate.gateway.service.admission import Admission
from tests.support.gateway import Latch, Wire, eventually, gated, gateway, rest, said, within


async def test_every_token_carries_the_policy_version_it_was_sampled_by() -> None:
    async with gateway(lambda ids, number: "kiwi") as g:
        agent = await g.session()
        first = await agent.post("hi")
        assert (await g.admin.put("/v1/policy-version", json={"version": 7})).json()["policy_version"] == 7
        await agent.post("hi", first.json()["choices"][0]["message"], "more")
        (row,) = await g.finalize(agent)
        turns = await g.tree(agent)
        assert [turn["versions"] for turn in turns] == [
            [[0, 0, turns[0]["sampled_tokens"]]],
            [[7, 0, turns[1]["sampled_tokens"]]],
        ]
        for version, mask in zip(row["versions"], row["loss_mask"], strict=True):
            assert version in ((0, 7) if mask else (-1,))
        assert row["versions"][0] == 0
        assert row["versions"][-1] == 7


@pytest.mark.parametrize("version", [-1, 2**31, "new", None, 1.5])
async def test_a_policy_version_is_a_non_negative_integer(version: object) -> None:
    async with gateway() as g:
        answer = await g.admin.put("/v1/policy-version", json={"version": version})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, "version")


async def test_a_pause_outlives_the_gateway() -> None:
    disk = MemoryDisk()
    async with gateway(store=await MemoryStore.open(disk)) as g:
        assert (await g.admin.post("/v1/pause")).json()["paused"] is True
        await g.store.aclose()
    async with gateway(["held"], store=await MemoryStore.open(disk)) as g:
        assert (await g.admin.get("/v1/status")).json()["paused"] is True
        agent = await g.session()
        asked = asyncio.ensure_future(agent.ask("hi"))
        await rest()
        assert not asked.done()
        assert (await g.admin.post("/v1/resume")).json()["paused"] is False
        assert (await asked)["content"] == "held"
        await g.store.aclose()
    async with gateway(store=await MemoryStore.open(disk)) as g:
        assert (await g.admin.get("/v1/status")).json()["paused"] is False


NO_UPDATE: dict[str, tuple[bytes, str]] = {
    "curl -d '{}'": (b"{}", "application/x-www-form-urlencoded"),
    "a form": (b"mode=abort", "application/x-www-form-urlencoded"),
    "of no type": (b"{}", ""),
    "a list": (b"[]", "application/json"),
    "vLLM's": (b'{"mode": "abort"}', "application/json"),
    "no JSON": (b"{", "application/json"),
    "no text": (b"\xff", "text/plain"),
    "null": (b'{"update": null}', "application/json"),
    "nothing of a type": (b"", "application/json"),
}


@pytest.mark.parametrize(("body", "kind"), NO_UPDATE.values(), ids=NO_UPDATE)
async def test_a_pause_with_any_body_pauses(body: bytes, kind: str) -> None:
    head = {"content-type": kind} if kind else {}
    async with gateway() as g:
        for path, paused in (("/v1/pause", True), ("/v1/resume", False)):
            answer = await g.admin.post(path, content=body, headers=head)
            assert answer.status_code == 200, answer.text
            told = answer.json()
            assert (told["paused"], told["update"]) == (paused, "")


async def test_a_pause_reads_its_update_whatever_the_type_and_refuses_an_impossible_one() -> None:
    form = {"content-type": "application/x-www-form-urlencoded"}
    async with gateway() as g:
        for body in (b'{"update": 7}', b'{"update": "a"}', b'{"update": "000000000007.%s"}' % (b"a" * 65)):
            answer = await g.admin.post("/v1/pause", content=body)
            assert (answer.status_code, answer.json()["error"]["param"]) == (400, "update")
        twice = await g.admin.post(
            "/v1/pause", content=b'{"update": "000000000007.a", "update": "000000000007.a"}'
        )
        assert twice.status_code == 400
        assert (await g.admin.get("/v1/status")).json()["paused"] is False
        answer = await g.admin.post("/v1/pause", content=b'{"update": "000000000007.a"}', headers=form)
        assert answer.json()["update"] == "000000000007.a"


async def test_a_pause_behind_a_resume_that_waits_for_the_journal_holds() -> None:
    """What was asked for last stands, here and after a restart."""
    latch = Latch()
    async with gateway(store=MemoryStore(gate=latch)) as g:
        await g.admin.post("/v1/pause")
        latch.shut()
        resumed = asyncio.ensure_future(g.admin.post("/v1/resume"))
        await within(latch.reached)
        paused = asyncio.ensure_future(g.admin.post("/v1/pause"))
        await rest()
        latch.open()
        await resumed
        assert (await paused).json()["paused"] is True
        assert g.core.sessions.process.paused
        assert not g.core.turns.admission.resumed.is_set()


async def test_a_turn_that_is_let_go_and_held_again_before_it_went_on_is_held() -> None:
    admission = Admission(Limits())
    admission.pause()
    held = asyncio.ensure_future(admission.hold())
    await rest()
    admission.resume()
    admission.pause()
    await rest()
    assert not held.done()
    admission.resume()
    await held


@pytest.mark.parametrize("calls", [("pause", "drain"), ("drain", "pause")])
async def test_a_turn_that_comes_to_a_hold_while_the_gateway_drains_is_refused(
    calls: tuple[str, str],
) -> None:
    """It was admitted before, and its prompt took its time: the engine's weights are being changed now."""
    admission = Admission(Limits())
    for call in calls:
        getattr(admission, call)()
    with pytest.raises(Draining):
        await admission.hold()


async def test_a_pause_that_cannot_be_made_durable_holds_nothing() -> None:
    disk = MemoryDisk()
    async with gateway(["on"], store=await MemoryStore.open(disk)) as g:
        disk.fail_next = 1
        assert (await g.admin.post("/v1/pause")).status_code == 503
        assert (await g.admin.get("/v1/status")).json()["paused"] is False


async def test_an_update_whose_pause_is_not_durable_has_not_begun() -> None:
    disk = MemoryDisk()
    async with gateway(["on"], store=await MemoryStore.open(disk)) as g:
        older, newer = {"update": "000000000001.a"}, {"update": "000000000002.b"}
        assert (await g.admin.post("/v1/pause", json=older)).status_code == 200
        await g.admin.post("/v1/resume", json=older)
        disk.fail_next = 1
        assert (await g.admin.post("/v1/pause", json=newer)).status_code == 503
        assert (await g.admin.get("/v1/status")).json()["update"] == older["update"]
        assert (await g.admin.post("/v1/resume", json=older)).status_code == 200


async def test_a_pause_holds_turns_and_a_stream_hears_that_it_lives() -> None:
    async with gateway(["kiwi", "lime"], limits={"keepalive_s": 0.02}) as g:
        agent = await g.session()
        assert (await g.admin.post("/v1/pause")).json()["paused"] is True
        waiting = asyncio.ensure_future(agent.post("whole"))
        wire = await Wire.chat(agent, agent.body("streamed", stream=True))
        async with asyncio.timeout(20):
            while wire.seen.count(b'"delta":{},') < 3:
                wire.seen += await wire.reader.read(65536)
        assert g.generations == 0
        assert not waiting.done()
        assert g.core.turns.load.in_flight == 2
        await g.admin.post("/v1/resume")
        assert (await waiting).status_code == 200
        body = (await wire.until(b"[DONE]")).partition(b"\r\n\r\n")[2]
        assert said(body) in ("kiwi", "lime")
        assert g.generations == 2
        await wire.cut()


async def test_a_turn_held_too_long_is_503_with_retry_after() -> None:
    async with gateway(limits={"pause_hold_s": 0.0}) as g:
        agent = await g.session()
        await g.admin.post("/v1/pause")
        answer = await agent.post("hi")
        assert answer.status_code == 503
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.headers["x-sandgate-reason"] == "Paused"
        assert answer.json()["error"]["type"] == "server_error"
        streamed = await agent.post("hi", stream=True)
        assert b'"type":"server_error"' in streamed.content
        assert g.core.turns.load.in_flight == 0
        await g.admin.post("/v1/resume")
        assert (await agent.post("hi")).status_code == 200


async def test_a_held_turn_of_a_session_that_completes_is_refused() -> None:
    async with gateway() as g:
        agent = await g.session()
        await g.admin.post("/v1/pause")
        waiting = asyncio.ensure_future(agent.post("hi"))
        await eventually(lambda: g.core.turns.load.in_flight == 1, "it is held")
        await agent.http.post("complete")
        await g.admin.post("/v1/resume")
        assert (await waiting).status_code == 410
        assert g.generations == 0


async def test_draining_refuses_new_turns_and_lets_running_ones_finish() -> None:
    reply, gate = gated("kiwi")
    async with gateway([reply]) as g:
        agent = await g.session()
        running = asyncio.ensure_future(agent.post("hi"))
        await within(gate.reached)
        drain = asyncio.ensure_future(g.core.turns.drain(20.0))
        await eventually(lambda: g.core.turns.load.draining, "it drains")
        refused = await agent.post("another")
        assert refused.status_code == 503
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.headers["x-sandgate-reason"] == "Draining"
        assert (await g.admin.get("/readyz")).status_code == 503
        assert (await g.admin.get("/healthz")).status_code == 200
        gate.open.set()
        assert (await running).status_code == 200
        assert await drain is True


async def test_a_drain_that_takes_too_long_says_so() -> None:
    reply, gate = gated("kiwi")
    async with gateway([reply]) as g:
        agent = await g.session()
        running = asyncio.ensure_future(agent.post("hi"))
        await within(gate.reached)
        assert await g.core.turns.drain(0.0) is False
        gate.open.set()
        await running


@pytest.mark.parametrize(
    "limits", [{"in_flight": 2}, {"in_flight_per_session": 2}], ids=["in all", "of one session"]
)
async def test_too_many_generations_at_once_are_429_with_retry_after(limits: dict[str, int]) -> None:
    (one, gate_one), (two, gate_two) = gated("one"), gated("two")
    async with gateway([one, two, "three"], limits=limits) as g:
        agent, sibling = await g.session(), await g.session()
        running = [asyncio.ensure_future(agent.post("one")), asyncio.ensure_future(agent.post("two"))]
        await within(gate_one.reached)
        await within(gate_two.reached)
        with pytest.raises(openai.RateLimitError) as caught:
            await agent.openai().chat.completions.create(
                model="shop", messages=[{"role": "user", "content": "three"}]
            )
        assert caught.value.type == "rate_limit_error"
        assert int(caught.value.response.headers["retry-after"]) >= 1
        other = await sibling.post("three")
        assert other.status_code == (429 if "in_flight" in limits else 200)
        gate_one.open.set()
        gate_two.open.set()
        assert [(await one).status_code for one in running] == [200, 200]
        assert (await agent.post("three")).status_code == 200


async def test_n_choices_take_n_slots() -> None:
    async with gateway(lambda ids, number: "x", limits={"in_flight_per_session": 3}) as g:
        agent = await g.session()
        assert (await agent.post("hi", n=4)).status_code == 429
        assert (await agent.post("hi", n=3)).status_code == 200
        assert g.core.turns.load.in_flight == 0


@pytest.mark.parametrize(
    "limits", [{"in_flight": 1}, {"in_flight_per_session": 1}], ids=["in all", "of one session"]
)
async def test_a_prompt_that_is_only_counted_takes_a_slot(limits: dict[str, int]) -> None:
    reply, gate = gated("kiwi")
    asked = {"model": "shop", "messages": [{"role": "user", "content": "hi"}]}
    async with gateway([reply], limits=limits) as g:
        agent = await g.session()
        running = asyncio.ensure_future(agent.post("hi"))
        await within(gate.reached)
        refused = await agent.http.post("v1/messages/count_tokens", json=asked)
        assert refused.status_code == 429
        assert int(refused.headers["retry-after"]) >= 1
        gate.open.set()
        assert (await running).status_code == 200
        assert (await agent.http.post("v1/messages/count_tokens", json=asked)).status_code == 200
        assert g.core.turns.load.in_flight == 0
        assert await g.core.turns.drain(0.0) is True


async def test_the_turn_limit_counts_turns_in_flight() -> None:
    """Ten sub-agents at once do not pass a limit of three."""
    gates = [gated("x") for _ in range(3)]
    async with gateway([reply for reply, _ in gates], session_limits={"turns": 3}) as g:
        agent = await g.session()
        running = [asyncio.ensure_future(agent.post(f"ask {index}")) for index in range(10)]
        await eventually(lambda: sum(one.done() for one in running) == 7, "seven are refused")
        for _, gate in gates:
            gate.open.set()
        codes = [(await one).status_code for one in running]
        assert sorted(codes) == [200] * 3 + [400] * 7
        refused = next(one.result() for one in running if one.result().status_code == 400)
        assert "turns" in refused.json()["error"]["message"]
        assert len(await g.tree(agent)) == 3
        assert (await agent.post("late")).status_code == 400
        seen = (await g.admin.get(f"/v1/sessions/{agent.id}")).json()
        assert seen["limit_reached"] == "turns"


@pytest.mark.parametrize("spelling", ["total_tokens", "totalTokens"])
async def test_the_token_limit_of_a_session_wins_over_the_gateways(spelling: str) -> None:
    async with gateway(lambda ids, number: "x") as g:
        agent = await g.session(limits={spelling: 5})
        assert (await agent.post("hi")).status_code == 200
        answer = await agent.post("more")
        assert answer.status_code == 400
        assert answer.headers["x-sandgate-reason"] == "LimitReached"
        assert (await g.admin.get(f"/v1/sessions/{agent.id}")).json()["limit_reached"] == "totalTokens"
