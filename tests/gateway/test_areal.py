"""AReaL's proxy contract over HTTP: every status, every rule. AReaL's own client is in tests/trainer/areal."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from sandgate.contract.errors import BadManifest
from sandgate.contract.keys import Key, Scope
from sandgate.gateway import config
from sandgate.gateway.journal.memory import MemoryDisk, MemoryStore
from sandgate.gateway.journal.records import CapacityChanged
from sandgate.gateway.service.areal import STALE_S, SWEEP_S, Areal
from sandgate.gateway.service.session import SessionPhase
from tests.support.gateway import MODEL, Latch, Running, admin_key, bearer, client, eventually, gateway, rest

OWN = "a key of the trainer's own choosing"
GOLDEN = Path(__file__).parents[1] / "golden" / "areal"


@pytest.fixture
async def g() -> Any:
    async with gateway(lambda ids, number: f"answer {number}", areal_admin_key=OWN) as running:
        yield running


async def start(g: Running, task: str = "5", **more: Any) -> dict[str, Any]:
    assert (await g.admin.post("/grant_capacity")).status_code == 200
    made = await g.admin.post("/rl/start_session", json={"task_id": task, **more})
    assert made.status_code == 200, made.text
    handle: dict[str, Any] = made.json()
    return handle


async def ask(g: Running, key: str, *texts: str, path: str = "/chat/completions") -> str:
    """A chat completion's id; AReaL's agents call the model `default`."""
    body = {"model": "default", "messages": [{"role": "user", "content": text} for text in texts]}
    answer = await g.admin.post(path, json=body, headers=bearer(key))
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


async def post(g: Running, path: str, key: str, **body: Any) -> httpx.Response:
    return await g.admin.post(path, json=body, headers=bearer(key))


async def ended(g: Running, *texts: str) -> dict[str, Any]:
    """A session with an answer to each text, ended."""
    made = await start(g)
    for text in texts:
        await ask(g, made["api_key"], text)
    assert (await post(g, "/rl/end_session", made["api_key"])).status_code == 200
    return made


async def export(g: Running, session: str, **more: Any) -> dict[str, Any]:
    answer = await g.admin.post("/export_trajectories", json={"session_id": session, **more})
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/json"
    found: dict[str, Any] = answer.json()["interactions"]
    return found


def tensor(said: dict[str, Any]) -> Any:
    raw = np.frombuffer(base64.b64decode(said["data"]), said["dtype"].removeprefix("torch."))
    return raw.reshape(said["shape"])


# -- the whole way --------------------------------------------------------------------------------------------------


async def test_a_session_from_grant_to_tensors(g: Running) -> None:
    granted = await g.admin.post("/grant_capacity", headers={"content-type": "application/octet-stream"})
    assert granted.json() == {"capacity": 1}
    made = (await g.admin.post("/rl/start_session", json={"task_id": "5", "api_key": None})).json()
    assert set(made) == {"session_id", "api_key"}
    first = await ask(g, made["api_key"], "one")
    await g.core.set_version(7)
    second = await ask(g, made["api_key"], "two", path="/v1/chat/completions")
    rewarded = await post(g, "/rl/set_reward", made["api_key"], interaction_id=None, reward=1.0)
    assert rewarded.json() == {"message": "success"}
    over = await post(g, "/rl/end_session", made["api_key"])
    assert over.json() == {"message": "success", "interaction_count": 2}
    found = await export(g, made["session_id"], discount=0.5)
    assert list(found) == [first, second]
    assert [item["reward"] for item in found.values()] == [0.5, 1.0]
    assert [item["interaction_id"] for item in found.values()] == [first, second]
    turns = (await g.admin.get(f"/v1/sessions/{made['session_id']}/tree")).json()["turns"]
    for item, turn, version in zip(found.values(), turns, (0, 7), strict=True):
        said = {name: tensor(one) for name, one in item["tensor_dict"].items()}
        context, sampled = (span["ids"] for span in turn["spans"])
        assert said["input_ids"].tolist() == [context + sampled]
        assert said["loss_mask"].tolist() == [[0] * len(context) + [1] * len(sampled)]
        assert said["versions"].tolist() == [[-1] * len(context) + [version] * len(sampled)]
        assert said["logprobs"].tolist() == [[0.0] * len(context) + turn["logprobs"]]
        assert said["attention_mask"].all()
        assert said["rewards"].tolist() == [item["reward"]]


async def test_sessions_of_one_task_draw_apart_under_the_jobs_seed() -> None:
    async with gateway(lambda ids, number: f"{number}", areal_admin_key=OWN, sampling={"seed": 7}) as g:
        for _ in range(3):
            await ask(g, (await start(g))["api_key"], "one")
        assert len({prompt.sampling.seed for prompt in g.engine.prompts}) == 3


async def test_concat_trains_every_turn_of_a_conversation_once(g: Running) -> None:
    made = await start(g)
    talk: list[dict[str, Any]] = [{"role": "user", "content": "one"}]
    for text in ("two", "three"):
        answer = await post(g, "/chat/completions", made["api_key"], model="default", messages=talk)
        talk += [answer.json()["choices"][0]["message"], {"role": "user", "content": text}]
    last = (await post(g, "/chat/completions", made["api_key"], model="default", messages=talk)).json()["id"]
    await post(g, "/rl/set_reward", made["api_key"], reward=1.0)
    await post(g, "/rl/end_session", made["api_key"])
    found = await export(g, made["session_id"], style="concat")
    assert list(found) == [last]
    turns = (await g.admin.get(f"/v1/sessions/{made['session_id']}/tree")).json()["turns"]
    spans = [span for turn in turns for span in turn["spans"]]
    mask = [span["mask"] for span in spans for _ in span["ids"]]
    assert tensor(found[last]["tensor_dict"]["loss_mask"]).tolist() == [mask]
    alone = await export(g, made["session_id"], style="individual")
    assert len(alone) == 3
    assert alone[last]["tensor_dict"]["input_ids"] == found[last]["tensor_dict"]["input_ids"]


async def test_the_bytes_of_an_export_are_golden(g: Running) -> None:
    """Ids of sessions and turns are chance; everything else is not."""
    made = await ended(g, "one", "two")
    said = await g.admin.post("/export_trajectories", json={"session_id": made["session_id"]})
    text = said.text
    for number, name in enumerate(said.json()["interactions"]):
        text = text.replace(name, f"chatcmpl-{number}")
    golden = GOLDEN / "export.json"
    assert text == golden.read_text("utf-8").rstrip()


async def test_an_export_can_be_asked_again_and_is_the_same(g: Running) -> None:
    made = await ended(g, "one")
    assert await export(g, made["session_id"]) == await export(g, made["session_id"])


async def test_a_session_without_calls_exports_nothing(g: Running) -> None:
    made = await ended(g)
    assert await export(g, made["session_id"]) == {}


async def test_what_was_exported_is_committed_and_leased_to_nobody(g: Running) -> None:
    made = await ended(g, "one")
    await export(g, made["session_id"])
    seen = (await g.admin.get(f"/v1/sessions/{made['session_id']}")).json()
    assert (seen["state"], seen["committed"], seen["metadata"]) == ("finalized", True, {"task_id": "5"})
    assert (await g.admin.post("/v1/leases", json={})).json()["lease_id"] is None


async def test_a_session_of_ours_is_exported_without_being_committed(g: Running) -> None:
    agent = await g.session()
    await agent.ask("one")
    await agent.http.post("complete")
    assert len(await export(g, agent.id)) == 1
    assert (await g.admin.post("/v1/leases", json={})).json()["lease_id"] is not None


async def test_an_export_waits_for_the_end_of_the_session() -> None:
    async with gateway() as g:
        made = await start(g)
        waiting = asyncio.ensure_future(export(g, made["session_id"]))
        await eventually(lambda: bool(g.core.sessions.changed._waiters), "it waits")
        await post(g, "/rl/end_session", made["api_key"])
        assert await waiting == {}


async def test_two_exports_that_wait_for_the_end_at_once_are_the_same() -> None:
    """The first one's connection was lost, say. The disk takes its time, so that each step of one meets the other's."""
    disk = Latch()
    async with gateway(store=MemoryStore(gate=disk)) as g:
        made = await start(g)
        waiting = [asyncio.ensure_future(export(g, made["session_id"])) for _ in range(2)]
        await eventually(lambda: len(g.core.sessions.changed._waiters) == 2, "both wait")
        await post(g, "/rl/end_session", made["api_key"])
        disk.shut()
        while not all(one.done() for one in waiting):
            await eventually(
                lambda: disk.reached.is_set() or all(one.done() for one in waiting), "the next write"
            )
            await rest()
            disk.open()
            disk.shut()
        disk.open()
        assert [one.result() for one in waiting] == [{}, {}]
        assert (await g.admin.get(f"/v1/sessions/{made['session_id']}")).json()["committed"]


# -- rewards --------------------------------------------------------------------------------------------------------


async def test_rewards_by_id_and_of_the_last(g: Running) -> None:
    made = await start(g)
    first, second = [await ask(g, made["api_key"], text) for text in ("one", "two")]
    for body in (
        {"interaction_id": first, "reward": True},  # AReaL's own servers take it
        {"interaction_id": first, "reward": "0.25"},
        {"reward": 1},
    ):
        assert (await post(g, "/rl/set_reward", made["api_key"], **body)).status_code == 200
    await post(g, "/rl/end_session", made["api_key"])
    late = await post(g, "/rl/set_reward", made["api_key"], interaction_id=second, reward=2.0)
    assert late.status_code == 200, "AReaL's gateway rewards after the end, before the export"
    found = await export(g, made["session_id"], discount=0.0)
    assert {name: item["reward"] for name, item in found.items()} == {first: 0.25, second: 2.0}


async def test_ending_twice_is_ending_once(g: Running) -> None:
    made = await ended(g, "one")
    for _ in range(2):
        again = await post(g, "/rl/end_session", made["api_key"])
        assert (again.status_code, again.json()["interaction_count"]) == (200, 1)
        await export(g, made["session_id"])


# -- capacity -------------------------------------------------------------------------------------------------------


async def test_each_grant_starts_one_session(g: Running) -> None:
    body = {"task_id": "5"}
    refused = await g.admin.post("/rl/start_session", json=body)
    assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
    for number in (1, 2):
        assert (await g.admin.post("/grant_capacity")).json() == {"capacity": number}
    many = await asyncio.gather(*[g.admin.post("/rl/start_session", json=body) for _ in range(5)])
    assert sorted(one.status_code for one in many) == [200, 200, 429, 429, 429]
    assert g.core.sessions.process.capacity == 0


async def test_no_more_is_granted_than_may_be_open() -> None:
    async with gateway(limits={"sessions": 2}) as g:
        granted = [(await g.admin.post("/grant_capacity")).json()["capacity"] for _ in range(3)]
        assert granted == [1, 2, 2]


async def test_a_start_that_fails_gives_its_place_back() -> None:
    async with gateway(limits={"sessions": 1}) as g:
        await g.session()
        await g.admin.post("/grant_capacity")
        assert (await g.admin.post("/rl/start_session", json={"task_id": "5"})).status_code == 429
        assert g.core.sessions.process.capacity == 1


@pytest.mark.parametrize("written", [True, False], ids=["that is written", "that is not written"])
async def test_a_start_that_is_cancelled_while_its_place_is_taken_gives_it_back(*, written: bool) -> None:
    latch, disk = Latch(), MemoryDisk()
    async with MemoryStore(disk, gate=latch) as store, gateway(store=store) as g:
        await g.admin.post("/grant_capacity")
        latch.shut()
        starting = asyncio.ensure_future(Areal(g.core).start("5", "sk-whatever", Key(Scope.ADMIN)))
        await latch.reached.wait()
        starting.cancel()
        disk.fail_next = 0 if written else 1
        latch.open()
        with pytest.raises(asyncio.CancelledError):
            await starting
        assert (g.core.sessions.process.capacity, len(g.core.sessions.live)) == (1, 0)


async def test_a_grant_survives_the_process_and_a_start_uses_it_up_for_good(tmp_path: Path) -> None:
    disk = MemoryDisk()
    async with MemoryStore(disk) as store, gateway(store=store, folder=tmp_path) as g:
        made = await start(g, api_key="as the trainer said")
        for _ in range(2):
            await g.admin.post("/grant_capacity")
    async with MemoryStore(disk) as store, gateway(store=store, folder=tmp_path) as g:
        assert g.core.sessions.process.capacity == 2
        name = await ask(g, made["api_key"], "one")
        await post(g, "/rl/end_session", made["api_key"])
        assert list(await export(g, made["session_id"])) == [name]
        assert await g.core.sessions.retire(-1.0) == 1
    async with MemoryStore(disk) as store, gateway(store=store, folder=tmp_path) as g:
        assert g.core.sessions.process.capacity == 2
        said = [record for _, _, record in store.scan() if isinstance(record, CapacityChanged)]
        assert [record.by for record in said] == [2]


# -- keys -----------------------------------------------------------------------------------------------------------


async def test_a_given_key_is_the_sessions_until_another_has_it(g: Running) -> None:
    given = "sk-whatever"
    first = await start(g, api_key=given)
    assert first["api_key"] == given
    await ask(g, given, "one")
    await g.admin.post("/grant_capacity")
    bound = await g.admin.post("/rl/start_session", json={"task_id": "6", "api_key": given})
    assert (bound.status_code, g.core.sessions.process.capacity) == (409, 1)
    await post(g, "/rl/end_session", given)
    second = await start(g, api_key=given)
    await ask(g, given, "two")
    turns = (await g.admin.get(f"/v1/sessions/{second['session_id']}")).json()["turns"]
    assert turns == 1
    assert len(await export(g, first["session_id"])) == 1, "the trainer names the session, not its key"
    await ask(g, given, "three")


async def test_a_key_of_ours_is_given_to_the_next_session(g: Running) -> None:
    first = await ended(g, "one")
    second = await start(g, api_key=first["api_key"])
    await ask(g, first["api_key"], "two")
    assert (await g.admin.get(f"/v1/sessions/{second['session_id']}")).json()["turns"] == 1


async def test_one_given_key_started_twice_at_once_is_one_session(g: Running) -> None:
    for _ in range(2):
        await g.admin.post("/grant_capacity")
    body = {"task_id": "5", "api_key": "sk-whatever"}
    both = await asyncio.gather(*[g.admin.post("/rl/start_session", json=body) for _ in range(2)])
    assert sorted(one.status_code for one in both) == [200, 409]
    assert g.core.sessions.process.capacity == 1


@pytest.mark.parametrize("given", [OWN, admin_key(), admin_key(Scope.REWARD, session="5")])
async def test_a_key_that_opens_more_is_no_sessions(g: Running, given: str) -> None:
    await g.admin.post("/grant_capacity")
    answer = await g.admin.post("/rl/start_session", json={"task_id": "5", "api_key": given})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "api_key")
    assert g.core.sessions.process.capacity == 1


Asked = Callable[[Running], Awaitable[httpx.Response]]


def call(path: str, key: str | None = "admin", **body: Any) -> Asked:
    """`key`: admin, session, ended, exported, aborted, ours, or as it is."""

    async def send(g: Running) -> httpx.Response:
        made: dict[str, Any] = {}
        if key in ("session", "ended", "exported", "aborted"):
            made = await (start(g) if key == "session" else ended(g, "one"))
        if key == "exported":
            await export(g, made["session_id"])
        if key == "aborted":
            await g.admin.post(f"/v1/sessions/{made['session_id']}/abort")
        keys = {"admin": admin_key(), "ours": admin_key(Scope.AGENT, session="nobody"), None: ""}
        text = made.get("api_key") or keys.get(key, key)
        async with client(g.origin) as http:
            headers = bearer(text) if text else {}
            return await http.post(path, content=json.dumps(body), headers=headers)

    return send


STATUSES: dict[str, tuple[Asked, int]] = {
    "no key is 401": (call("/grant_capacity", None), 401),
    "another key than the admin's is 403": (call("/grant_capacity", "areal-admin-key"), 403),
    "a session's key grants nothing": (call("/grant_capacity", "session"), 403),
    "a session's key starts nothing": (call("/rl/start_session", "session", task_id="1"), 403),
    "a session's key exports nothing": (call("/export_trajectories", "session", session_id="x"), 403),
    "a start without a task is 422": (call("/rl/start_session"), 422),
    "a task that is a number is 422": (call("/rl/start_session", task_id=5), 422),
    "half a character in a task is 422": (call("/rl/start_session", task_id="\ud800"), 422),
    "a start before any grant is 429": (call("/rl/start_session", task_id="1", api_key=OWN), 429),
    "an unknown session key is 401": (call("/rl/set_reward", "sk-unknown", reward=1.0), 401),
    "an admin has no session to reward": (call("/rl/set_reward", reward=1.0), 403),
    "a session that was forgotten is gone": (call("/rl/set_reward", "ours", reward=1.0), 410),
    "no interaction yet is 400": (call("/rl/set_reward", "session", reward=1.0), 400),
    "an unknown interaction is 400": (call("/rl/set_reward", "ended", reward=1.0, interaction_id="x"), 400),
    "a reward that is no number is 422": (call("/rl/set_reward", "session", reward="much"), 422),
    "a reward beyond float32 is 422": (call("/rl/set_reward", "session", reward=1e39), 422),
    "a reward of NaN is 422": (call("/rl/set_reward", "session", reward=float("nan")), 422),
    "no reward is 422": (call("/rl/set_reward", "session"), 422),
    "a reward after the export is 410": (call("/rl/set_reward", "exported", reward=1.0), 410),
    "a reward of an aborted session is 410": (call("/rl/set_reward", "aborted", reward=1.0), 410),
    "an end after the export is fine": (call("/rl/end_session", "exported"), 200),
    "an end of an aborted session is 410": (call("/rl/end_session", "aborted"), 410),
    "an end with an unknown key is 401": (call("/rl/end_session", "sk-unknown"), 401),
    "a call after the end is 410": (
        call("/chat/completions", "ended", model="m", messages=[{"role": "user", "content": "x"}]),
        410,
    ),
    "an unknown session is 404": (call("/export_trajectories", session_id="nobody"), 404),
    "an export of nothing is 422": (call("/export_trajectories"), 422),
    "a discount of text is 422": (call("/export_trajectories", session_id="x", discount="half"), 422),
    "the key of AReaL's own configuration grants": (call("/grant_capacity", OWN), 200),
}


async def test_a_reward_that_stands_twice_is_422(g: Running) -> None:
    made = await start(g)
    async with client(g.origin) as http:
        body = '{"reward": 1.0, "reward": 0.0}'
        answer = await http.post("/rl/set_reward", content=body, headers=bearer(made["api_key"]))
    assert answer.status_code == 422
    assert "reward: stands there twice" in answer.text


@pytest.mark.parametrize("case", STATUSES)
async def test_every_status_is_areals(g: Running, case: str) -> None:
    send, status = STATUSES[case]
    answer = await send(g)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"


BAD_EXPORTS: dict[str, tuple[dict[str, Any], int]] = {
    "a style that is none": ({"style": "merged"}, 400),
    "a discount over one": ({"discount": 2.0}, 400),
}


@pytest.mark.parametrize("case", BAD_EXPORTS)
async def test_a_bad_export_changes_nothing(g: Running, case: str) -> None:
    body, status = BAD_EXPORTS[case]
    made = await ended(g, "one")
    answer = await g.admin.post("/export_trajectories", json={"session_id": made["session_id"], **body})
    assert answer.status_code == status, answer.text
    assert answer.json()["error"]["param"] in body
    assert g.core.sessions.get(made["session_id"]).phase is SessionPhase.COMPLETE


async def test_an_export_of_an_aborted_session_is_410(g: Running) -> None:
    made = await ended(g, "one")
    await g.admin.post(f"/v1/sessions/{made['session_id']}/abort")
    answer = await g.admin.post("/export_trajectories", json={"session_id": made["session_id"]})
    assert answer.status_code == 410


SPOKEN: dict[str, tuple[str, dict[str, Any]]] = {
    "chat completions": ("/chat/completions", {"messages": [{"role": "user", "content": "hi"}]}),
    "responses": ("/responses", {"input": "hi"}),
    "messages": ("/messages", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}),
    "completions": ("/completions", {"prompt": "hi"}),
}


@pytest.mark.parametrize("prefix", ["", "/v1"])
@pytest.mark.parametrize(("path", "body"), SPOKEN.values(), ids=SPOKEN)
async def test_every_protocol_under_the_session_key_and_a_reward_by_its_answers_id(
    g: Running, prefix: str, path: str, body: dict[str, Any]
) -> None:
    made = await start(g)
    answer = await post(g, prefix + path, made["api_key"], model="default", **body)
    assert answer.status_code == 200, answer.text
    named = await post(g, "/rl/set_reward", made["api_key"], reward=0.5, interaction_id=answer.json()["id"])
    assert named.status_code == 200, named.text
    assert (await post(g, "/rl/end_session", made["api_key"])).status_code == 200
    (interaction,) = (await export(g, made["session_id"])).values()
    assert interaction["reward"] == 0.5


async def test_a_key_by_x_api_key_is_as_good(g: Running) -> None:
    async with client(g.origin) as http:
        assert (await http.post("/grant_capacity", headers={"x-api-key": OWN})).status_code == 200


async def test_the_own_admin_key_opens_areals_endpoints_only(g: Running) -> None:
    async with client(g.origin, OWN) as http:
        assert (await http.post("/grant_capacity")).status_code == 200
        assert (await http.get("/v1/status")).status_code == 401


async def test_a_trainers_key_is_for_its_job() -> None:
    async with (
        gateway(lambda ids, number: f"answer {number}", job="") as g,  # of any job
        client(g.origin, admin_key(Scope.TRAINER, job="a")) as mine,
    ):
        await mine.post("/grant_capacity")
        made = (await mine.post("/rl/start_session", json={"task_id": "5"})).json()
        await post(g, "/rl/end_session", made["api_key"])
        async with client(g.origin, admin_key(Scope.TRAINER, job="b")) as other:
            body = {"session_id": made["session_id"]}
            assert (await other.post("/export_trajectories", json=body)).status_code == 403
        assert (await mine.post("/export_trajectories", json=body)).status_code == 200


async def test_an_agent_of_ours_may_not_reward_itself_this_way(g: Running) -> None:
    agent = await g.session()
    await agent.ask("one")
    answer = await post(g, "/rl/set_reward", agent.handle["api_key"], reward=1.0)
    assert answer.status_code == 403


async def test_other_sessions_are_still_asked_for_a_model_that_is_served(g: Running) -> None:
    agent = await g.session()
    assert (await agent.post("one", model="default")).status_code == 404


@pytest.mark.parametrize("task", ["5", "a task, with words", "../..", "", "x" * 512])
async def test_any_task_id_names_a_session(g: Running, task: str) -> None:
    one, other = await start(g, task), await start(g, task)
    assert one["session_id"] != other["session_id"]
    await ask(g, one["api_key"], "one")


# -- clients that vanish --------------------------------------------------------------------------------------------


async def test_sessions_whose_clients_are_gone_are_aborted() -> None:
    clock = [1e9]
    async with gateway(now=lambda: clock[0]) as g:
        lost = await start(g, api_key="sk-lost")
        ours = await g.session()
        clock[0] += STALE_S
        kept = await start(g)
        clock[0] += SWEEP_S
        last = await start(g)
        states = [g.core.sessions.get(one).phase for one in (
            lost["session_id"], kept["session_id"], last["session_id"], ours.id,
        )]  # fmt: skip
        assert states == [SessionPhase.ABORTED, SessionPhase.OPEN, SessionPhase.OPEN, SessionPhase.OPEN]
        assert (await post(g, "/rl/end_session", "sk-lost")).status_code == 401


@pytest.mark.parametrize("step", [0.0, 2 * STALE_S, -2 * STALE_S], ids=["none", "ahead", "back"])
async def test_a_client_that_slept_with_its_machine_is_not_gone(step: float) -> None:
    """Of a step back too: it must not keep those that are gone, either."""
    wall, steady = [1e9], [5.0]
    async with gateway(now=lambda: wall[0], steady=lambda: steady[0]) as g:
        ours = await start(g)
        await ask(g, ours["api_key"], "one")
        wall[0], steady[0] = wall[0] + step + SWEEP_S, steady[0] + SWEEP_S
        await start(g)
        assert g.core.sessions.get(ours["session_id"]).phase is SessionPhase.OPEN
        await ask(g, ours["api_key"], "two")
        wall[0], steady[0] = wall[0] + STALE_S - 1.0, steady[0] + STALE_S - 1.0
        await start(g)
        assert g.core.sessions.get(ours["session_id"]).phase is SessionPhase.OPEN
        steady[0] += SWEEP_S
        await start(g)
        assert g.core.sessions.get(ours["session_id"]).phase is SessionPhase.ABORTED


async def test_a_client_that_waited_for_its_gateway_is_not_gone() -> None:
    disk, wall = MemoryDisk(), [1e9]
    async with MemoryStore(disk) as store, gateway(now=lambda: wall[0], store=store) as g:
        ours = await start(g)
    wall[0] += 2 * STALE_S
    async with MemoryStore(disk) as store, gateway(now=lambda: wall[0], store=store) as g:
        await start(g)
        assert g.core.sessions.get(ours["session_id"]).phase is SessionPhase.OPEN


# -- configuration --------------------------------------------------------------------------------------------------

LISTENS: dict[str, tuple[dict[str, Any], str, bool]] = {
    "AReaL's default on loopback": ({"listen": {"host": "127.0.0.1"}}, "areal-admin-key", True),
    "AReaL's default by name": ({"listen": {"host": "localhost"}}, "areal-admin-key", True),
    "AReaL's default for everybody": ({"listen": {"host": "0.0.0.0"}}, "areal-admin-key", False),
    "AReaL's default on a socket for everybody": (
        {"listen": {"fd": 3}, "origin": "http://10.0.0.5:8000"}, "areal-admin-key", False,
    ),
    "AReaL's default on a socket of loopback": (
        {"listen": {"fd": 3}, "origin": "http://127.0.0.1:8000"}, "areal-admin-key", True,
    ),
    "AReaL's default on a socket that nobody knows": ({"listen": {"fd": 3}}, "areal-admin-key", False),
    "a good key for everybody": ({"listen": {"host": "0.0.0.0"}}, "0123456789abcdef", True),
    "a key to guess": ({}, "short", False),
    "a key of the environment": ({}, "$(AREAL_KEY)", True),
}  # fmt: skip


@pytest.mark.parametrize("case", LISTENS)
def test_no_default_key_off_loopback(case: str, tmp_path: Path) -> None:
    said, key, good = LISTENS[case]
    path = tmp_path / "gateway.json"
    path.write_text(
        json.dumps(
            {
                "journal": "j",
                "engine": {"wait": True},
                "model": {"name": "m", "tokenizer": str(MODEL)},
                "secret_file": "s",
                "areal_admin_key": key,
                **said,
            }
        )
    )
    env = {"AREAL_KEY": "from the environment"}
    if good:
        assert config.load(path, env).areal_admin_key == env.get(key[2:-1], key)
    else:
        with pytest.raises(BadManifest) as raised:
            config.load(path, env)
        assert raised.value.field == "areal_admin_key"
