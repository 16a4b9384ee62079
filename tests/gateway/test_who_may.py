"""What each key opens, and that none of them is ever written anywhere."""

from __future__ import annotations

import logging
from typing import Any

import httpx
import pytest

from sandgate.contract.keys import Key, Scope, mint
from tests.support.gateway import Running, admin_key, bearer, gateway

AGENT_MAY_NOT = {
    "set a reward": ("POST", "/v1/sessions/{id}/reward", {"reward": 1.0}),
    "set another session's reward": ("POST", "/v1/sessions/{other}/reward", {"reward": 1.0}),
    "finalize": ("POST", "/v1/sessions/{id}/finalize", {}),
    "abort": ("POST", "/v1/sessions/{id}/abort", {}),
    "complete another session": ("POST", "/sessions/{other}/complete", {}),
    "complete by the control API": ("POST", "/v1/sessions/{id}/complete", {}),
    "speak in another session": ("POST", "/sessions/{other}/v1/chat/completions", {"model": "shop"}),
    "list models of another session": ("GET", "/sessions/{other}/v1/models", None),
    "read its tree": ("GET", "/v1/sessions/{id}/tree", None),
    "read its own state": ("GET", "/v1/sessions/{id}", None),
    "wait for itself": ("GET", "/v1/sessions/{id}/wait", None),
    "list sessions": ("GET", "/v1/sessions", None),
    "open sessions": ("POST", "/v1/sessions", {}),
    "lease": ("POST", "/v1/leases", {}),
    "ack": ("POST", "/v1/leases/x/ack", None),
    "nack": ("POST", "/v1/leases/x/nack", None),
    "renew": ("POST", "/v1/leases/x/renew", {"ttl_s": 9}),
    "renew many": ("POST", "/v1/leases/renew", {"lease_ids": ["x"]}),
    "close groups": ("POST", "/v1/groups/close", {"uid": "q"}),
    "follow events": ("GET", "/v1/events", None),
    "pause": ("POST", "/v1/pause", None),
    "resume": ("POST", "/v1/resume", None),
    "set the policy version": ("PUT", "/v1/policy-version", {"version": 1}),
    "read the status": ("GET", "/v1/status", None),
    "say that a trainer lives": ("POST", "/v1/heartbeat", {}),
    "push tasks": ("POST", "/v1/tasks", {"tasks": []}),
    "read another session's task": ("GET", "/v1/sessions/{other}/task", None),
    "read the task queue": ("GET", "/v1/tasks", None),
    "forget tasks": ("POST", "/v1/tasks/forget", {"upto": 0}),
    "move the engines": ("PUT", "/v1/engines", {"urls": []}),
}
TRAINER_MAY_NOT = ("read the task queue", "forget tasks", "move the engines")


@pytest.fixture
async def g() -> Any:
    async with gateway(["hello"] * 9) as running:
        yield running


@pytest.mark.parametrize(
    ("scope", "what"),
    [
        (scope, what)
        for what in AGENT_MAY_NOT
        for scope in ("agent", "reward")
        if (scope, what) != ("reward", "set a reward")
    ],
)
async def test_a_session_key_may_not(g: Running, scope: str, what: str) -> None:
    method, path, body = AGENT_MAY_NOT[what]
    mine, other = await g.session(), await g.session()
    key = mine.handle["api_key" if scope == "agent" else "reward_key"]
    url = g.origin + path.format(id=mine.id, other=other.id)
    answer = await g.admin.request(method, url, json=body, headers=bearer(key))
    assert answer.status_code == 403, answer.text
    assert answer.json()["error"]["message"]
    assert answer.headers["x-sandgate-reason"] == "Forbidden"


@pytest.mark.parametrize("what", TRAINER_MAY_NOT)
async def test_a_trainer_may_not(g: Running, what: str) -> None:
    method, path, body = AGENT_MAY_NOT[what]
    answer = await g.admin.request(method, path, json=body, headers=bearer(admin_key(Scope.TRAINER)))
    assert (answer.status_code, answer.headers["x-sandgate-reason"]) == (403, "Forbidden")


async def test_the_reward_key_sets_its_own_sessions_reward_and_opens_no_model(g: Running) -> None:
    mine = await g.session()
    await mine.ask("hi")
    key = bearer(mine.handle["reward_key"])
    set_it = await g.admin.post(mine.handle["reward_url"], json={"reward": 0.5}, headers=key)
    assert set_it.status_code == 200
    spoke = await g.admin.post(
        mine.handle["base_url"] + "/chat/completions", json=mine.body("hi"), headers=key
    )
    assert spoke.status_code == 403
    models = await g.admin.get(mine.handle["base_url"] + "/models", headers=key)
    assert models.status_code == 403


async def test_an_agent_rewards_itself_only_where_the_job_says_so(g: Running) -> None:
    mine = await g.session(reward_source="agent")
    await mine.ask("hi")
    answer = await g.admin.post(
        mine.handle["reward_url"], json={"reward": 0.5}, headers=bearer(mine.handle["api_key"])
    )
    assert answer.status_code == 200


BAD_KEYS = {
    "no key": {},
    "an empty key": {"x-api-key": ""},
    "a key of another kind": {"authorization": "Basic dXNlcjpwYXNz"},
    "a key of another service": {"authorization": "Bearer sk-proj-1234567890"},
    "a key with a tampered payload": "payload",
    "a key with a tampered signature": "signature",
    "expired": "expired",
    "a key of another secret": "secret",
    "a key that is not ASCII": {"x-api-key": "sk-sg-ä".encode("latin-1")},
    "a very long key": {"authorization": "Bearer sk-sg-" + "a" * 5000},
}


def _spoilt(key: str, how: str) -> str:
    head, dot, tail = key.partition(".")
    if how == "payload":
        return head[:-2] + ("A" if head[-2] != "A" else "B") + head[-1] + dot + tail
    return head + dot + ("A" if tail[0] != "A" else "B") + tail[1:]


@pytest.mark.parametrize("where", ["agent", "control"])
@pytest.mark.parametrize("case", BAD_KEYS)
async def test_a_bad_key_is_401(g: Running, case: str, where: str) -> None:
    agent = await g.session()
    headers: Any = BAD_KEYS[case]
    if headers in ("payload", "signature"):
        headers = bearer(_spoilt(agent.handle["api_key"], headers))
    elif headers == "expired":
        headers = bearer(g.core.gate.session_key(Scope.AGENT, "shop-job", agent.id, 1.0))
    elif headers == "secret":
        headers = bearer(mint(b"another secret of enough bytes", Key(Scope.ADMIN)))
    url = agent.handle["base_url"] + "/chat/completions" if where == "agent" else g.origin + "/v1/status"
    async with httpx.AsyncClient(verify=False) as bare:
        answer = await bare.request(
            "POST" if where == "agent" else "GET", url, headers=headers, content=b'{"model":"shop"}'
        )
    assert answer.status_code == 401, answer.text
    assert answer.headers["x-sandgate-reason"] == "Unauthorized"
    if where == "agent":
        error = answer.json()["error"]
        assert (error["type"], error["code"]) == ("authentication_error", "invalid_api_key")


async def test_x_api_key_is_taken_and_the_key_alone_names_the_session(g: Running) -> None:
    agent = await g.session()
    async with httpx.AsyncClient(verify=False, headers={"x-api-key": agent.handle["api_key"]}) as bare:
        by_path = await bare.post(agent.handle["base_url"] + "/chat/completions", json=agent.body("one"))
        by_key = await bare.post(g.origin + "/v1/chat/completions", json=agent.body("two"))
        bare_path = await bare.post(g.origin + "/chat/completions", json=agent.body("three"))
    assert [one.status_code for one in (by_path, by_key, bare_path)] == [200, 200, 200]
    assert len(await g.tree(agent)) == 3


DUMMY = "sk-dummy"
TWO_KEYS: dict[str, tuple[str, str, int]] = {
    "a dummy beside a key": (DUMMY, "own", 200),
    "a key beside a dummy": ("own", DUMMY, 200),
    "one key twice": ("own", "own", 200),
    "two dummies": (DUMMY, "sk-other", 401),
    "keys of two sessions": ("own", "other", 401),
    "keys of two sessions, the other way": ("other", "own", 401),
    "an agent's and an admin's": ("own", "admin", 401),
    "a tampered key beside a dummy": ("spoilt", DUMMY, 401),
}


@pytest.mark.parametrize(("authorization", "x_api_key", "status"), TWO_KEYS.values(), ids=TWO_KEYS)
async def test_of_two_keys_one_may_be_none(
    g: Running, authorization: str, x_api_key: str, status: int
) -> None:
    agent, other = await g.session(), await g.session()
    own = agent.handle["api_key"]
    keys = {"own": own, "other": other.handle["api_key"], "admin": admin_key(), "spoilt": _spoilt(own, "")}
    headers = bearer(keys.get(authorization, authorization)) | {"x-api-key": keys.get(x_api_key, x_api_key)}
    async with httpx.AsyncClient(verify=False, headers=headers) as bare:
        answer = await bare.post(agent.handle["base_url"] + "/chat/completions", json=agent.body("one"))
    assert answer.status_code == status, answer.text


async def test_a_trainers_key_opens_its_own_job_only() -> None:
    async with gateway(["hello"] * 9, job="") as g:  # of any job
        await _own_job_only(g)


async def _own_job_only(g: Running) -> None:
    mine, foreign = await g.session(job="a"), await g.session(job="b")
    key = bearer(admin_key(Scope.TRAINER, job="a"))
    got = {}
    for name, agent in (("own", mine), ("foreign", foreign)):
        base = f"{g.origin}/v1/sessions/{agent.id}"
        got[name] = [
            (await g.admin.get(base, headers=key)).status_code,
            (await g.admin.get(base + "/tree", headers=key)).status_code,
            (await g.admin.post(base + "/reward", json={"reward": 1}, headers=key)).status_code,
            (
                await g.admin.post(
                    agent.handle["base_url"] + "/chat/completions", json=agent.body("x"), headers=key
                )
            ).status_code,
            (await g.admin.post(base + "/finalize", json={}, headers=key)).status_code,
        ]
    assert got == {"own": [200] * 5, "foreign": [403] * 5}
    assert (await g.admin.post("/v1/leases", json={"job": "b"}, headers=key)).status_code == 403
    listed = (await g.admin.get("/v1/sessions", headers=key)).json()["sessions"]
    assert [one["session_id"] for one in listed] == [mine.id]


async def test_no_key_is_in_any_log_or_error_body(
    g: Running, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everything at DEBUG, the web server's own loggers included; good keys, bad keys, refusals and a bug."""
    caplog.set_level(logging.DEBUG)
    server = ("uvicorn", "sandgate", "asyncio", "fastapi", "starlette", "aiohttp")
    for name in server:
        caplog.set_level(logging.DEBUG, logger=name)
    agent = await g.session()
    keys = [agent.handle["api_key"], agent.handle["reward_key"], admin_key()]
    bodies = []
    for key in (*keys, _spoilt(keys[0], "signature")):
        for method, path in (
            ("POST", "/v1/chat/completions"),
            ("GET", "/v1/status"),
            ("POST", f"/v1/sessions/{agent.id}/reward"),
            ("POST", f"/sessions/{agent.id}/nowhere"),
            ("GET", "/nowhere"),
            ("DELETE", "/v1/sessions"),
        ):
            answer = await g.admin.request(method, path, json={"model": 1}, headers=bearer(key))
            bodies.append(answer.text + str(answer.headers))

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(type(g.core.turns), "begin", broken)
    answer = await agent.post("hi")
    assert answer.status_code == 500
    bodies.append(answer.text)
    logged = [
        record.getMessage() + (record.exc_text or "")
        for record in caplog.records
        if record.name.split(".")[0] in server
    ]
    assert any("failed" in line for line in logged), "the bug was logged"
    for text in (*bodies, *logged):
        for key in keys:
            assert key not in text
            assert key.partition(".")[2] not in text, "nor its signature"
