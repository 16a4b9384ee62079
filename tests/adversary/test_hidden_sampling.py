"""An agent samples often, reads each stream to its last word, cuts it, and keeps the best: nothing of it is hidden."""

from __future__ import annotations

import pytest

from sandgate.gateway.engine.scripted.script import Gate, Reply
from sandgate.gateway.journal.memory import MemoryStore
from sandgate.gateway.service.session import Session
from tests.support.gateway import Agent, Latch, Running, Wire, eventually, gated, gateway, ids, user, within

TEXT = "ordered seven kiwis"
SEEN = "ordered seven"
NOW = {"linger_s": 0.0}


def cut_late(count: int) -> tuple[list[Reply], list[Gate]]:
    """Replies that stop before their last word."""
    at = len(ids(SEEN))
    made = [gated(TEXT, at=at) for _ in range(count)]
    return [reply for reply, _ in made], [gate for _, gate in made]


async def read_and_cut(
    g: Running, agent: Agent, gate: Gate, *, stream: bool = True, text: str = "hi"
) -> None:
    wire = await Wire.chat(agent, agent.body(text, stream=stream))
    await within(gate.reached)
    if stream:
        await wire.until_said(SEEN)
    await wire.cut()
    await eventually(lambda: not g.core.turns.registry.calls, "the call is gone")


async def test_what_was_read_and_cut_is_in_the_rows_as_it_was_sampled() -> None:
    replies, gates = cut_late(6)
    async with gateway([*replies, TEXT], limits=NOW) as g:
        agent = await g.session()
        for gate in gates:
            await read_and_cut(g, agent, gate)
        await agent.ask("hi")
        rows = await g.finalize(agent, reward=1.0)
    assert [row["finish_reason"] for row in rows] == ["cut"] * 6 + ["stop"]
    for row in rows[:6]:
        assert row["response_ids"] == ids(SEEN)
        assert row["loss_mask"] == [1] * len(ids(SEEN))
        assert all(value < 0 for value in row["response_logprobs"])
        assert row["versions"] == [0] * len(ids(SEEN))
        assert row["reward"] == 1.0
    assert [row["fork_reason"] for row in rows] == [""] + ["retry_resampled"] * 6


async def test_what_was_read_and_cut_and_ran_to_its_end_all_the_same_is_in_the_rows() -> None:
    """A call lingers for a retry: cut late enough, a stream ends whole, and nobody was sent its last word."""
    replies, gates = cut_late(2)
    async with gateway([*replies, "no"], limits={"linger_s": 60.0}) as g:
        agent = await g.session()
        for number, gate in enumerate(gates):
            wire = await Wire.chat(agent, agent.body(f"hi {number}", stream=True))
            await wire.until_said(SEEN)
            await wire.cut()
            await eventually(lambda: g.call().listeners == 0, "noticed")
            gate.open.set()
            await eventually(lambda: not g.core.turns.registry.calls, "the call is over")
        await agent.ask("hi 2")
        tree = await g.tree(agent)
        rows = await g.finalize(agent, reward=1.0)
    assert [(turn["finish"], turn["delivered"]) for turn in tree] == [
        ("stop", "partly"),
        ("stop", "partly"),
        ("stop", True),
    ]
    assert [row["turn_ids"] for row in rows] == [[turn["turn"]] for turn in tree]


@pytest.mark.parametrize("noticed", [True, False], ids=["noticed before", "noticed behind"])
async def test_a_stream_that_is_cut_while_it_is_made_durable_is_partly_delivered(noticed: bool) -> None:
    latch = Latch()
    async with gateway([TEXT], store=MemoryStore(gate=latch), limits=NOW) as g:
        agent = await g.session()
        latch.shut()
        wire = await Wire.chat(agent, agent.body("hi", stream=True))
        await wire.until_said(TEXT)
        await within(latch.reached)
        call = g.call()
        await wire.cut()
        if noticed:
            await eventually(lambda: call.listeners == 0, "noticed")
        latch.open()
        await eventually(lambda: not g.core.turns.registry.calls, "the call is over")
        await eventually(lambda: g.core.sessions.get(agent.id).partly == {call.turns[0]}, "it is noted")
        (turn,) = await g.tree(agent)
        assert (turn["finish"], turn["delivered"]) == ("stop", "partly")
        assert (await agent.ask("hi"))["content"] == TEXT, "its retry gets it"
        assert [one["delivered"] for one in await g.tree(agent)] == [True]


async def test_a_job_may_leave_it_out_of_its_rows_and_still_see_it() -> None:
    replies, gates = cut_late(2)
    async with gateway([*replies, TEXT], limits=NOW) as g:
        agent = await g.session(cut_turns="leave")
        for gate in gates:
            await read_and_cut(g, agent, gate)
        await agent.ask("hi")
        assert [(turn["finish"], turn["delivered"]) for turn in await g.tree(agent)] == [
            ("cut", "partly"),
            ("cut", "partly"),
            ("stop", True),
        ]
        rows = await g.finalize(agent, reward=1.0)
        summary = (await g.admin.get(f"/v1/sessions/{agent.id}")).json()
    assert [row["finish_reason"] for row in rows] == ["stop"]
    assert (summary["cut"], summary["turns"]) == (2, 3)
    assert summary["sampled_tokens"] == 2 * len(ids(SEEN)) + len(rows[0]["response_ids"])


@pytest.mark.parametrize(
    "stream", [True, False], ids=["streams that were read", "answers that nobody waited for"]
)
async def test_cut_calls_use_up_the_limit_on_turns(stream: bool) -> None:
    replies, gates = cut_late(2)
    async with gateway([*replies, TEXT, TEXT], limits=NOW) as g:
        agent = await g.session(limits={"turns": 3})
        for gate in gates:
            await read_and_cut(g, agent, gate, stream=stream)
        await agent.ask("hi")
        refused = await agent.post("hi again")
        assert refused.status_code == 400, refused.text
        assert "turns" in refused.text
        summary = (await g.admin.get(f"/v1/sessions/{agent.id}")).json()
    assert (summary["cut"], summary["limit_reached"]) == (2, "turns")


async def test_cut_tokens_use_up_the_limit_on_tokens() -> None:
    replies, gates = cut_late(1)
    async with gateway([*replies, TEXT], limits=NOW) as g:
        agent = await g.session(limits={"total_tokens": len(ids(SEEN)) + 2})
        await read_and_cut(g, agent, gates[0])
        assert (await agent.post("hi")).status_code == 400


async def test_who_goes_on_from_what_it_cut_goes_on_in_the_same_row() -> None:
    """Agents that look for their own stop words in the stream do so."""
    replies, gates = cut_late(1)
    async with gateway([*replies, "thanks"], limits=NOW) as g:
        agent = await g.session()
        await read_and_cut(g, agent, gates[0])
        await agent.ask(user("hi"), {"role": "assistant", "content": SEEN}, user("and?"))
        tree = await g.tree(agent)
        (row,) = await g.finalize(agent, reward=1.0)
    assert tree[1]["parent"] == tree[0]["turn"]
    assert row["turn_ids"] == [turn["turn"] for turn in tree]
    assert row["response_ids"][: len(ids(SEEN))] == ids(SEEN)


async def test_what_runs_when_the_session_ends_is_in_its_rows() -> None:
    """Its time was up while it sampled."""
    replies, gates = cut_late(1)
    async with gateway(replies) as g:
        agent = await g.session()
        wire = await Wire.chat(agent, agent.body("hi", stream=True))
        await within(gates[0].reached)
        await wire.until_said(SEEN)
        (row,) = await g.finalize(agent, reward=0.0)
        await wire.cut()
    assert (row["finish_reason"], row["response_ids"]) == ("cut", ids(SEEN))


async def test_a_restart_knows_it_all() -> None:
    replies, gates = cut_late(2)
    async with gateway([*replies, TEXT], limits=NOW) as g:
        agent = await g.session()
        await read_and_cut(g, agent, gates[0])
        await read_and_cut(g, agent, gates[1], stream=False)
        await agent.ask("hi")
        live, again = g.core.sessions.get(agent.id), Session(agent.id)
        for _, _, record in g.core.sessions.store.scan(agent.id):
            again.apply(record)
    assert (live.turns, live.cut, live.let_go) == (2, 1, 1)
    assert again.summary() == live.summary() | {"changed_at": again.changed_at}
    assert [turn.finish for turn in again.tree.turns] == ["cut", "stop"]
    assert not again.was_cut(again.tree.turns[0].digest), "its retry has its answer"
