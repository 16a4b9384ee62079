"""The control API: sessions from creation to the trainer's ack, over HTTP."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from typing import Any

import pytest

from sandgate.contract.endpoints import ENDPOINTS
from sandgate.gateway.journal.memory import MemoryDisk, MemoryStore
from tests.support.gateway import (
    Latch,
    Running,
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


KEY_TWICE: dict[str, tuple[str, str, str]] = {
    "a session's task": ("/v1/sessions", '{"session_id": "s1", "uid": "a", "uid": "b"}', "uid"),
    "one of many sessions": ("/v1/sessions", '[{"uid": "a"}, {"uid": "a", "uid": "a"}]', "uid"),
    "within a task's data": ("/v1/tasks", '{"tasks": [{"uid": "a", "data": {"n": 1, "n": 2}}]}', "n"),
    "a pushed prompt": ("/v1/tasks", '{"tasks": [{"uid": "a", "prompt": "x", "prompt": "y"}]}', "prompt"),
    "a reward": ("/v1/sessions/s0/reward", '{"reward": 1.0, "reward": 0.0}', "reward"),
    "a key of nothing": ("/v1/tasks", '{"": 1, "": 2}', '""'),
    "half a character": ("/v1/tasks", '{"\\ud800": 1, "\\ud800": 2}', "\\ud800"),
    "a long key": ("/v1/tasks", f'{{"{"k" * 9999}": 1, "{"k" * 9999}": 2}}', "k" * 100),
}


@pytest.mark.parametrize(("path", "body", "field"), KEY_TWICE.values(), ids=KEY_TWICE)
async def test_a_key_that_stands_twice_is_400_naming_it(g: Running, path: str, body: str, field: str) -> None:
    await g.session(session_id="s0")
    answer = await g.admin.post(path, content=body)
    said = answer.json()["error"]
    assert (answer.status_code, said["code"], said["param"]) == (400, "InvalidBody", field), answer.text
    assert said["message"] == f"{field}: stands there twice"
    assert list(g.core.sessions.live) == ["s0"]


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
