"""Jobs may share a signing secret; their keys are no keys of each other's all the same."""

from __future__ import annotations

from typing import Any

import pytest

from sandgate.contract.keys import Scope
from tests.support.gateway import admin_key, bearer, client, gateway, user

CONTROLS: dict[str, tuple[str, str, Any]] = {
    "pause": ("POST", "/v1/pause", None),
    "resume": ("POST", "/v1/resume", None),
    "set the policy version": ("PUT", "/v1/policy-version", {"version": 9}),
    "say that a trainer lives": ("POST", "/v1/heartbeat", {}),
    "read the status": ("GET", "/v1/status", None),
    "follow events": ("GET", "/v1/events?wait_s=0", None),
    "list sessions": ("GET", "/v1/sessions", None),
    "open sessions": ("POST", "/v1/sessions", {}),
    "look at a session": ("GET", "/v1/sessions/s0", None),
    "abort a session": ("POST", "/v1/sessions/s0/abort", None),
    "lease": ("POST", "/v1/leases", {}),
    "renew a lease": ("POST", "/v1/leases/l0/renew", {}),
    "acknowledge a lease": ("POST", "/v1/leases/l0/ack", None),
    "give a lease back": ("POST", "/v1/leases/l0/nack", None),
    "close groups": ("POST", "/v1/groups/close", {"uid": "q"}),
    "push tasks": ("POST", "/v1/tasks", {"tasks": [{"uid": "q"}]}),
    "move the engines": ("PUT", "/v1/engines", {"urls": []}),
    "grant capacity": ("POST", "/grant_capacity", None),
    "start AReaL's sessions": ("POST", "/rl/start_session", {"task_id": "t"}),
}


@pytest.mark.parametrize("scope", [Scope.TRAINER, Scope.ADMIN])
@pytest.mark.parametrize(("method", "path", "body"), CONTROLS.values(), ids=CONTROLS)
async def test_the_keys_of_another_job_control_nothing(
    scope: Scope, method: str, path: str, body: Any
) -> None:
    async with gateway(["hello"]) as g:
        agent = await g.session(session_id="s0", uid="q")
        await agent.ask("hi")
        await g.finalize(agent)
        await g.admin.post("/v1/leases", json={"lease_id": "l0"})
        async with client(g.origin, admin_key(scope, job="another")) as foreign:
            answer = await foreign.request(method, path, json=body)
        assert answer.status_code == 403, answer.text
        status = (await g.admin.get("/v1/status")).json()
        assert (status["paused"], status["policy_version"], status["trainer_seen_at"]) == (False, 0, None)
        assert status["sessions"] == 1
        async with client(g.origin, admin_key(scope, job="shop-job")) as own:
            answer = await own.request(method, path, json=body)
        assert answer.status_code != 403 or path == "/v1/engines", answer.text


async def test_a_session_of_the_same_name_in_another_job_has_other_keys() -> None:
    async with gateway(["hello"] * 3) as g:
        mine = await g.session(session_id="s0", reward_source="agent", task={"uid": "q"})
        await mine.ask("hi")
        for scope in (Scope.AGENT, Scope.REWARD, Scope.TASK):
            key = bearer(admin_key(scope, job="another", session="s0"))
            for method, path, body in (
                ("POST", "/v1/chat/completions", mine.body(user("hi"))),
                ("GET", "/sessions/s0/v1/models", None),
                ("POST", "/complete", {}),
                ("POST", "/v1/sessions/s0/reward", {"reward": 1.0}),
                ("GET", "/v1/sessions/s0/task", None),
                ("POST", "/rl/set_reward", {"reward": 1.0}),
                ("POST", "/rl/end_session", None),
            ):
                answer = await g.admin.request(method, g.origin + path, json=body, headers=key)
                assert answer.status_code == 403, f"{scope} {path}: {answer.text}"
        summary = (await g.admin.get("/v1/sessions/s0")).json()
        assert (summary["state"], summary["turns"], summary["reward"]) == ("open", 1, None)


LEASES: dict[str, tuple[str, Any]] = {
    "acknowledge it": ("/v1/leases/l0/ack", None),
    "acknowledge it among others": ("/v1/leases/ack", {"lease_ids": ["l0"]}),
    "give it back": ("/v1/leases/l0/nack", None),
    "renew it": ("/v1/leases/l0/renew", {"ttl_s": 900}),
    "renew it among others": ("/v1/leases/renew", {"lease_ids": ["l0"], "ttl_s": 900}),
}


@pytest.mark.parametrize(("path", "body"), LEASES.values(), ids=LEASES)
async def test_at_a_gateway_of_any_job_a_lease_is_its_own_jobs(path: str, body: Any) -> None:
    many = body is not None and "lease_ids" in body
    async with (
        gateway(["hello"], job="") as g,
        client(g.origin, admin_key(Scope.TRAINER, job="a")) as own,
        client(g.origin, admin_key(Scope.TRAINER, job="b")) as foreign,
    ):
        agent = await g.session(job="a", uid="q")
        await agent.ask("hi")
        await g.finalize(agent)
        assert (await own.post("/v1/leases", json={"lease_id": "l0"})).json()["lease_id"] == "l0"
        until = g.core.sessions.book.leases["l0"].until
        answer = await foreign.post(path, json=body)
        why = "this key is for another job"
        assert (answer.status_code, why in answer.text) == (200 if many else 403, True), answer.text
        held = g.core.sessions.book.leases["l0"]
        assert (held.until, held.over, g.core.sessions.book.outstanding("l0")) == (until, False, True)
        answer = await own.post(path, json=body)
        assert (answer.status_code, answer.json().get("refused", {})) == (200, {})


async def test_what_describes_the_gateway_is_shown_where_its_settings_say_so() -> None:
    async with gateway() as g, client(g.origin) as anybody:
        got = {path: (await anybody.get(path)).status_code for path in ("/docs", "/redoc", "/openapi.json")}
        assert got == {"/docs": 404, "/redoc": 404, "/openapi.json": 401}
        agent = {"authorization": f"Bearer {(await g.session()).handle['api_key']}"}
        assert (await anybody.get("/openapi.json", headers=agent)).status_code == 403
        assert (await g.admin.get("/openapi.json")).status_code == 200
        assert (await anybody.get("/metrics")).status_code == 200
    async with gateway(docs=True, metrics=False) as g, client(g.origin) as anybody:
        assert (await anybody.get("/docs")).status_code == 200
        assert (await anybody.get("/openapi.json")).status_code == 200
        assert (await anybody.get("/metrics")).status_code == 404
