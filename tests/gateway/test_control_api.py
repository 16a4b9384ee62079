"""The control API: sessions from creation to the trainer's ack, over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import Any

import pytest

from sandgate.contract.endpoints import ENDPOINTS
from sandgate.contract.keys import Scope
from sandgate.gateway.engine.scripted.engine import Gate
from sandgate.gateway.journal.memory import MemoryDisk, MemoryStore
from sandgate.gateway.journal.records import Delivered
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


# -- create ---------------------------------------------------------------------------------------------------------


async def test_created_once_the_same_id_gives_the_same_handle(g: Running) -> None:
    spec = {"session_id": "s1", "uid": "q1", "sample_index": 2, "group_size": 4}
    first = await g.admin.post("/v1/sessions", json=spec)
    again = await g.admin.post("/v1/sessions", json=spec)
    assert (first.status_code, again.status_code) == (201, 200)
    assert first.json() == again.json()
    assert set(first.json()) == {
        "session_id",
        "base_url",
        "anthropic_base_url",
        "complete_url",
        "reward_url",
        "api_key",
        "reward_key",
        "expires_at",
    }


async def test_the_same_id_with_another_meaning_is_409(g: Running) -> None:
    await g.admin.post("/v1/sessions", json={"session_id": "s1", "uid": "q1"})
    for other in ({"uid": "q2"}, {"uid": "q1", "sample_index": 1}, {"uid": "q1", "attempt": 1}):
        answer = await g.admin.post("/v1/sessions", json={"session_id": "s1", **other})
        assert answer.status_code == 409, other
        assert answer.json()["error"]["code"] == "Conflict"


async def test_a_list_creates_many_in_order(g: Running) -> None:
    specs = [{"session_id": f"s{index}", "uid": "q", "sample_index": index} for index in range(5)]
    made = await g.admin.post("/v1/sessions", json=specs)
    assert made.status_code == 201
    assert [one["session_id"] for one in made.json()] == [one["session_id"] for one in specs]
    again = await g.admin.post("/v1/sessions", json=specs)
    assert (again.status_code, again.json()) == (200, made.json())


async def test_one_id_created_many_times_at_once_is_one_session() -> None:
    latch = Latch()
    async with gateway(store=MemoryStore(gate=latch)) as g:
        latch.shut()
        asked = [
            asyncio.ensure_future(g.admin.post("/v1/sessions", json={"session_id": "s1"})) for _ in range(5)
        ]
        await within(latch.reached)
        latch.open()
        answers = await asyncio.gather(*asked)
        assert sorted(answer.status_code for answer in answers) == [200, 200, 200, 200, 201]
        assert len({answer.text for answer in answers}) == 1
        assert len(list(g.store.scan())) == 1
        assert g.core.sessions.open_count == 1


TWICE: dict[str, tuple[dict[str, Any], str, dict[str, Any], int]] = {
    "of a group, while the first runs": ({"group_size": 2}, "", {"group_size": 2}, 409),
    "of a group, when it has ended well": ({"group_size": 2}, "finalize", {"group_size": 2}, 409),
    "of a group, when it was aborted": ({"group_size": 2}, "abort", {"group_size": 2}, 201),
    "another sample": ({"group_size": 2}, "", {"group_size": 2, "sample_index": 1}, 201),
    "a higher attempt": ({"group_size": 2}, "", {"group_size": 2, "attempt": 1}, 201),
    "another job's": ({"group_size": 2, "job": "a"}, "", {"group_size": 2, "job": "b"}, 201),
    "of no task": ({"group_size": 2, "uid": ""}, "", {"group_size": 2, "uid": ""}, 201),
    "of no group": ({}, "", {}, 201),
}


@pytest.mark.parametrize(("first", "end", "second", "status"), TWICE.values(), ids=TWICE)
async def test_a_second_session_of_one_sample(
    g: Running, first: dict[str, Any], end: str, second: dict[str, Any], status: int
) -> None:
    agent = await g.session(**{"uid": "q1", **first})
    if end:
        await g.admin.post(f"/v1/sessions/{agent.id}/{end}")
    answer = await g.admin.post("/v1/sessions", json={"uid": "q1", **second})
    assert answer.status_code == status, answer.text
    if status == 409:
        error = answer.json()["error"]
        assert (error["param"], agent.id in error["message"]) == ("sample_index", True)
    again = await g.admin.post("/v1/sessions", json={"session_id": agent.id, "uid": "q1", **first})
    assert again.status_code == 200, "the first is who it was"


async def test_two_of_one_sample_that_are_made_at_once_are_one_and_a_refusal() -> None:
    latch = Latch()
    store = MemoryStore(gate=latch)
    async with gateway(store=store) as g:
        latch.shut()
        spec = {"uid": "q", "group_size": 2}
        asked = [asyncio.ensure_future(g.admin.post("/v1/sessions", json=spec)) for _ in range(2)]
        await latch.reached.wait()
        await rest()
        latch.open()
        assert sorted(answer.status_code for answer in await asyncio.gather(*asked)) == [201, 409]
        assert not g.core.sessions.taken
    await store.aclose()


async def test_a_task_that_comes_once_more_is_offered_once_more() -> None:
    """Another epoch's, or the sample of a caller that forgot which: each is a group of its own, after a restart too."""
    disk = MemoryDisk()
    store = MemoryStore(disk)
    async with gateway(store=store) as g:
        agents = [await g.session(uid="q1") for _ in range(3)]
        for agent in agents:
            await agent.ask("hi")
            await g.finalize(agent, reward=1.0)
        lease = (await g.admin.post("/v1/leases", json={})).json()
        assert (await g.admin.post(f"/v1/leases/{lease['lease_id']}/ack")).status_code == 200
        assert await g.core.sessions.retire(-1.0) == 1
        got = lease["sessions"]
    await store.aclose()
    store = MemoryStore(disk)
    async with gateway(store=store) as g:
        for _ in range(2):
            lease = (await g.admin.post("/v1/leases", json={})).json()
            got += lease["sessions"]
        assert got == [agent.id for agent in agents]
    await store.aclose()


async def test_more_sessions_than_the_limit_are_429_with_retry_after() -> None:
    async with gateway(limits={"sessions": 2}) as g:
        one = await g.session()
        await g.session()
        answer = await g.admin.post("/v1/sessions", json={})
        assert answer.status_code == 429
        assert int(answer.headers["retry-after"]) >= 1
        await g.finalize(one)
        assert (await g.admin.post("/v1/sessions", json={})).status_code == 201


BAD_SPECS: dict[str, tuple[dict[str, Any], str]] = {
    "an id for no URL": ({"session_id": "a/b"}, "session_id"),
    "an id of text": ({"session_id": 5}, "session_id"),
    "a uid that is longer than a task's": ({"uid": "q" * 257}, "uid"),
    "a negative sample": ({"sample_index": -1}, "sample_index"),
    "an empty group": ({"group_size": 0}, "group_size"),
    "an unknown reward source": ({"reward_source": "me"}, "reward_source"),
    "a sampling parameter that is none": ({"sampling": {"warmth": 1}}, "sampling.warmth"),
    "a temperature of text": ({"sampling": {"temperature": "hot"}}, "sampling.temperature"),
    "a temperature of 9": ({"sampling": {"temperature": 9}}, "sampling.temperature"),
    "a turn limit of text": ({"limits": {"turns": "many"}}, "limits.turns"),
    "a number that no journal keeps": ({"metadata": {"n": 2**70}}, "metadata"),
    "half a character": ({"task": {"t": "\ud800"}}, "task"),
    "deep nesting": (
        {"metadata": json.loads('{"a":' * 150 + "1" + "}" * 150)},
        "metadata",
    ),
}


@pytest.mark.parametrize("many", [False, True], ids=["one", "in a list"])
@pytest.mark.parametrize("case", BAD_SPECS)
async def test_a_bad_spec_is_400_naming_the_field(g: Running, case: str, many: bool) -> None:
    spec, field = BAD_SPECS[case]
    answer = await g.admin.post("/v1/sessions", content=json.dumps([spec] if many else spec))
    assert answer.status_code == 400, answer.text
    assert field in answer.json()["error"]["param"]
    assert not g.core.sessions.live


# -- look, wait -----------------------------------------------------------------------------------------------------


async def test_a_session_shows_its_counts(g: Running) -> None:
    agent = await g.session(uid="q1", metadata={"who": "me"})
    await agent.ask("hi")
    await agent.ask("other")
    seen = (await g.admin.get(f"/v1/sessions/{agent.id}")).json()
    turns = await g.tree(agent)
    assert (seen["state"], seen["turns"], seen["in_flight"]) == ("open", 2, 0)
    assert seen["tokens"] == sum(len(span["ids"]) for turn in turns for span in turn["spans"])
    assert seen["sampled_tokens"] == sum(turn["sampled_tokens"] for turn in turns)
    assert seen["metadata"] == {"who": "me"}
    assert sum(seen["forks"].values()) == 1
    assert (await g.admin.get("/v1/sessions/nobody")).status_code == 404


async def test_wait_is_200_when_complete_and_408_at_the_timeout(g: Running) -> None:
    agent = await g.session()
    url = f"/v1/sessions/{agent.id}/wait"
    late = await g.admin.get(url, params={"timeout_s": 0})
    assert (late.status_code, late.json()["state"]) == (408, "open")
    waiting = asyncio.ensure_future(g.admin.get(url, params={"timeout_s": 60}))
    await eventually(lambda: bool(g.core.sessions.changed._waiters), "it waits")
    done = await agent.http.post("complete", json={"reward_info": {"note": "ok"}})
    assert done.json() == {"session_id": agent.id, "state": "complete"}
    answer = await waiting
    assert (answer.status_code, answer.json()["state"]) == (200, "complete")
    assert answer.json()["complete_info"] == {"note": "ok"}


async def test_complete_is_idempotent_and_the_first_one_stands(g: Running) -> None:
    agent = await g.session(reward_source="agent")
    await agent.ask("hi")
    for reward in (1.0, 0.0):
        answer = await agent.http.post("complete", json={"reward_info": {"reward": reward}})
        assert answer.json() == {"session_id": agent.id, "state": "complete"}
    (row,) = await g.finalize(agent)
    assert row["reward"] == 1.0
    assert (await agent.http.post("complete")).json()["state"] == "finalized"


@pytest.mark.parametrize("reward", ["NaN", "Infinity", '"much"', "true"])
async def test_a_reward_of_complete_that_is_no_number_is_refused(g: Running, reward: str) -> None:
    agent = await g.session(reward_source="agent")
    raw = f'{{"reward_info": {{"reward": {reward}}}}}'
    answer = await agent.http.post("complete", content=raw)
    assert answer.status_code == 400, answer.text
    assert (await g.admin.get(f"/v1/sessions/{agent.id}")).json()["state"] == "open"


async def test_a_listing_pages_in_id_order(g: Running) -> None:
    for index in range(7):
        await g.session(session_id=f"s{index}", job="a" if index % 2 else "b")
    seen: list[str] = []
    after: str | None = ""
    while after is not None:
        page = (await g.admin.get("/v1/sessions", params={"after": after, "limit": 3})).json()
        seen += [one["session_id"] for one in page["sessions"]]
        after = page["next"]
    assert seen == [f"s{index}" for index in range(7)]
    of_a = (await g.admin.get("/v1/sessions", params={"job": "a", "state": "open"})).json()["sessions"]
    assert [one["session_id"] for one in of_a] == ["s1", "s3", "s5"]
    assert (await g.admin.get("/v1/sessions", params={"state": "finalized"})).json()["sessions"] == []


# -- rewards --------------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize("raw", ['{"reward": NaN}', '{"reward": 1e999}', '{"reward": null}', "{}"])
async def test_a_reward_that_is_no_number_is_refused(g: Running, raw: str) -> None:
    agent = await g.session()
    await agent.ask("hi")
    answer = await g.admin.post(f"/v1/sessions/{agent.id}/reward", content=raw)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "reward"


async def test_a_reward_of_an_unknown_turn_is_refused(g: Running) -> None:
    agent = await g.session()
    answer = await g.admin.post(
        f"/v1/sessions/{agent.id}/reward", json={"reward": 1, "interaction_id": "chatcmpl-" + "0" * 24}
    )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "interaction_id")


# -- finalize, abort ------------------------------------------------------------------------------------------------


async def test_finalize_is_idempotent_the_first_outcome_stands(g: Running) -> None:
    agent = await g.session()
    await agent.ask("hi")
    first = await g.finalize(agent, reward=1.0, reward_info={"by": "first"})
    again = await g.finalize(agent, reward=0.0, outcome={"failure_class": "infra"})
    assert first == again
    assert (first[0]["reward"], first[0]["failure_class"]) == (1.0, None)
    late = await g.admin.post(f"/v1/sessions/{agent.id}/reward", json={"reward": 0.0})
    assert late.status_code == 410


async def test_the_rows_of_a_session_are_read_without_ending_it(g: Running) -> None:
    agent = await g.session()
    await agent.ask("hi")
    path = f"/v1/sessions/{agent.id}/trajectories"
    early = await g.admin.get(path)
    assert (early.status_code, early.headers["x-sandgate-reason"]) == (409, "Conflict")
    assert (await g.admin.get(f"/v1/sessions/{agent.id}")).json()["state"] == "open"
    rows = await g.finalize(agent, reward=1.0)
    assert (await g.admin.get(path)).json()["trajectories"] == rows
    as_agent = await g.admin.get(path, headers=bearer(agent.handle["api_key"]))
    assert as_agent.status_code == 403, "an agent reads no rewards"
    other = await g.session()
    await g.admin.post(f"/v1/sessions/{other.id}/abort")
    assert (await g.admin.get(f"/v1/sessions/{other.id}/trajectories")).status_code == 410


async def test_the_row_holds_exactly_what_the_engine_sampled(g: Running) -> None:
    agent = await g.session(uid="q1", sample_index=3)
    answer = await agent.post("hi")
    await agent.post("hi", answer.json()["choices"][0]["message"], "more")
    (row,) = await g.finalize(agent, reward=1.0)
    prompts = [list(prompt.ids) for prompt in g.engine.prompts]
    turns = await g.tree(agent)
    sampled = [turn["spans"][1]["ids"] for turn in turns]
    assert row["prompt_ids"] == prompts[0]
    assert row["prompt_ids"] + row["response_ids"] == prompts[1] + sampled[1]
    masked = [token for token, mask in zip(row["response_ids"], row["loss_mask"], strict=True) if mask]
    assert masked == sampled[0] + sampled[1]
    assert row["turn_ids"] == [turn["turn"] for turn in turns]
    assert (row["uid"], row["sample_index"], row["job"]) == ("q1", 3, "shop-job")


async def test_an_ended_session_is_410_to_its_agent(g: Running) -> None:
    for end in ("complete", "finalize", "abort"):
        agent = await g.session()
        await agent.ask("hi")
        if end == "complete":
            await agent.http.post("complete")
        else:
            await g.admin.post(f"/v1/sessions/{agent.id}/{end}")
        for stream in (False, True):
            answer = await agent.post("another", stream=stream)
            assert answer.status_code == 410, end
            assert answer.json()["error"]["code"] == "session_ended"
            assert answer.headers["x-sandgate-reason"] == "SessionEnded"


@pytest.mark.parametrize("end", ["finalize", "abort"])
async def test_ending_cancels_what_is_in_flight_and_leaves_siblings_alone(end: str) -> None:
    (one, gate_one), (two, gate_two) = gated("one"), gated("two")
    async with gateway([one, two]) as g:
        mine, sibling = await g.session(uid="q"), await g.session(uid="q", sample_index=1)
        asked = asyncio.ensure_future(mine.post("hi"))
        await within(gate_one.reached)
        other = asyncio.ensure_future(sibling.post("hi"))
        await within(gate_two.reached)
        answer = await g.admin.post(f"/v1/sessions/{mine.id}/{end}")
        assert answer.status_code == 200
        assert (await asked).status_code == 410
        assert g.engine.player.running == 1
        gate_two.open.set()
        assert (await other).status_code == 200
        assert (await g.admin.get(f"/v1/sessions/{mine.id}")).json()["turns"] == 0
        assert g.core.turns.load.in_flight == 0


async def test_an_aborted_session_has_no_trajectories_and_stays_aborted(g: Running) -> None:
    agent = await g.session()
    await agent.ask("hi")
    for _ in range(2):
        answer = await g.admin.post(f"/v1/sessions/{agent.id}/abort")
        assert answer.json()["state"] == "aborted"
    assert (await g.admin.post(f"/v1/sessions/{agent.id}/finalize", json={})).status_code == 410
    assert (await g.admin.post("/v1/leases", json={})).json()["lease_id"] is None


async def test_the_tree_of_an_ended_session_is_read_back_from_the_journal(g: Running) -> None:
    agent = await g.session()
    await agent.ask("hi")
    before = await g.tree(agent)
    await g.finalize(agent)
    assert g.core.sessions.get(agent.id).evicted
    assert await g.tree(agent) == before


# -- leases ---------------------------------------------------------------------------------------------------------


async def _group(g: Running, uid: str, size: int = 2) -> list[str]:
    agents = [await g.session(uid=uid, sample_index=index, group_size=size) for index in range(size)]
    for agent in agents:
        await agent.ask("hi")
        await g.finalize(agent, reward=1.0)
    return [agent.id for agent in agents]


async def test_whole_groups_are_leased_once_and_acked_for_good(g: Running) -> None:
    first, second = await _group(g, "q1"), await _group(g, "q2")
    half = await g.session(uid="q3", group_size=2)
    await half.ask("hi")
    await g.finalize(half)
    lease = (await g.admin.post("/v1/leases", json={"max_groups": 10})).json()
    assert lease["sessions"] == first + second
    assert {row["uid"] for row in lease["trajectories"]} == {"q1", "q2"}
    assert (await g.admin.post("/v1/leases", json={})).json()["lease_id"] is None
    for _ in range(2):
        assert (await g.admin.post(f"/v1/leases/{lease['lease_id']}/ack")).status_code == 200
    assert (await g.admin.post("/v1/leases", json={})).json()["lease_id"] is None
    assert (await g.admin.post("/v1/leases/unknown/ack")).status_code == 404


async def test_a_nacked_lease_is_offered_again_with_the_same_rows(g: Running) -> None:
    await _group(g, "q1")
    first = (await g.admin.post("/v1/leases", json={})).json()
    for _ in range(2):
        assert (await g.admin.post(f"/v1/leases/{first['lease_id']}/nack")).status_code == 200
    again = (await g.admin.post("/v1/leases", json={})).json()
    assert again["lease_id"] != first["lease_id"]
    assert again["trajectories"] == first["trajectories"]
    assert (await g.admin.post(f"/v1/leases/{first['lease_id']}/ack")).status_code == 409


async def test_a_lease_that_expires_is_offered_again() -> None:
    clock = [1000.0]
    async with gateway(lambda ids, number: "x", now=lambda: clock[0]) as g:
        await _group(g, "q1")
        assert (await g.admin.post("/v1/leases", json={"ttl_s": 10})).json()["lease_id"]
        assert (await g.admin.post("/v1/leases", json={})).json()["lease_id"] is None
        clock[0] += 11
        assert (await g.admin.post("/v1/leases", json={})).json()["lease_id"]


async def test_a_renewed_lease_is_offered_again_only_after_its_new_end() -> None:
    clock = [1000.0]
    async with gateway(lambda ids, number: "x", now=lambda: clock[0]) as g:
        await _group(g, "q1")
        lease = (await g.admin.post("/v1/leases", json={"ttl_s": 10})).json()["lease_id"]
        clock[0] += 9
        renewed = (await g.admin.post(f"/v1/leases/{lease}/renew", json={"ttl_s": 10})).json()
        assert renewed == {"lease_id": lease, "state": "leased", "until": clock[0] + 10}
        clock[0] += 9
        assert (await g.admin.post("/v1/leases", json={})).json()["lease_id"] is None
        clock[0] += 1
        assert (await g.admin.post("/v1/leases", json={})).json()["lease_id"]
        late = await g.admin.post(f"/v1/leases/{lease}/renew", json={"ttl_s": 10})
        assert late.status_code == 409


async def test_a_lease_whose_answer_was_lost_is_asked_for_again_by_its_id(g: Running) -> None:
    await _group(g, "q1")
    said = [(await g.admin.post("/v1/leases", json={"lease_id": "mine"})).json() for _ in range(2)]
    assert said[0] == said[1]
    assert said[0]["lease_id"] == "mine"
    other = bearer(admin_key(Scope.TRAINER, job="another"))
    refused = await g.admin.post("/v1/leases", json={"lease_id": "mine"}, headers=other)
    assert refused.status_code == 403, "and a trainer of another job gets nothing by it"


async def test_a_closed_group_is_leased_as_it_is(g: Running) -> None:
    agent = await g.session(uid="q1", group_size=4)
    await agent.ask("hi")
    await g.finalize(agent)
    assert (await g.admin.post("/v1/leases", json={})).json()["lease_id"] is None
    for _ in range(2):
        closed = await g.admin.post("/v1/groups/close", json={"uid": "q1"})
        assert (closed.status_code, closed.json()["state"]) == (200, "closed")
    assert (await g.admin.post("/v1/leases", json={})).json()["sessions"] == [agent.id]


async def test_leases_and_rows_survive_a_restart() -> None:
    disk = MemoryDisk()
    async with gateway(lambda ids, number: f"a{number}", store=MemoryStore(disk)) as g:
        await _group(g, "q1")
        lease = (await g.admin.post("/v1/leases", json={})).json()
        assert isinstance(g.store, MemoryStore)
        g.store.crash()
    async with gateway(store=MemoryStore(disk)) as g:
        assert (await g.admin.post("/v1/leases", json={})).json()["lease_id"] is None
        assert (await g.admin.post(f"/v1/leases/{lease['lease_id']}/nack")).status_code == 200
        again = (await g.admin.post("/v1/leases", json={})).json()
        assert again["trajectories"] == lease["trajectories"]


# -- events ---------------------------------------------------------------------------------------------------------


async def test_events_are_a_long_poll_of_state_changes(g: Running) -> None:
    start = (await g.admin.get("/v1/events", params={"wait_s": 0})).json()
    agent = await g.session()
    polled = (await g.admin.get("/v1/events", params={"after": start["cursor"], "wait_s": 60})).json()
    assert [(one["session_id"], one["state"]) for one in polled["events"]] == [(agent.id, "open")]
    waiting = asyncio.ensure_future(
        g.admin.get("/v1/events", params={"after": polled["cursor"], "wait_s": 60})
    )
    await eventually(lambda: bool(g.core.sessions.changed._waiters), "it waits")
    await agent.http.post("complete")
    told = (await waiting).json()
    assert [one["state"] for one in told["events"]] == ["complete"]
    assert told["reset"] is False
    await g.finalize(agent)
    after = (await g.admin.get("/v1/events", params={"after": told["cursor"], "wait_s": 60})).json()
    assert [one["state"] for one in after["events"]] == ["finalized"]


async def test_a_cursor_of_another_life_is_told_to_reset_however_far_it_is() -> None:
    """Also one that the new life has passed: else its events would be taken for the old life's."""
    disk = MemoryDisk()
    async with gateway(store=MemoryStore(disk)) as g:
        for _ in range(3):
            await g.session()
        old = (await g.admin.get("/v1/events", params={"wait_s": 0})).json()
        assert isinstance(g.store, MemoryStore)
        g.store.crash()
    async with gateway(store=MemoryStore(disk)) as g:
        new: dict[str, Any] = {}
        for _ in range(6):
            for after in (old["cursor"], old["cursor"] - 1):
                new = (await g.admin.get("/v1/events", params={"after": after, "wait_s": 0})).json()
                assert new["reset"] is True
                assert new["epoch"] != old["epoch"]
            await g.session()
        go_on = (await g.admin.get("/v1/events", params={"after": new["cursor"], "wait_s": 0})).json()
        assert (go_on["reset"], len(go_on["events"])) == (False, 1)


async def test_a_poller_that_lags_too_far_is_told_to_reset(g: Running) -> None:
    start = (await g.admin.get("/v1/events", params={"wait_s": 0})).json()["cursor"]
    g.core.sessions.events = deque(maxlen=3)
    for _ in range(5):
        await g.session()
    lagging = (await g.admin.get("/v1/events", params={"after": start, "wait_s": 0})).json()
    assert (lagging["reset"], len(lagging["events"])) == (True, 3)


async def test_an_agent_that_runs_into_its_limit_makes_one_event(g: Running) -> None:
    agent = await g.session(limits={"turns": 1})
    await agent.ask("hi")
    before = (await g.admin.get("/v1/events", params={"wait_s": 0})).json()["cursor"]
    for _ in range(5):
        assert (await agent.post("more")).status_code == 400
    after = (await g.admin.get("/v1/events", params={"after": before, "wait_s": 0})).json()
    assert len(after["events"]) == 1


async def test_a_gateway_serves_the_endpoints_of_the_contract_and_no_others() -> None:
    async with gateway() as g:
        document = (await g.admin.get("/openapi.json")).json()
    served = {
        (method.upper(), path)
        for path, methods in document["paths"].items()
        for method, about in methods.items()
        if about["tags"] != ["areal"]
    }
    assert served == {(endpoint.method, endpoint.path) for endpoint in ENDPOINTS}


async def test_every_reference_in_the_openapi_document_leads_somewhere() -> None:
    async with gateway() as g:
        document = (await g.admin.get("/openapi.json")).json()
    assert document["openapi"].startswith("3.")
    named = {
        reference.rpartition("/")[2]
        for reference in _references(document)
        if reference.startswith("#/components/schemas/")
    }
    assert named
    assert named <= set(document["components"]["schemas"]), "every reference leads somewhere"


def _references(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return own + [found for each in value.values() for found in _references(each)]
    if isinstance(value, list):
        return [found for each in value for found in _references(each)]
    return []
