"""A task's `data` is the verifier's and the trainer's: an agent's sandbox is given `data.public`, no more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.keys import Scope
from tests.adversary.test_results_always_seal import up as up
from tests.operator.cluster_rig import NAMESPACE, Box, World, manifest
from tests.operator.rig import job, rig
from tests.operator.test_cluster import is_so
from tests.support.gateway import admin_key, bearer, client, gateway

HERE = Path(__file__).parent
TRUTH = {"answer": "GROUND TRUTH", "public": {"hint": "it is green"}}
SEEN = {"public": {"hint": "it is green"}}

DOCUMENTS: dict[str, tuple[Any, Any]] = {
    "only the public part of its data": (
        {"uid": "q", "prompt": "p", "data": TRUTH, "sample_index": 1},
        {"uid": "q", "prompt": "p", "data": SEEN, "sample_index": 1},
    ),
    "an agent sees nothing of data without a public part": (
        {"uid": "q", "prompt": "p", "data": {"answer": "GROUND"}, "sample_index": 1},
        {"uid": "q", "prompt": "p", "data": None, "sample_index": 1},
    ),
    "an agent sees nothing of data that is no object": (
        {"uid": "q", "prompt": "p", "data": ["GROUND", "public"], "sample_index": 1},
        {"uid": "q", "prompt": "p", "data": None, "sample_index": 1},
    ),
    "an agent sees nothing that somebody put beside the fields": (
        {"uid": "q", "prompt": "p", "solution": "GROUND", "tests": ["GROUND"]},
        {"uid": "q", "prompt": "p", "data": None, "sample_index": 0},
    ),
}


@pytest.mark.parametrize(("given", "seen"), DOCUMENTS.values(), ids=DOCUMENTS)
async def test_an_agents_key_reads_of_a_task(given: Any, seen: Any) -> None:
    async with gateway() as g:
        agent = await g.session(task=given)
        answer = await g.admin.get(f"/v1/sessions/{agent.id}/task", headers=bearer(agent.handle["api_key"]))
        assert (answer.status_code, answer.json()) == (200, seen)
        whole = await g.admin.get(f"/v1/sessions/{agent.id}/task")
        assert whole.json() == given


async def test_a_task_of_another_shape_is_not_the_agents() -> None:
    async with gateway() as g:
        agent = await g.session(task="GROUND TRUTH in a text")
        answer = await g.admin.get(f"/v1/sessions/{agent.id}/task", headers=bearer(agent.handle["api_key"]))
        assert answer.status_code == 404
        assert "GROUND" not in answer.text


async def test_the_fetchers_key_reads_its_own_task_and_opens_nothing_else() -> None:
    async with gateway() as g:
        mine, other = (
            await g.session(task=DOCUMENTS["only the public part of its data"][0]),
            await g.session(),
        )
        key = bearer(admin_key(Scope.TASK, job="shop-job", session=mine.id))
        told = await g.admin.get(f"/v1/sessions/{mine.id}/task", headers=key)
        assert told.json()["data"] == TRUTH
        doors = {
            "another session's task": ("GET", f"/v1/sessions/{other.id}/task", None),
            "its reward": ("POST", f"/v1/sessions/{mine.id}/reward", {"reward": 1.0}),
            "its state": ("GET", f"/v1/sessions/{mine.id}", None),
            "the model": ("POST", f"/sessions/{mine.id}/v1/chat/completions", mine.body("hi")),
            "the end": ("POST", f"/sessions/{mine.id}/complete", {}),
            "leases": ("POST", "/v1/leases", {}),
        }
        for name, (method, path, body) in doors.items():
            answer = await g.admin.request(method, path, json=body, headers=key)
            assert answer.status_code == 403, name


@pytest.mark.slow
@pytest.mark.timeout(200)
@pytest.mark.parametrize("delivery", ["Env", "File"])
async def test_a_local_agent_finds_no_ground_truth_where_it_was_sent(delivery: str, tmp_path: Path) -> None:
    container = {"command": ["python", str(HERE / "looks.py")]}
    async with rig(tmp_path) as up:
        wanted = job(
            reward={"source": "agent"},
            tasks={"inline": [{"uid": "q", "prompt": "hello", "data": TRUTH}]},
            agent={
                "backend": "Process",
                "taskDelivery": delivery,
                "template": {"spec": {"containers": [container]}},
            },
        )
        assert (await up.run(wanted)).complete
        (row,) = up.rows()
        document = {"uid": "q", "prompt": "hello", "data": SEEN, "sample_index": 0}
        assert row.failure_reason is None
        assert row.reward_info["task"] == document
        assert row.reward_info["file"] == (document if delivery == "File" else None)
        assert row.reward_info["found"] is False


@pytest.mark.parametrize("delivery", ["Env", "File"])
async def test_a_pods_agent_finds_no_ground_truth_and_its_verifier_does(delivery: str, up: World) -> None:
    found: dict[str, Any] = {}

    async def looks(box: Box) -> int:
        found["agent"] = dict(box.env)
        await box.ask("one")
        origin = up.gateways["shop-gateway-0"].origin
        async with client(origin, box.env["OPENAI_API_KEY"]) as http:
            path = f"/v1/sessions/{box.env['SANDGATE_SESSION_ID']}/task"
            found["task"] = (await http.get(path)).json()
        return 0

    async def judges(box: Box) -> int:
        pod = up.kube.objects["Pod", NAMESPACE, box.name]
        fetcher = up._env(pod["spec"]["initContainers"][0]["env"])
        async with client(up.gateways["shop-gateway-0"].origin, fetcher["SANDGATE_KEY"]) as http:
            found["judge"] = (await http.get(fetcher["SANDGATE_TASK_URL"].partition(":8000")[2])).json()
        assert fetcher["SANDGATE_KEY"] not in box.env.values()
        box.message = json.dumps({"reward": 1.0})
        return 0

    up.agents = [("-v", judges), ("shop-", looks)]
    up.operator_up()
    body = manifest("q hello", reward={"source": "verifier", "verifier": {"container": {"image": "v:1"}}})
    body["spec"]["tasks"] = {"inline": [{"uid": "q", "prompt": "hello", "data": TRUTH}]}
    body["spec"]["agent"]["taskDelivery"] = delivery
    await up.kube.create(body)
    await is_so(up, "Complete")
    document = {"uid": "q", "prompt": "hello", "data": SEEN, "sample_index": 0}
    assert found["task"] == document
    assert found["judge"] == {**document, "data": TRUTH}
    assert "GROUND" not in json.dumps(found["agent"])
    pods = [one for (kind, _, _), one in up.kube.objects.items() if kind == "Pod"]
    assert "GROUND" not in json.dumps(pods)
