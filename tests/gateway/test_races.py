"""Two things at once: ends, turns, rewards and retries of one session, in the orders that hurt."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sandgate.gateway.engine.api import Delta, EngineStatus, GenerationResult, Prompt
from sandgate.gateway.engine.scripted.engine import Fault, Reply
from sandgate.gateway.journal.memory import MemoryDisk, MemoryStore
from sandgate.gateway.journal.records import Completed, Delivered, Rewarded, Sealed, TurnCommitted
from sandgate.gateway.service.sessions import Sessions
from tests.support.gateway import (
    Agent,
    Latch,
    Running,
    Stubborn,
    Wire,
    engine,
    eventually,
    gated,
    gateway,
    rest,
    within,
)


def records(g: Running, agent: Agent) -> list[Any]:
    """What is durable of a session, without the marks of turns begun."""
    kinds = (TurnCommitted, Delivered, Rewarded, Completed, Sealed)
    return [record for _, _, record in g.store.scan(agent.id) if isinstance(record, kinds)]


def end(g: Running, agent: Agent, how: str, **body: Any) -> asyncio.Future[Any]:
    """An ending, under way."""
    return asyncio.ensure_future(g.admin.post(f"/v1/sessions/{agent.id}/{how}", json=body))


async def sampled(g: Running, generations: int) -> None:
    await eventually(lambda: g.generations >= generations, "it is sampled")


async def test_nothing_is_committed_behind_a_seal() -> None:
    """A turn that starts while the seal is on its way to the disk is refused; in the journal the seal is last."""
    latch = Latch()
    async with gateway(lambda ids, number: "x", store=MemoryStore(gate=latch)) as g:
        agent = await g.session()
        await agent.ask("hi")
        latch.shut()
        sealing = end(g, agent, "finalize", reward=1.0)
        await within(latch.reached)
        late = [
            await agent.post("late"),
            await agent.post("late", stream=True),
            await g.admin.post(f"/v1/sessions/{agent.id}/reward", json={"reward": 0.0}),
        ]
        assert [answer.status_code for answer in late] == [410, 410, 410]
        latch.open()
        (row,) = (await sealing).json()["trajectories"]
        assert row["reward"] == 1.0
        assert isinstance(records(g, agent)[-1], Sealed)
        assert g.generations == 1


@pytest.mark.parametrize("how", ["finalize", "abort"])
async def test_a_turn_that_is_being_made_durable_comes_before_the_seal(how: str) -> None:
    latch = Latch()
    async with gateway(["kiwi"], store=MemoryStore(gate=latch)) as g:
        agent = await g.session()
        latch.shut()
        asked = asyncio.ensure_future(agent.post("hi"))
        await within(latch.reached)
        sealing = end(g, agent, how)
        await eventually(lambda: g.core.sessions.get(agent.id).closing, "it is being ended")
        latch.open()
        assert (await asked).status_code == 200
        assert (await sealing).status_code == 200
        kinds = [type(record) for record in records(g, agent) if not isinstance(record, Delivered)]
        assert kinds == [TurnCommitted, Sealed]


@pytest.mark.parametrize("pair", [("finalize", "finalize"), ("finalize", "abort"), ("abort", "finalize")])
async def test_two_ends_at_once_are_one(pair: tuple[str, str]) -> None:
    latch = Latch()
    async with gateway(["kiwi"], store=MemoryStore(gate=latch)) as g:
        agent = await g.session()
        await agent.ask("hi")
        latch.shut()
        first = end(g, agent, pair[0], **({"reward": 1.0} if pair[0] == "finalize" else {}))
        await within(latch.reached)
        second = end(g, agent, pair[1], **({"reward": 0.0} if pair[1] == "finalize" else {}))
        third = end(g, agent, "complete")
        await eventually(lambda: len(g.requests) == 3, "all have arrived")
        await rest()
        latch.open()
        one, two = await first, await second
        await third
        assert one.status_code == 200
        sealed = [record for record in records(g, agent) if isinstance(record, Sealed)]
        assert len(sealed) == 1
        if pair == ("finalize", "finalize"):
            assert one.json() == two.json()
        else:
            assert two.status_code == (200 if pair[1] == "abort" else 410)
            aborted = pair[0] == "abort"
            seen = (await g.admin.get(f"/v1/sessions/{agent.id}")).json()
            assert seen["state"] == ("aborted" if aborted else "finalized")
        assert not list(g.core.ending), "nothing is kept of it"
        assert g.core.sessions.open_count == 0


async def test_complete_sent_twice_at_once_is_one_completion_and_one_reward() -> None:
    latch = Latch()
    async with gateway(["kiwi"], store=MemoryStore(gate=latch)) as g:
        agent = await g.session(reward_source="agent")
        await agent.ask("hi")
        latch.shut()
        sent = [
            asyncio.ensure_future(agent.http.post("complete", json={"reward_info": {"reward": 1.0}}))
            for _ in range(3)
        ]
        await within(latch.reached)
        await eventually(lambda: len(g.requests) == 3, "all have arrived")
        await rest()
        latch.open()
        assert {(await one).status_code for one in sent} == {200}
        kinds = [type(record) for record in records(g, agent)]
        assert (kinds.count(Completed), kinds.count(Rewarded)) == (1, 1)


async def test_an_end_that_fails_leaves_the_session_open_to_its_agent() -> None:
    disk = MemoryDisk()
    async with gateway(lambda ids, number: "x", store=MemoryStore(disk)) as g:
        agent = await g.session()
        disk.fail_next = 1
        assert (await end(g, agent, "finalize")).status_code == 503
        assert (await agent.post("hi")).status_code == 200
        assert (await end(g, agent, "finalize")).status_code == 200


async def test_ending_returns_only_when_every_engine_call_is_gone() -> None:
    """Also of a request with several choices."""
    gates = [gated("x") for _ in range(3)]
    slow = Stubborn(engine([reply for reply, _ in gates]))
    async with gateway(slow) as g:
        agent = await g.session()
        asked = asyncio.ensure_future(agent.post("hi", n=3))
        for _, gate in gates:
            await within(gate.reached)
        aborting = end(g, agent, "abort")
        await within(slow.aborting)
        seen = (await g.admin.get(f"/v1/sessions/{agent.id}")).json()
        assert (seen["state"], seen["in_flight"]) == ("open", 3)
        assert not aborting.done()
        slow.let_go.set()
        assert (await aborting).json()["state"] == "aborted"
        assert (await asked).status_code == 410
        assert g.core.turns.load.in_flight == 0


async def test_a_choice_that_fails_frees_no_slot_before_the_others_are_gone() -> None:
    reply, gate = gated("x")
    slow = Stubborn(engine([reply, Reply("x", fault=Fault("status", status=400))]))
    async with gateway(slow) as g:
        agent = await g.session()
        asked = asyncio.ensure_future(agent.post("hi", n=2))
        await within(slow.aborting)
        await rest()
        assert (asked.done(), g.core.turns.load.in_flight) == (False, 2)
        slow.let_go.set()
        assert (await asked).status_code >= 400
        assert g.core.turns.load.in_flight == 0
        assert not gate.open.is_set()


async def test_an_error_reaches_everybody_who_waits_for_the_call() -> None:
    reply, gate = gated("x")
    async with gateway([reply]) as g:
        agent = await g.session()
        whole = asyncio.ensure_future(agent.post("hi"))
        await within(gate.reached)
        again = asyncio.ensure_future(agent.post("hi", headers={"x-stainless-retry-count": "1"}))
        streamed = asyncio.ensure_future(
            agent.post("hi", stream=True, headers={"x-stainless-retry-count": "1"})
        )
        await eventually(lambda: g.call().listeners == 3, "all joined")
        g.call().cancel()
        assert [(await one).status_code for one in (whole, again)] == [410, 410]
        assert b'"error"' in (await streamed).content
        assert not g.core.turns.registry.calls


class Careless:
    """An engine whose deltas come in a shape that nobody expects."""

    facts = None

    async def generate(self, prompt: Prompt, on_delta: Any = None) -> GenerationResult:
        on_delta(Delta(None, None))  # type: ignore[arg-type]  # that is the point
        raise AssertionError("unreachable")

    def status(self) -> list[Any]:
        return [EngineStatus("careless://", healthy=True, in_flight=0)]

    async def aclose(self) -> None:
        pass


async def test_a_bug_while_tokens_arrive_frees_its_slot_and_is_told_as_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with gateway(Careless()) as g:
        agent = await g.session()
        answer = await agent.post("hi", stream=True)
        assert b"internal error" in answer.content
        assert b"Traceback" not in answer.content
        assert g.core.turns.load.in_flight == 0
        assert g.core.sessions.get(agent.id).in_flight == 0
        assert not g.core.turns.registry.calls
        assert "failed" in caplog.text


async def test_of_two_identical_calls_a_retry_joins_the_one_that_lost_its_client() -> None:
    (one, gate_one), (two, gate_two) = gated("kiwi"), gated("lime")
    async with gateway([one, two]) as g:
        agent = await g.session()
        body = agent.body("hi")
        first = asyncio.ensure_future(agent.post("hi"))
        await within(gate_one.reached)
        second = await Wire.chat(agent, body)
        await within(gate_two.reached)
        calls = g.core.turns.registry.calls[(agent.id, next(iter(g.core.turns.registry.calls))[1])]
        await second.cut()
        await eventually(lambda: calls[1].listeners == 0, "the second lost its client")
        again = asyncio.ensure_future(agent.post("hi", headers={"x-stainless-retry-count": "1"}))
        await eventually(lambda: calls[1].listeners == 1, "joined")
        gate_one.open.set()
        gate_two.open.set()
        texts = [(await one).json()["choices"][0]["message"]["content"] for one in (first, again)]
        assert texts == ["kiwi", "lime"]


async def test_memory_holds_nothing_of_what_is_over() -> None:
    async with gateway(lambda ids, number: "x", limits={"linger_s": 0.0}) as g:
        for number in range(5):
            agent = await g.session()
            await agent.post("hi", stream=bool(number % 2))
            await agent.post("hi", headers={"x-stainless-retry-count": "1"})
            await g.finalize(agent)
        assert g.core.turns.registry.calls == {}
        assert g.core.sessions.opening == {}
        assert not list(g.core.ending)
        for session in g.core.sessions.live.values():
            assert (len(session.tree), session.answers, session.delivered) == (0, {}, set())


async def test_the_last_told_turn_is_trained_though_a_kill_took_the_note_that_it_was_told() -> None:
    """A leaf that nobody was told is left out of the rows; this one was told, only the note was not durable yet."""
    disk = MemoryDisk()
    async with gateway(["kiwi", "lime"], store=MemoryStore(disk)) as g:
        agent = await g.session()
        first = await agent.post("hi")
        history = ["hi", first.json()["choices"][0]["message"], "more"]
        last = await agent.post(*history)
        assert isinstance(g.store, MemoryStore)
        g.store.crash()  # the note of the last answer's delivery was waiting for the next group
    async with gateway(store=MemoryStore(disk)) as g:
        assert [turn["delivered"] for turn in await g.tree(agent_of(g, agent))] == [True, False]
        rows = await g.finalize(agent)
        assert [row["turn_ids"][-1] for row in rows] == [last.headers["x-sandgate-turn"]]
        assert await g.finalize(agent) == rows, "and again, from the journal"


def agent_of(g: Running, agent: Agent) -> Agent:
    """The same session in another life."""
    return g.agent(agent.handle)


async def test_a_journal_with_a_turn_behind_its_seal_opens_all_the_same() -> None:
    """No version writes that; one that did must not keep a gateway from starting."""
    disk = MemoryDisk()
    async with gateway(lambda ids, number: "x", store=MemoryStore(disk)) as g:
        agent = await g.session()
        await agent.ask("hi")
        turn = next(record for record in records(g, agent) if isinstance(record, TurnCommitted))
        rows = await g.finalize(agent)
        fields = {name: getattr(turn, name) for name in turn.__struct_fields__}
        await g.store.append(agent.id, TurnCommitted(**{**fields, "turn": "f" * 24, "parent": turn.turn}))
        assert isinstance(g.store, MemoryStore)
        g.store.crash()
    store = MemoryStore(disk)
    sessions = Sessions(store, lambda: 0.0)
    sessions.replay()
    assert sessions.get(agent.id).turns == 1
    store.crash()
    async with gateway(store=MemoryStore(disk)) as g:
        assert await g.finalize(agent) == rows


SYSTEMS = ("You are the main agent.", "You label chats.")
TOOL = {"type": "function", "function": {"name": "buy", "parameters": {"type": "object", "properties": {}}}}
ASIDE = {"role": "system", "content": SYSTEMS[1]}

AT_ONCE: dict[str, tuple[list[dict[str, Any]], list[str | None], list[str]]] = {
    "first requests of one conversation": (
        [{"messages": [{"role": "user", "content": f"q{number}"}]} for number in range(4)],
        [None, "new_root", "new_root", "new_root"],
        ["main"] * 4,
    ),
    "a main agent and a helper with a prompt of its own": (
        [
            {"messages": [{"role": "system", "content": SYSTEMS[0]}], "tools": [TOOL]},
            {"messages": [ASIDE]},
        ],
        [None, "side_call"],
        ["main", "side"],
    ),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("bodies", "forks", "roles"), AT_ONCE.values(), ids=AT_ONCE)
async def test_turns_that_are_committed_at_once_are_what_they_are_one_after_the_other(
    bodies: list[dict[str, Any]], forks: list[str | None], roles: list[str], stream: bool
) -> None:
    latch = Latch()
    store = MemoryStore(gate=latch)
    async with gateway(lambda ids, number: f"answer {number}", store=store) as g:
        agent = await g.session()
        latch.shut()
        asked = []
        for number, body in enumerate(bodies):
            body = {"model": "shop", "stream": stream, **body}
            if len(body["messages"]) == 1 and body["messages"][0]["role"] == "system":
                body["messages"] = [*body["messages"], {"role": "user", "content": "go"}]
            asked.append(asyncio.ensure_future(agent.http.post("v1/chat/completions", json=body)))
            await sampled(g, number + 1)
        await within(latch.reached)
        latch.open()
        assert [answer.status_code for answer in await asyncio.gather(*asked)] == [200] * len(bodies)
        tree = await g.tree(agent)
        assert [turn["fork"] for turn in tree] == forks
        assert [turn["role"] for turn in tree] == roles
        if not stream:  # a stream's headers leave before it is known
            told = [answer.headers.get("x-sandgate-fork") for answer in await asyncio.gather(*asked)]
            assert told == forks
        assert not g.core.turns.committer.order._locks


async def test_siblings_that_are_committed_at_once_are_named() -> None:
    latch = Latch()
    async with gateway(lambda ids, number: "done", store=MemoryStore(gate=latch)) as g:
        agent = await g.session()
        await agent.ask("root")
        root = [{"role": "user", "content": "root"}, {"role": "assistant", "content": "done"}]
        latch.shut()
        asked = []
        for number in range(4):
            messages = [*root, {"role": "user", "content": f"q{number}"}]
            asked.append(
                asyncio.ensure_future(
                    agent.http.post("v1/chat/completions", json={"model": "shop", "messages": messages})
                )
            )
            await sampled(g, number + 2)
        latch.open()
        await asyncio.gather(*asked)
        assert [turn["fork"] for turn in await g.tree(agent)] == [None, None, *["user_or_tool_edited"] * 3]


async def test_a_session_that_ends_while_turns_wait_for_each_other_has_the_first_alone() -> None:
    latch = Latch()
    async with gateway(lambda ids, number: "x", store=MemoryStore(gate=latch)) as g:
        agent = await g.session()
        latch.shut()
        asked = []
        for number in range(3):
            asked.append(asyncio.ensure_future(agent.post(f"q{number}")))
            await sampled(g, number + 1)
        await within(latch.reached)
        sealing = end(g, agent, "finalize", reward=1.0)
        await eventually(lambda: g.core.sessions.get(agent.id).closing, "it is being ended")
        latch.open()
        assert sorted([answer.status_code for answer in await asyncio.gather(*asked)]) == [200, 410, 410]
        (row,) = (await sealing).json()["trajectories"]
        assert len(row["turn_ids"]) == 1
        assert isinstance(records(g, agent)[-1], Sealed)
        assert not g.core.turns.committer.order._locks
