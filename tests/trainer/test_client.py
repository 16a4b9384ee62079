"""Calls to a gateway: its errors come back as they were raised, and only what is harmless is sent again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from sandgate.contract import control_api, errors
from sandgate.contract.control_call import ControlAnswer, outcome
from sandgate.contract.errors import (
    Conflict,
    CorruptRecord,
    EngineFailed,
    InvalidBody,
    NotFound,
    Overloaded,
    PromptTooLong,
    SandgateError,
    Unauthorized,
    Unavailable,
)
from sandgate.contract.job import Task
from sandgate.contract.lease import ARROW, Lease
from sandgate.contract.trajectory import to_json
from sandgate.gateway.client import GatewayClient, Retries
from sandgate.gateway.client import control_client as client_module
from sandgate.gateway.client.retries import BACKOFF_MAX_S
from sandgate.trainer.client import streaming
from sandgate.trainer.client.blocking_client import RolloutClient
from sandgate.trainer.client.rollout_client import AsyncRolloutClient
from sandgate.trainer.export.arrow import to_ipc
from tests.trainer.trajectories import exact, trajectory

Script = list[httpx.Response | Exception]


def answer(status: int, value: Any = None, **headers: str) -> httpx.Response:
    named = {key.replace("_", "-"): text for key, text in headers.items()}
    return httpx.Response(status, json=value if value is not None else {}, headers=named)


def refusal(kind: type[SandgateError], message: str = "no", **headers: str) -> httpx.Response:
    body = {"error": {"message": message, "type": kind.reason, "code": kind.reason, "param": "x"}}
    return answer(kind.status, body, x_sandgate_reason=kind.reason, **headers)


class Gateway:
    """Answers by a script, and keeps what it was sent."""

    def __init__(self, *script: httpx.Response | Exception) -> None:
        self.script = list(script)
        self.seen: list[httpx.Request] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.seen.append(request)
        step = self.script.pop(0)
        if isinstance(step, Exception):
            raise step
        return step

    @property
    def bodies(self) -> list[Any]:
        return [json.loads(request.content or b"null") for request in self.seen]


@pytest.fixture(autouse=True)
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds that were waited between attempts, instead of waiting."""
    found: list[float] = []

    async def noted(seconds: float) -> None:
        found.append(seconds)

    monkeypatch.setattr(client_module, "sleep", noted)
    return found


def sync(gateway: Gateway, attempts: int = 3) -> RolloutClient:
    transport = httpx.MockTransport(gateway)
    return RolloutClient("http://gateway", "key", retries=Retries(attempts=attempts), transport=transport)


def kinds(kind: type[SandgateError] = SandgateError) -> list[type[SandgateError]]:
    return [kind, *(below for child in kind.__subclasses__() for below in kinds(child))]


OURS = [kind for kind in kinds() if kind.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", OURS, ids=lambda kind: kind.__name__)
def test_every_error_of_the_gateway_comes_back_as_itself(kind: type[SandgateError]) -> None:
    with (
        sync(Gateway(refusal(kind, "because", retry_after="7")), attempts=1) as client,
        pytest.raises(kind) as caught,
    ):
        client.status()
    assert type(caught.value) is kind
    assert str(caught.value) == "because"
    assert getattr(caught.value, "field", "x") == "x"
    if isinstance(caught.value, Overloaded | Unavailable):
        assert caught.value.retry_after == 7.0


FOREIGN: dict[str, tuple[httpx.Response, type[SandgateError]]] = {
    "a proxy's 502": (httpx.Response(502, text="<html>Bad Gateway"), EngineFailed),
    "a proxy's 504": (httpx.Response(504, text=""), EngineFailed),
    "a proxy's 503": (httpx.Response(503, text="busy"), Unavailable),
    "a proxy's 429 with a date": (
        httpx.Response(429, headers={"retry-after": "Wed, 21 Oct 2026"}),
        Overloaded,
    ),
    "a path that is not there": (httpx.Response(404, json={"detail": "Not Found"}), NotFound),
    "an unknown status": (httpx.Response(418, json={"error": "teapot"}), SandgateError),
    "a reason from a newer gateway": (answer(409, {}, x_sandgate_reason="Novel"), Conflict),
    "JSON that is none": (
        httpx.Response(500, text="{", headers={"content-type": "application/json"}),
        SandgateError,
    ),
}


@pytest.mark.parametrize(("said", "kind"), FOREIGN.values(), ids=FOREIGN)
def test_errors_of_others_are_told_by_status(said: httpx.Response, kind: type[SandgateError]) -> None:
    with sync(Gateway(said), attempts=1) as client, pytest.raises(kind) as caught:
        client.status()
    assert type(caught.value) is kind


LOST = httpx.ReadTimeout("slow")
UNSENT = httpx.ConnectError("refused")

RETRIED: dict[str, tuple[Callable[[RolloutClient], Any], Script, int]] = {
    "a connection that was refused": (lambda c: c.status(), [UNSENT, answer(200)], 2),
    "an answer that was lost, of an idempotent call": (lambda c: c.abort("s"), [LOST, answer(200)], 2),
    "a gateway that is overloaded": (lambda c: c.status(), [refusal(Overloaded), answer(200)], 2),
    "a gateway that drains": (lambda c: c.status(), [refusal(errors.Draining), answer(200)], 2),
    "a bad gateway between us": (lambda c: c.status(), [httpx.Response(502), answer(200)], 2),
    "tasks for a queue that is full": (
        lambda c: c.push_tasks([Task(uid="q")], last=True),
        [refusal(Overloaded), LOST, answer(200)],
        3,
    ),
    "a lease whose answer was lost": (lambda c: c.lease(), [LOST, answer(200, {"lease_id": None})], 2),
    "a lease through a bad gateway": (
        lambda c: c.lease(),
        [httpx.Response(502), answer(200, {"lease_id": None})],
        2,
    ),
    "a lease refused for now": (
        lambda c: c.lease(),
        [refusal(Overloaded), answer(200, {"lease_id": None})],
        2,
    ),
}


@pytest.mark.parametrize(("ask", "script", "sent"), RETRIED.values(), ids=RETRIED)
def test_what_is_harmless_is_sent_again(
    ask: Callable[[RolloutClient], Any], script: Script, sent: int, waits: list[float]
) -> None:
    gateway = Gateway(*script)
    with sync(gateway) as client:
        ask(client)
    assert len(gateway.seen) == sent
    assert len(waits) == sent - 1


GIVEN_UP: dict[str, tuple[Callable[[RolloutClient], Any], Script, type[SandgateError]]] = {
    "what the caller must change": (lambda c: c.status(), [refusal(InvalidBody)], InvalidBody),
    "an unknown session": (lambda c: c.session("s"), [refusal(NotFound)], NotFound),
    "the third failure": (lambda c: c.status(), [UNSENT, UNSENT, UNSENT], Unavailable),
}


@pytest.mark.parametrize(("ask", "script", "kind"), GIVEN_UP.values(), ids=GIVEN_UP)
def test_what_is_not_harmless_or_hopeless_is_not(
    ask: Callable[[RolloutClient], Any], script: Script, kind: type[SandgateError]
) -> None:
    gateway = Gateway(*script)
    with sync(gateway) as client, pytest.raises(kind):
        ask(client)
    assert gateway.script == []
    assert len(gateway.seen) == len(script)


def test_retry_after_is_kept_and_waits_grow(waits: list[float]) -> None:
    gateway = Gateway(refusal(Overloaded, retry_after="3"), UNSENT, UNSENT, answer(200))
    with sync(gateway, attempts=4) as client:
        client.status()
    assert waits[0] == 3.0
    assert 0.2 <= waits[1] <= 0.4
    assert 0.4 <= waits[2] <= 0.8


def test_an_absurd_retry_after_is_bounded(waits: list[float]) -> None:
    with sync(Gateway(refusal(Unavailable, retry_after="86400"), answer(200))) as client:
        client.status()
    assert waits == [BACKOFF_MAX_S]


HANDLE = {
    "session_id": "s1", "base_url": "u", "anthropic_base_url": "a", "complete_url": "c", "reward_url": "r",
    "api_key": "sk-agent", "reward_key": "sk-reward", "expires_at": 1.0,
}  # fmt: skip


def test_a_session_is_named_before_it_is_asked_for_so_that_a_retry_makes_no_second() -> None:
    gateway = Gateway(LOST, answer(201, HANDLE))
    with sync(gateway) as client:
        client.create_session(uid="q1", job=None)
    first, again = gateway.bodies
    assert first == again
    assert first["uid"] == "q1"
    assert first["session_id"].startswith("s-")
    assert "job" not in first


def test_pushed_tasks_are_whole() -> None:
    gateway = Gateway(answer(200))
    with sync(gateway) as client:
        client.push_tasks([Task(uid="q", prompt="buy", data={"n": 7})], last=True, job="shop")
    assert (gateway.seen[0].method, gateway.seen[0].url.path) == ("POST", "/v1/tasks")
    task = {"uid": "q", "prompt": "buy", "data": {"n": 7}}
    assert gateway.bodies == [{"job": "shop", "tasks": [task], "last": True}]


def test_many_sessions_have_names_of_their_own() -> None:
    gateway = Gateway(answer(201, [HANDLE, HANDLE]))
    with sync(gateway) as client:
        assert [handle.session_id for handle in client.create_sessions([{}, {}])] == ["s1", "s1"]
    assert len({body["session_id"] for body in gateway.bodies[0]}) == 2


def test_a_handle_does_not_show_its_keys() -> None:
    with sync(Gateway(answer(201, HANDLE))) as client:
        assert "sk-" not in repr(client.create_session())


def test_ids_cannot_leave_their_place_in_the_path() -> None:
    gateway = Gateway(answer(200))
    with sync(gateway) as client:
        client.session("a/../../v1/status?x#y")
    assert gateway.seen[0].url.raw_path == b"/v1/sessions/a%2F..%2F..%2Fv1%2Fstatus%3Fx%23y"


def test_the_key_goes_with_every_call() -> None:
    gateway = Gateway(answer(200))
    with sync(gateway) as client:
        client.status()
    assert gateway.seen[0].headers["authorization"] == "Bearer key"


NO_KEYS = {
    "of another alphabet": "sk-sg-\xe9",
    "two lines": "sk-sg-a\n",
    "a character that is half": "sk-\udce9",
}


@pytest.mark.parametrize("key", NO_KEYS.values(), ids=NO_KEYS)
def test_a_text_that_is_no_key_is_refused_before_anything_is_sent(key: str) -> None:
    gateway = Gateway(answer(200))
    with (
        RolloutClient("http://gateway", key, transport=httpx.MockTransport(gateway)) as client,
        pytest.raises(Unauthorized, match="is it cut off") as refused,
    ):
        client.status()
    assert gateway.seen == []
    assert key.strip() not in str(refused.value)


def test_waiting_says_when_it_was_in_vain() -> None:
    with sync(Gateway(answer(408, {"state": "open"}), answer(200, {"state": "complete"}))) as client:
        assert client.wait("s", 1.0) is None
        assert client.wait("s", 1.0) == {"state": "complete"}


def test_listing_follows_the_pages() -> None:
    gateway = Gateway(
        answer(200, {"sessions": [{"session_id": "a"}], "next": "a"}),
        answer(200, {"sessions": [{"session_id": "b"}], "next": None}),
    )
    with sync(gateway) as client:
        assert [one["session_id"] for one in client.sessions(job="shop")] == ["a", "b"]
    assert [dict(request.url.params) for request in gateway.seen] == [
        {"job": "shop"},
        {"job": "shop", "after": "a"},
    ]


ROWS = [trajectory(0), trajectory(1)]
LEASED = {"content-type": ARROW, "x-sandgate-lease": "l1", "x-sandgate-lease-until": "9.0"}
LEASES: dict[str, httpx.Response] = {
    "JSON": answer(
        200,
        {"lease_id": "l1", "until": 9.0, "sessions": ["a"], "trajectories": [to_json(row) for row in ROWS]},
    ),
    "Arrow": httpx.Response(
        200,
        content=to_ipc(ROWS),
        headers=LEASED,
    ),
}


@pytest.mark.parametrize("said", LEASES.values(), ids=LEASES)
def test_a_lease_is_read_from_either_form(said: httpx.Response) -> None:
    with sync(Gateway(said)) as client:
        lease = client.lease(max_groups=2)
    assert lease is not None
    assert (lease.lease_id, lease.until) == ("l1", 9.0)
    assert [exact(row) for row in lease.groups()["shop", "q1"]] == [
        exact(trajectory(0)),
        exact(trajectory(1)),
    ]


STRANGE: dict[str, tuple[Callable[[RolloutClient], Any], httpx.Response]] = {
    "a handle without a key": (lambda c: c.create_session(), answer(201, {"session_id": "s"})),
    "a lease that is text": (lambda c: c.lease(), httpx.Response(200, text="ok")),
    "a page without a cursor": (lambda c: list(c.sessions()), answer(200, {"sessions": []})),
    "a trajectory with a hole": (lambda c: c.finalize("s"), answer(200, {"trajectories": [{"job": "x"}]})),
}


@pytest.mark.parametrize(("ask", "said"), STRANGE.values(), ids=STRANGE)
def test_an_answer_that_was_not_agreed_is_a_corrupt_record(
    ask: Callable[[RolloutClient], Any], said: httpx.Response
) -> None:
    with sync(Gateway(said)) as client, pytest.raises(CorruptRecord):
        ask(client)


def test_a_session_without_a_name_is_refused_by_the_pure_call() -> None:
    with pytest.raises(InvalidBody, match="session_id"):
        control_api.create({"uid": "q1"})


UNKNOWN: dict[str, tuple[Callable[[RolloutClient], Any], type[Exception], str]] = {
    "a field of a new session": (
        lambda c: c.create_session(session_id="s", smpling={}),
        InvalidBody,
        "smpling",
    ),
    "a field of one of many": (
        lambda c: c.create_sessions([{"session_id": "s", "grp": 1}]),
        InvalidBody,
        "grp",
    ),
    "a field of an end": (lambda c: c.finalize("s", rewrd=1.0), TypeError, "rewrd"),  # type: ignore[call-arg]
}


@pytest.mark.parametrize(("ask", "kind", "names"), UNKNOWN.values(), ids=UNKNOWN)
def test_a_misspelt_keyword_is_refused_before_anything_is_sent(
    ask: Callable[[RolloutClient], Any], kind: type[Exception], names: str
) -> None:
    """A gateway ignores fields that it does not know: a reward under another name would be lost."""
    gateway = Gateway()
    with sync(gateway) as client, pytest.raises(kind, match=names):
        ask(client)
    assert not gateway.seen


def test_an_error_made_from_numbers_is_made_without_them() -> None:
    """The client does not know the numbers, only the text."""
    body = {"error": {"message": "too long", "param": "messages"}}
    headers = httpx.Headers({"X-Sandgate-Reason": "PromptTooLong"})
    with pytest.raises(PromptTooLong) as caught:
        outcome(control_api.status(), ControlAnswer(400, headers, json.dumps(body).encode()))
    found = caught.value
    assert (str(found), found.field, found.status) == ("too long", "messages", 400)


def told(gateway: Gateway) -> list[str]:
    """But for looks."""
    return [request.url.path for request in gateway.seen if request.method != "GET"]


def test_a_weight_update_pauses_tells_the_version_and_resumes() -> None:
    gateway = Gateway(answer(200, {"update": "000000000006.a"}), *[answer(200)] * 6)
    with sync(gateway) as client, client.weight_update(7):
        assert [request.url.path for request in gateway.seen] == ["/v1/status", "/v1/pause"]
    assert told(gateway) == ["/v1/pause", "/v1/policy-version", "/v1/resume"]
    pause, version, resume = filter(None, gateway.bodies)
    assert pause["update"].startswith("000000000007.")
    assert (version, resume) == ({"version": 7} | pause, pause)


def test_a_weight_update_that_fails_keeps_the_version_and_resumes() -> None:
    gateway = Gateway(*[answer(200)] * 5)
    with sync(gateway) as client, pytest.raises(RuntimeError, match="swap"), client.weight_update(7):
        raise RuntimeError("swap")
    assert told(gateway) == ["/v1/pause", "/v1/resume"]


def test_a_gateway_that_does_not_take_the_version_stays_on_hold() -> None:
    """The weights are the new ones: whatever it sampled would be recorded as of the old version."""
    well = answer(200)
    gateway = Gateway(*[well] * 3, answer(503), answer(503), *[well] * 8)
    with sync(gateway, attempts=2) as client:
        with pytest.raises(Unavailable), client.weight_update(7):
            pass
        assert told(gateway) == ["/v1/pause", *["/v1/policy-version"] * 2]
        with client.weight_update(7):
            pass
    assert told(gateway)[-2:] == ["/v1/policy-version", "/v1/resume"]


async def test_a_weight_update_that_is_cancelled_leaves_no_call_behind() -> None:
    """Its version and its resume would come in the middle of the next update."""
    told, reached, slow = list[str](), asyncio.Event(), asyncio.Event()

    class Slow(AsyncRolloutClient):
        async def status(self) -> dict[str, Any]:
            return {}

        async def pause(self, update: str = "") -> None:
            told.append("pause")

        async def policy_version(
            self, version: int, *, labelled: bool | None = None, adapter: str = "", update: str = ""
        ) -> None:
            reached.set()
            await slow.wait()
            told.append(f"version {version}")

        async def resume(self, update: str = "") -> None:
            told.append("resume")

    async with Slow("http://g", "k") as client:

        async def update() -> None:
            async with client.weight_update(7):
                told.append("swap")

        going = asyncio.ensure_future(update())
        await reached.wait()
        going.cancel()
        asyncio.get_running_loop().call_later(0.01, slow.set)
        with pytest.raises(asyncio.CancelledError):
            await going
        assert told == ["pause", "swap", "version 7", "resume"]


def test_a_version_that_no_gateway_takes_is_refused_before_the_swap() -> None:
    gateway = Gateway()
    with sync(gateway) as client, pytest.raises(InvalidBody, match="version: -1"), client.weight_update(-1):
        pytest.fail("swapped")
    assert not gateway.seen


class Offers:
    """Leases to be had, and what became of them."""

    def __init__(self, *leases: Lease | None) -> None:
        self.leases = list(leases)
        self.log: list[str] = []

    async def lease(self, **_: Any) -> Lease | None:
        return self.leases.pop(0) if self.leases else None

    async def renew(self, lease_id: str, ttl_s: float) -> None:
        self.log.append(f"renew {lease_id}")

    async def ack(self, lease: Lease) -> None:
        self.log.append(f"ack {lease.lease_id}")

    async def nack(self, lease: Lease) -> None:
        self.log.append(f"nack {lease.lease_id}")


async def test_groups_are_acked_when_their_block_ends_and_given_back_when_it_raises() -> None:
    offers = Offers(
        Lease("l1", 1.0, ("a", "b"), (trajectory(0), trajectory(1))),
        None,
        Lease("l2", 1.0, ("a",), (trajectory(0),)),
    )
    seen = []

    async def train() -> None:
        async for group in streaming.groups(offers, ttl_s=60.0, idle_s=0.0, poll_s=0.0):
            async with group:
                seen.append([row.sample_index for row in group.trajectories])
                if len(seen) == 2:
                    raise RuntimeError("out of memory")

    offers.leases.insert(
        1, Lease("l3", 1.0, ("a",), ())
    )  # every session failed: nothing to train on, still acked
    with pytest.raises(RuntimeError, match="out of memory"):
        await train()
    assert (seen, offers.log) == ([[0, 1], []], ["ack l1", "nack l3"])


async def test_groups_end_when_nothing_came_for_long_enough() -> None:
    offers = Offers(Lease("l1", 1.0, ("a",), ()))
    found = [group.lease.lease_id async for group in streaming.groups(offers, ttl_s=1.0, idle_s=0.0)]
    assert found == ["l1"]


async def test_an_explicit_ack_is_the_only_one() -> None:
    offers = Offers(Lease("l1", 1.0, ("a",), ()))
    async for group in streaming.groups(offers, ttl_s=1.0, idle_s=0.0):
        async with group:
            await group.ack()
            await group.nack()
    assert offers.log == ["ack l1"]


def test_the_blocking_client_gives_groups_too() -> None:
    gateway = Gateway(
        httpx.Response(200, content=to_ipc([trajectory(0)]), headers=LEASED), *[answer(200)] * 2
    )
    with sync(gateway) as client:
        for group in client.groups(ttl_s=60.0):
            with group:
                assert [row.sample_index for row in group.trajectories] == [0]
            break
    assert [request.url.path for request in gateway.seen][:2] == ["/v1/leases", "/v1/leases/l1/ack"]


async def test_the_async_client_makes_the_same_calls() -> None:
    gateway = Gateway(UNSENT, answer(201, HANDLE), answer(200, {"lease_id": None}), *[answer(200)] * 7)
    async with AsyncRolloutClient("http://gateway", "key", transport=httpx.MockTransport(gateway)) as client:
        assert (await client.create_session(session_id="s1")).session_id == "s1"
        assert await client.lease() is None
        async with client.weight_update(3):
            pass
    update = ["/v1/pause", "/v1/policy-version", "/v1/resume"]
    assert told(gateway) == ["/v1/sessions", "/v1/sessions", "/v1/leases", *update]


@pytest.mark.parametrize("client", [AsyncRolloutClient, GatewayClient])
async def test_a_reward_has_an_id_of_its_own_and_the_same_when_it_is_sent_again(
    client: type[AsyncRolloutClient] | type[GatewayClient],
) -> None:
    gateway = Gateway(UNSENT, answer(200), answer(200))
    async with client("http://gateway", "key", transport=httpx.MockTransport(gateway)) as one:
        await one.reward("s1", 1.0)
        await one.reward("s1", 1.0)
    first, again, other = (json.loads(request.content)["reward_id"] for request in gateway.seen)
    assert first == again != other


def test_both_clients_have_the_same_calls() -> None:
    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if not name.startswith("_")}

    assert public(AsyncRolloutClient) - public(RolloutClient) == {"aclose"}
    assert public(RolloutClient) - public(AsyncRolloutClient) == {"close"}


@pytest.mark.parametrize("used", [True, False], ids=["used", "never used"])
async def test_a_closed_client_opens_nothing(used: bool, unused_tcp_port: int) -> None:
    client = AsyncRolloutClient(f"http://127.0.0.1:{unused_tcp_port}", retries=Retries(attempts=1))
    if used:
        with pytest.raises(Unavailable):
            await client.status()
    await client.aclose()
    with pytest.raises(RuntimeError, match="closed"):
        await client.status()
