"""The control API: which turn or session a reward is of, over HTTP."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest
from msgspec import structs

from sandgate.contract.session import parse_termination
from sandgate.gateway.engine.scripted.engine import Gate
from sandgate.gateway.journal.memory import MemoryDisk, MemoryStore
from sandgate.gateway.journal.records import Delivered, Opened, Rewarded, Sealed
from sandgate.gateway.service.session import Session
from tests.gateway.journal.samples import turn
from tests.support.gateway import (
    Agent,
    Latch,
    Running,
    Wire,
    admin_key,
    bearer,
    eventually,
    gated,
    gateway,
    rest,
    within,
)


@pytest.fixture
async def g() -> Any:
    async with gateway(lambda ids, number: f"answer {number}") as running:
        yield running


async def test_a_reward_is_the_last_turns_unless_it_names_one(g: Running) -> None:
    agent = await g.session()
    history: list[Any] = [{"role": "user", "content": "one"}]
    ids = []
    for text in ("two", "three", "four"):
        answer = (await agent.post(*history)).json()
        ids.append(answer["id"])
        history += [answer["choices"][0]["message"], {"role": "user", "content": text}]
    url = f"/v1/sessions/{agent.id}/reward"
    turns = [turn["turn"] for turn in await g.tree(agent)]
    by_response = await g.admin.post(url, json={"reward": 0.25, "interaction_id": ids[0]})
    by_turn = await g.admin.post(url, json={"reward": 0.5, "interaction_id": turns[1]})
    last = await g.admin.post(url, json={"reward": 1.0})
    named = [answer.json()["interaction_id"] for answer in (by_response, by_turn, last)]
    assert named == turns
    assert ids[0] == f"chatcmpl-{turns[0]}"
    (row,) = await g.finalize(agent, discount=0.0)
    assert row["turn_rewards"] == [0.25, 0.5, 1.0]


async def test_a_verifiers_reward_is_the_sessions_unless_it_names_a_turn(g: Running) -> None:
    agent = await g.session(reward_source="verifier")
    await agent.ask("one")
    key, url = bearer(agent.handle["reward_key"]), agent.handle["reward_url"]
    turn = (await g.tree(agent))[0]["turn"]
    named = [
        (await g.admin.post(url, json={"reward": 0.5} | told, headers=key)).json()["interaction_id"]
        for told in ({}, {"interaction_id": turn})
    ]
    assert named == [None, turn]
    (row,) = await g.finalize(agent)
    assert row["reward"] == 0.5


async def test_an_agents_own_reward_is_its_newest_turns_unless_it_names_one(g: Running) -> None:
    agent = await g.session(reward_source="agent")
    history: list[Any] = []
    for text in ("one", "two", "three"):
        history.append({"role": "user", "content": text})
        history.append(await agent.ask(*history))
        said = await agent.http.post(agent.handle["reward_url"], json={"reward": 1.0})
        assert said.json()["interaction_id"] == (await g.tree(agent))[-1]["turn"]
    (row,) = await g.finalize(agent, discount=0.5)
    assert row["turn_rewards"] == [1.75, 1.5, 1.0]


AGAIN: dict[str, tuple[dict[str, Any], str, list[float]]] = {
    "by its id it is of the turn that was the last when it was asked first": (
        {"reward_id": "r-1"},
        "",
        [1.0, 0.0],
    ),
    "by its id it is answered as before behind the session's end": ({"reward_id": "r-1"}, "end", [1.0, 0.0]),
    "by its id it is known to the next life of the gateway": ({"reward_id": "r-1"}, "restart", [1.0, 0.0]),
    "by its id it does not come before another that was given meanwhile": (
        {"reward_id": "r-1"},
        "other",
        [0.5, 0.0],
    ),
    "without an id it is of the turn that is the last by then": ({}, "", [1.0, 1.0]),
}


@pytest.mark.parametrize(("told", "meanwhile", "want"), AGAIN.values(), ids=AGAIN)
async def test_a_reward_is_asked_for_again_after_the_agent_went_on(
    told: dict[str, Any], meanwhile: str, want: list[float]
) -> None:
    disk, url, body = MemoryDisk(), "/v1/sessions/s/reward", {"reward": 1.0} | told
    async with AsyncExitStack() as stack:
        g = await stack.enter_async_context(gateway(lambda ids, number: "yes", store=MemoryStore(disk)))
        agent = await g.session(session_id="s")
        said = await agent.ask("one")
        first = (await g.admin.post(url, json=body)).json()
        await agent.ask("one", said, "two")
        if meanwhile == "end":
            await g.admin.post("/v1/sessions/s/finalize", json={"discount": 0.0})
        elif meanwhile == "other":
            await g.admin.post(
                url, json={"reward": 0.5, "interaction_id": first["interaction_id"], "reward_id": "r-2"}
            )
        elif meanwhile == "restart":
            await stack.aclose()
            await g.store.aclose()
            g = await stack.enter_async_context(gateway(store=MemoryStore(disk)))
        again = await g.admin.post(url, json=body)
        assert again.status_code == 200
        assert (again.json() == first) is bool(told)
        sealed = await g.admin.post("/v1/sessions/s/finalize", json={"discount": 0.0})
        assert [row["turn_rewards"] for row in sealed.json()["trajectories"]] == [want]


async def test_a_reward_that_is_asked_for_again_while_it_is_written_is_given_once() -> None:
    """Its client gave up, and the agent, which did not wait for it, goes on."""
    disk = Latch()
    async with gateway(lambda ids, number: "yes", store=MemoryStore(gate=disk)) as g:
        agent = await g.session(session_id="s")
        await agent.ask("one")
        disk.shut()
        body = {"reward": 1.0, "reward_id": "r-1"}
        both = [asyncio.ensure_future(g.admin.post("/v1/sessions/s/reward", json=body)) for _ in range(2)]
        await rest()
        assert not any(one.done() for one in both)
        disk.open()
        first, again = await asyncio.gather(*both)
        assert first.json() == again.json()
        assert [one.reward_id for one in g.core.sessions.get("s").rewards] == ["r-1"]
        assert not list(g.core.ending), "nothing is kept of it"


TOLD: dict[str, tuple[list[tuple[float, int | None]], float, float]] = {
    "the session's, though a turn's came behind it": ([(0.5, None), (1.0, 0)], 1.0, 0.5),
    "the session's newest": ([(0.5, None), (1.0, 2), (0.25, None)], 1.0, 0.25),
    "of turns alone, their sum": ([(1.0, 0), (3.0, 1), (2.0, 2)], 1.0, 6.0),
    "of turns alone, discounted": ([(1.0, 0), (4.0, 1), (2.0, 2)], 0.5, 3.5),
    "of a turn, its newest": ([(1.0, 1), (3.0, 1)], 1.0, 3.0),
    "of a side call behind the conversation": ([(1.0, 0), (7.0, 3)], 1.0, 1.0),
}


@pytest.mark.parametrize(("posted", "discount", "want"), TOLD.values(), ids=TOLD)
async def test_a_session_tells_the_reward_of_its_main_row(
    posted: list[tuple[float, int | None]], discount: float, want: float
) -> None:
    disk = MemoryDisk()
    async with gateway(lambda ids, number: f"answer {number}", store=MemoryStore(disk)) as g:
        agent = await g.session(session_id="s", reward_source="verifier", uid="q")
        history: list[Any] = []
        for text in ("one", "two", "three"):
            history.append({"role": "user", "content": text})
            history.append(await agent.ask(*history))
        await agent.ask({"role": "system", "content": "a title, please"}, {"role": "user", "content": "x"})
        turns = [turn["turn"] for turn in await g.tree(agent)]
        key = bearer(agent.handle["reward_key"])
        for reward, at in posted:
            said = {"reward": reward} | ({} if at is None else {"interaction_id": turns[at]})
            assert (await g.admin.post(agent.handle["reward_url"], json=said, headers=key)).status_code == 200
        if discount == 1.0:
            assert (await g.admin.get("/v1/sessions/s")).json()["reward"] == want, "before its end"
        rows = await g.finalize(agent, discount=discount)
        assert [row["reward"] for row in rows if row["main"]] == [want]
        assert (await g.admin.get("/v1/sessions/s")).json()["reward"] == want
        await g.store.aclose()
    async with gateway(store=MemoryStore(disk)) as g:
        assert (await g.admin.get("/v1/sessions/s")).json()["reward"] == want, "after a restart"


def _of(turns: int) -> Session:
    """A session of a chain, and of as many answers to its end."""
    session = Session("s")
    session.apply(Opened(at=0.0, spec={"job": "shop"}))
    for at in range(turns):
        parent = None if at == 0 else f"t{min(at, turns // 2) - 1}"
        session.apply(structs.replace(turn(f"t{at}", parent=parent), digest=b"%d" % at))
        session.apply(Delivered(at=1.0, turn=f"t{at}"))
    session.apply(Rewarded(at=2.0, turn="t0", reward=1.0))
    return session


def _calls(what: Callable[[], object]) -> int:
    """Python functions that are called, the walk of a tree's generators too."""
    seen: list[str] = []
    gc.disable()  # what it calls is not of this
    sys.setprofile(lambda frame, event, _: seen.append(event) if event == "call" else None)
    try:
        what()
    finally:
        sys.setprofile(None)
        gc.enable()
    return len(seen)


def test_telling_and_sealing_a_session_with_a_rewarded_turn_costs_the_same_whatever_its_tree() -> None:
    small, large = _of(4), _of(400)
    assert _calls(small.summary) == _calls(large.summary)
    sealed = Sealed(at=3.0)
    assert _calls(lambda: small.apply(sealed)) == _calls(lambda: large.apply(sealed)), "also in a replay"
    assert _calls(small.summary) == _calls(large.summary)
    assert large.reward == 1.0


@pytest.mark.parametrize("before", [[], [0.0]], ids=["the first", "a later one"])
async def test_a_reward_on_its_way_to_the_disk_when_its_session_is_sealed_is_the_summarys_and_the_rows(
    before: list[float],
) -> None:
    latch = Latch()
    async with gateway(["done"], store=MemoryStore(gate=latch)) as g:
        agent = await g.session()
        await agent.ask("hi")
        path = f"/v1/sessions/{agent.id}"
        for reward in before:
            assert (await g.admin.post(f"{path}/reward", json={"reward": reward})).status_code == 200
        latch.shut()
        late = asyncio.ensure_future(g.admin.post(f"{path}/reward", json={"reward": 1.0}))
        await within(latch.reached, "the reward is being written")
        sealing = asyncio.ensure_future(g.finalize(agent))
        await eventually(lambda: g.core.sessions.get(agent.id).closing, "the session is being sealed")
        await rest()
        latch.open()
        assert (await late).status_code == 200
        (row,) = await sealing
        assert (row["reward"], (await g.admin.get(path)).json()["reward"]) == (1.0, 1.0)


async def test_an_aborted_session_has_no_row_and_no_reward_of_one(g: Running) -> None:
    agent = await g.session(reward_source="agent")
    await agent.ask("one")
    assert (await agent.http.post(agent.handle["reward_url"], json={"reward": 1.0})).status_code == 200
    assert (await g.admin.get(f"/v1/sessions/{agent.id}")).json()["reward"] == 1.0
    await g.admin.post(f"/v1/sessions/{agent.id}/abort")
    told = (await g.admin.get(f"/v1/sessions/{agent.id}")).json()
    assert (told["state"], told["reward"]) == ("aborted", None)


async def test_a_session_whose_rewarded_turn_is_in_no_row_tells_no_reward() -> None:
    last, gate = gated("I will look further", at=2)
    async with gateway(["bought 7 kiwi", last]) as g:
        agent = await g.session(cut_turns="leave")
        await agent.ask("buy 7 kiwi")
        await _lets_go(agent, g, gate, stream=True, told="delta")
        said = {"reward": 1.0, "interaction_id": (await g.tree(agent))[-1]["turn"]}
        assert (await g.admin.post(f"/v1/sessions/{agent.id}/reward", json=said)).status_code == 200
        assert [row["reward"] for row in await g.finalize(agent)] == [None]
        assert (await g.admin.get(f"/v1/sessions/{agent.id}")).json()["reward"] is None


async def _lets_go(agent: Agent, g: Running, gate: Gate, *, stream: bool, told: str) -> None:
    """The agent gives up its second call, whose turn is committed all the same."""
    wire = await Wire.chat(agent, agent.body("and now?", stream=stream))
    await eventually(lambda: g.generations == 2, "the second call runs")
    if told:
        await wire.until(told.encode())
    await wire.cut()
    calls = g.core.turns.registry.calls
    await eventually(
        lambda: all(not call.listeners for some in calls.values() for call in some), "it is gone"
    )
    gate.open.set()
    session = g.core.sessions.get(agent.id)
    await eventually(lambda: session.turns == 2 and not session.in_flight, "it is committed")
    await rest()


LET_GO: dict[str, tuple[str, str, bool, list[float | None]]] = {
    "a verifier's, behind a call that its agent was killed in": ("reward_key", "train", False, [1.0]),
    "a verifier's, where cut turns are left out": ("reward_key", "leave", True, [1.0]),
    "an agent's own, behind a call that it gave up": ("api_key", "train", False, [1.0]),
    "an agent's own, where cut turns are left out": ("api_key", "leave", True, [1.0]),
    "a trainer's, behind a call that its agent was killed in": ("trainer", "train", False, [1.0]),
    "an agent's own, of a turn that it cut": ("api_key", "train", True, [1.0, 1.0]),
}


@pytest.mark.parametrize(("key", "cut", "stream", "rewards"), LET_GO.values(), ids=LET_GO)
async def test_no_reward_is_lost_with_a_turn_that_is_in_no_row(
    key: str, cut: str, stream: bool, rewards: list[float | None]
) -> None:
    last, gate = gated("I will look further", at=2)
    async with gateway(["bought 7 kiwi", last]) as g:
        source = {"api_key": "agent", "reward_key": "verifier"}.get(key, key)
        agent = await g.session(reward_source=source, cut_turns=cut)
        await agent.ask("buy 7 kiwi")
        await _lets_go(agent, g, gate, stream=stream, told="delta" if stream else "")
        said = await g.admin.post(
            agent.handle["reward_url"],
            json={"reward": 1.0},
            headers=bearer(agent.handle.get(key, admin_key())),
        )
        assert said.status_code == 200, said.text
        assert [row["reward"] for row in await g.finalize(agent)] == rewards


@pytest.mark.parametrize("cut", [True, False], ids=["cut", "whole by then"])
async def test_an_agents_own_reward_is_its_answers_not_of_what_it_let_go_of_before(cut: bool) -> None:
    slow, gate = gated("slow words and more of them", at=2)
    async with gateway([slow, "It says kiwi."]) as g:
        agent = await g.session(reward_source="agent")
        wire = await Wire.chat(agent, agent.body("what is slow?", stream=True))
        await wire.until(b"delta")
        await within(gate.reached)
        await wire.cut()
        call = g.call()
        await eventually(lambda: call.listeners == 0, "it let go")
        await agent.ask("what is it?")
        if cut:
            call.cancel()
        gate.open.set()
        session = g.core.sessions.get(agent.id)
        await eventually(lambda: session.turns == 2 and not session.in_flight, "it is committed")
        said = await agent.http.post(agent.handle["reward_url"], json={"reward": 1.0})
        turns = await g.tree(agent)
        assert [turn["finish"] for turn in turns] == ["stop", "cut" if cut else "stop"]
        assert said.json()["interaction_id"] == turns[0]["turn"]


async def test_an_answer_that_was_just_sent_is_its_agents_newest_turn_at_once() -> None:
    """Before the journal has taken down that it was sent."""
    store = MemoryStore()
    async with gateway(lambda ids, number: f"answer {number}", store=store) as g:
        agent = await g.session(reward_source="agent")
        await agent.ask("one")
        append, held = store.append, asyncio.Event()

        async def slow(session: str, *records: Any, sync: bool = True) -> None:
            if any(isinstance(record, Delivered) for record in records):
                await held.wait()
            await append(session, *records, sync=sync)

        store.append = slow  # type: ignore[method-assign]
        await agent.ask("two")
        said = await agent.http.post(agent.handle["reward_url"], json={"reward": 1.0})
        held.set()
        assert said.json()["interaction_id"] == (await g.tree(agent))[-1]["turn"]
    await store.aclose()


NO_NUMBERS = ("NaN", "1e999", "null", "true", "false", '"0.25"', '"1"', "[1]")


@pytest.mark.parametrize("raw", [*(f'{{"reward": {one}}}' for one in NO_NUMBERS), "{}"])
async def test_a_reward_that_is_no_number_is_refused(g: Running, raw: str) -> None:
    """As in a termination log."""
    assert parse_termination(raw.encode()).reward is None
    agent = await g.session()
    await agent.ask("hi")
    answer = await g.admin.post(f"/v1/sessions/{agent.id}/reward", content=raw)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "reward"


@pytest.mark.parametrize("one", ["NaN", "true", '"0.25"'])
async def test_nor_is_a_session_sealed_with_one(g: Running, one: str) -> None:
    agent = await g.session()
    await agent.ask("hi")
    answer = await g.admin.post(f"/v1/sessions/{agent.id}/finalize", content=f'{{"reward": {one}}}')
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "reward"
    assert [row["reward"] for row in await g.finalize(agent, reward=1)] == [1.0]


async def test_a_reward_of_an_unknown_turn_is_refused(g: Running) -> None:
    agent = await g.session()
    answer = await g.admin.post(
        f"/v1/sessions/{agent.id}/reward", json={"reward": 1, "interaction_id": "chatcmpl-" + "0" * 24}
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "interaction_id")
