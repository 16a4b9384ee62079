"""The gateway's front door, against a real gateway: every call, every error as itself; a restart is a pause."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web

from sandgate.contract import errors
from sandgate.contract.control_call import error_of
from sandgate.contract.errors import (
    Conflict,
    CorruptRecord,
    Forbidden,
    Gone,
    InvalidBody,
    NotFound,
    Overloaded,
    Paused,
    SandgateError,
    Unauthorized,
    Unavailable,
)
from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.job import RolloutJob
from sandgate.contract.manifest_decoder import decode
from sandgate.contract.session import SessionOutcome, SessionSpec, SessionState
from sandgate.gateway.client import GatewayClient, gateway_client, retries
from sandgate.operator.driver.lost_groups import knows, tell_lost
from sandgate.operator.plan.actions import GroupObserved, SampleObserved
from tests.contract.manifests import spoilt
from tests.support import gateway as support
from tests.support.gateway import Running, admin_key


@pytest.fixture
async def up() -> AsyncIterator[Running]:
    async with support.gateway(["receipt 44", "receipt 45"]) as running:
        yield running


@pytest.fixture
async def client(up: Running) -> AsyncIterator[GatewayClient]:
    async with GatewayClient(up.origin, admin_key(), deadline_s=5.0) as made:
        yield made


def spec(name: str = "s0", **more: Any) -> SessionSpec:
    return SessionSpec(**{"session_id": name, "uid": "q1", "job": "shop-job", **more})


async def turn(up: Running, handle: Any) -> None:
    """One turn by an agent with that handle."""
    agent = up.agent(
        {"session_id": handle.session_id, "base_url": handle.base_url, "api_key": handle.api_key}
    )
    await agent.ask("buy 7 kiwi")


async def test_a_session_from_its_creation_to_its_acknowledgement(up: Running, client: GatewayClient) -> None:
    handle = await client.create(spec(sample_index=0, group_size=1))
    assert handle == await client.create(spec(sample_index=0, group_size=1)), (
        "the same id is the same session"
    )
    assert handle.base_url == f"{up.origin}/sessions/s0/v1"
    await turn(up, handle)
    assert (await client.get("s0")).turns == 1
    assert await client.wait("s0", 0.01) is None
    await client.complete("s0")
    waited = await client.wait("s0", 1.0)
    assert waited is not None
    assert waited.state is SessionState.COMPLETE
    await client.reward("s0", 0.5, info={"why": "test"})
    assert (await client.get("s0")).reward == 0.5
    assert (await client.tree("s0"))["turns"]
    assert await client.lease(max_groups=4, ttl_s=60) is None
    await client.finalize("s0", SessionOutcome(reward=1.0, reward_info={"a": 1}))
    rows = await client.finalize_rows("s0", SessionOutcome(reward=2.0))
    assert [row.reward for row in rows] == [1.0], "the first outcome stands"
    lease = await client.lease(max_groups=4, ttl_s=60, job="shop-job", max_tokens=10_000)
    assert lease is not None
    assert lease.sessions == ("s0",)
    assert lease.groups() == {("shop-job", "q1"): rows}
    assert list(lease.trajectories[0].response_ids[:3]) == support.ids("receipt 44")[:3]
    assert await client.lease(max_groups=4, ttl_s=60) is None
    await client.nack(lease.lease_id)
    again = await client.lease(max_groups=4, ttl_s=60)
    assert again is not None
    await client.ack(again.lease_id)
    await client.ack(again.lease_id)
    assert await client.lease(max_groups=4, ttl_s=60) is None


async def test_many_sessions_at_once_and_page_by_page(
    client: GatewayClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_client, "CREATE_BATCH", 3)
    specs = [spec(f"s{index}", sample_index=index, group_size=8) for index in range(8)]
    handles = await client.create_many(specs)
    assert [one.session_id for one in handles] == [one.session_id for one in specs]
    await client.abort("s3")
    assert [one.session_id async for one in client.sessions(job="shop-job")] == [f"s{n}" for n in range(8)]
    assert [one.session_id async for one in client.sessions(state="aborted")] == ["s3"]
    assert [one async for one in client.sessions(job="another")] == []


async def test_a_group_that_is_closed_gives_what_ended_well(up: Running, client: GatewayClient) -> None:
    for sample in range(2):
        handle = await client.create(spec(f"s{sample}", sample_index=sample, group_size=2))
        await turn(up, handle)
    await client.finalize("s0", SessionOutcome())
    await client.finalize("s1", SessionOutcome(failure_reason=FailureReason.EVICTED, detail="too much"))
    assert (await client.get("s1")).failure_reason == "Evicted"
    assert await client.lease(max_groups=1, ttl_s=60) is None
    await client.close_group("q1", job="shop-job")
    lease = await client.lease(max_groups=1, ttl_s=60)
    assert lease is not None
    assert lease.sessions == ("s0",)


async def test_a_group_that_its_gateway_does_not_know_is_told_once_as_lost(client: GatewayClient) -> None:
    job = decode(RolloutJob, spoilt(("metadata.name", "shop-job")))
    group = GroupObserved(uid="q9", gateway="g0", samples=(SampleObserved(attempt=1), SampleObserved()))
    assert not await knows(client, job, group)
    for _ in range(2):  # idempotent
        await tell_lost(client, job, group)
    assert await knows(client, job, group)
    lease = await client.lease(max_groups=4, ttl_s=60)
    assert lease is not None
    assert (lease.job, lease.uid, lease.trajectories) == ("shop-job", "q9", ())
    await client.ack(lease.lease_id)
    assert await client.lease(max_groups=4, ttl_s=60) is None


async def test_events_tell_what_changed(client: GatewayClient) -> None:
    first = await client.events(0, wait_s=0.0)
    await client.create(spec())
    second = await client.events(first.cursor, wait_s=5.0)
    assert second.sessions == (("s0", "open"),)
    await client.complete("s0")
    third = await client.events(second.cursor, wait_s=5.0)
    assert third.sessions == (("s0", "complete"),)
    assert not third.reset
    assert third.epoch == first.epoch
    assert (await client.events(99_999, wait_s=0.0)).reset


async def test_the_process_is_paused_told_versions_and_looked_at(client: GatewayClient) -> None:
    await client.pause()
    assert (await client.status())["paused"] is True
    await client.resume()
    assert (status := await client.status())["version_told"] is False
    assert status["policy_version"] == 0
    for version in (7, 9):  # the first: then it was told, and what is repeated is old
        await client.repeat_policy_version(version, labelled=False, adapter="")
        status = await client.status()
        told = (status["paused"], status["version_told"], status["policy_version"])
        assert told == (False, True, 7)
    assert await client.ready() == ""
    assert await client.healthy()


ERRORS: dict[str, tuple[Callable[[GatewayClient], Awaitable[Any]], type[SandgateError], str | None]] = {
    "no such session": (lambda client: client.get("none"), NotFound, None),
    "no such lease": (lambda client: client.ack("none"), NotFound, None),
    "no such group": (lambda client: client.close_group("none"), NotFound, None),
    "a body that is wrong": (lambda client: client.create(spec("bad name!")), InvalidBody, "session_id"),
    "a reward that no trainer's float holds": (
        lambda client: client.reward("s0", float("1e300"), interaction_id="none"),
        InvalidBody,
        "reward",
    ),
    "a reward of no turn": (
        lambda client: client.reward("s0", 1.0, interaction_id="none"),
        InvalidBody,
        "interaction_id",
    ),
    "another session of that name": (lambda client: client.create(spec(uid="other")), Conflict, None),
    "a session that was aborted": (lambda client: client.finalize("gone", SessionOutcome()), Gone, None),
}


@pytest.mark.parametrize(("call", "kind", "field"), ERRORS.values(), ids=ERRORS)
async def test_errors_are_what_the_gateway_raised(
    client: GatewayClient,
    call: Callable[[GatewayClient], Awaitable[Any]],
    kind: type[SandgateError],
    field: str | None,
) -> None:
    await client.create(spec())
    await client.create(spec("gone", sample_index=1))
    await client.abort("gone")
    with pytest.raises(kind) as raised:
        await call(client)
    assert type(raised.value) is kind
    assert str(raised.value)
    if field is not None:
        assert getattr(raised.value, "field", None) == field


async def test_keys_are_told_apart(up: Running) -> None:
    async with GatewayClient(up.origin, "sk-sg-wrong") as client:
        with pytest.raises(Unauthorized):
            await client.status()
    handle = up.admin  # the agent's own key opens no control endpoint
    made = await handle.post("/v1/sessions", json={"session_id": "s9"})
    async with GatewayClient(up.origin, made.json()["api_key"]) as client:
        with pytest.raises(Forbidden):
            await client.get("s9")


def every_error() -> list[type[SandgateError]]:
    found: list[type[SandgateError]] = [SandgateError]
    for kind in found:
        found += [one for one in kind.__subclasses__() if one.__module__ == errors.__name__]
    return found


@pytest.mark.parametrize("kind", every_error(), ids=lambda kind: kind.__name__)
def test_every_error_comes_over_the_wire_as_itself(kind: type[SandgateError]) -> None:
    body = json.dumps({"error": {"message": "why", "type": kind.reason, "param": "a.b"}}).encode()
    error = error_of(kind.status, {"x-sandgate-reason": kind.reason, "Retry-After": "3"}, body)
    assert type(error) is kind
    assert (str(error), error.retry_after) == ("why", 3.0)
    assert getattr(error, "field", None) == "a.b"


@pytest.mark.parametrize(
    ("status", "raw", "kind"),
    [
        (503, b"<html>upstream</html>", Unavailable),
        (429, b"", Overloaded),
        (404, b'{"error": "text"}', NotFound),
        (504, b"", errors.EngineFailed),
        (418, b"\xff", SandgateError),
        (400, b"[" * 100_000, errors.BadRequest),
    ],
)
def test_errors_of_proxies_go_by_their_status(status: int, raw: bytes, kind: type[SandgateError]) -> None:
    error = error_of(status, {}, raw)
    assert type(error) is kind
    assert len(str(error)) < 3_000
    assert error.retry_after is None


# -- a gateway that is away for a moment -------------------------------------------------------------------------------


class Flaky:
    """Answers by a list: a status, an exception as a broken connection, or JSON."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.seen: list[str] = []
        self.peers: set[object] = set()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.seen.append(await request.text())
        self.peers.add(request.transport and request.transport.get_extra_info("peername"))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer == "cut":
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if isinstance(answer, int):
            body = {"error": {"message": "not now"}}
            reason = {503: "Paused", 429: "Overloaded"}.get(answer, "BadRequest")
            return web.json_response(
                body, status=answer, headers={"Retry-After": "0", "x-sandgate-reason": reason}
            )
        return web.json_response(answer)


@asynccontextmanager
async def serving(flaky: Flaky, deadline_s: float = 5.0) -> AsyncIterator[GatewayClient]:
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", flaky.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    async with GatewayClient(f"http://127.0.0.1:{port}/", "key", deadline_s=deadline_s) as client:
        yield client
    await runner.cleanup()


@pytest.fixture
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "BACKOFF_S", 0.0)


@pytest.mark.usefixtures("_at_once")
async def test_a_call_is_repeated_word_for_word_until_it_is_answered() -> None:
    flaky = Flaky("cut", 503, 429, {"paused": False})
    async with serving(flaky) as client:
        assert await client.status() == {"paused": False}
        flaky.answers = ["cut", {"session_id": "s", "state": "aborted"}]
        await client.abort("s")
    assert flaky.seen == ["", "", "", "", "{}", "{}"]


@pytest.mark.usefixtures("_at_once")
async def test_what_the_caller_must_change_is_not_repeated() -> None:
    flaky = Flaky(400)
    async with serving(flaky) as client:
        with pytest.raises(errors.BadRequest):
            await client.status()
    assert len(flaky.seen) == 1


async def test_after_the_deadline_the_last_word_is_told() -> None:
    async with serving(Flaky(503), deadline_s=0.05) as client:
        with pytest.raises(Paused, match="not now"):
            await client.status()
    async with serving(Flaky("cut"), deadline_s=0.05) as client:
        with pytest.raises(Unavailable, match="does not answer"):
            await client.status()
        with pytest.raises(Unavailable, match="does not answer"):
            await client.ready()


async def test_nobody_listens() -> None:
    async with GatewayClient("http://127.0.0.1:9", "key", deadline_s=0.05) as client:
        with pytest.raises(Unavailable, match="does not answer"):
            await client.status()


async def test_an_answer_that_was_not_agreed_is_a_corrupt_record() -> None:
    async with serving(Flaky({"a": 1}), deadline_s=0.05) as client:
        with pytest.raises(CorruptRecord, match="not a list"):
            await client.create_many([spec()])
        with pytest.raises(CorruptRecord, match="session_id"):
            await client.create(spec())


async def test_calls_of_one_client_share_its_connections() -> None:
    flaky = Flaky({"paused": False})
    async with serving(flaky) as client:
        for _ in range(20):
            await client.status()
        assert len(flaky.peers) == 1
        await asyncio.gather(*(client.status() for _ in range(20)))
    assert 1 < len(flaky.peers) <= 20
