"""Routing of sessions over gateways: even, pinned, and no place is lost whatever goes wrong."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sandgate.contract.errors import Conflict, NotFound, Unavailable
from sandgate.contract.session import SessionHandle
from sandgate.trainer.client import gateway_manager
from sandgate.trainer.client.gateway_manager import (
    DOWN_S,
    GatewayManager,
    HttpGateway,
    Outcome,
    SessionGateway,
    uploaded,
)
from tests.trainer.trajectories import trajectory
from tests.trainer.world import JOB, World


class Told:
    """A gateway that notes what it is asked, and fails with `error`."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error
        self.asked: list[tuple[str, str]] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def _say(self, what: str, session_id: str) -> None:
        self.asked.append((what, session_id))
        await self.gate.wait()
        if self.error is not None:
            raise self.error

    async def create_session(self, session_id: str, **spec: Any) -> SessionHandle:
        await self._say("create", session_id)
        urls = dict.fromkeys(("base_url", "anthropic_base_url", "complete_url", "reward_url"), "http://x")
        return SessionHandle(session_id=session_id, api_key="k", reward_key="r", expires_at=0.0, **urls)

    async def finalize_session(
        self, session_id: str, reward: float | None = None, outcome: Outcome = None
    ) -> list[Any]:
        await self._say("finalize", session_id)
        return [trajectory(session_id=session_id)]

    async def limit_reached(self, session_id: str) -> str | None:
        await self._say("limit", session_id)
        return None

    async def abort_session(self, session_id: str) -> None:
        await self._say("abort", session_id)

    async def wait_for_completion(self, session_id: str, timeout: float) -> bool:
        await self._say("wait", session_id)
        return True


def manager(*gateways: Told, **options: Any) -> GatewayManager:
    given: list[SessionGateway] = list(gateways)
    return GatewayManager(given, **options)


@pytest.mark.parametrize("policy", ["least_loaded", "round_robin"])
async def test_sessions_created_at_once_spread_evenly(policy: str) -> None:
    gateways = [Told() for _ in range(4)]
    for one in gateways:
        one.gate.clear()  # all creations are chosen before the first is answered
    routes = manager(*gateways, policy=policy)
    work = [asyncio.ensure_future(routes.create_session(f"s{at}")) for at in range(64)]
    await asyncio.wait(work, timeout=0)
    assert routes.load == [16, 16, 16, 16]
    for one in gateways:
        one.gate.set()
    await asyncio.gather(*work)
    assert [len(one.asked) for one in gateways] == [16, 16, 16, 16]


async def test_a_session_stays_at_its_gateway_and_frees_its_place() -> None:
    gateways = [Told(), Told()]
    routes = manager(*gateways)
    await routes.create_session("a")
    await routes.create_session("b")
    await routes.wait_for_completion("b", 1.0)
    await routes.finalize_session("b")
    await routes.abort_session("a")
    assert gateways[1].asked == [("create", "b"), ("wait", "b"), ("finalize", "b")]
    assert gateways[0].asked == [("create", "a"), ("abort", "a")]
    assert routes.load == [0, 0]
    await routes.abort_session("a")
    with pytest.raises(NotFound, match="session a is not open here"):
        await routes.finalize_session("a")


@pytest.mark.parametrize("error", [RuntimeError("no"), asyncio.CancelledError(), Unavailable("away")])
async def test_a_creation_that_fails_leaves_no_place_taken(error: BaseException) -> None:
    routes = manager(Told(error))
    with pytest.raises(type(error)):
        await routes.create_session("a")
    assert routes.load == [0]
    routes.gateways[0].error = None  # type: ignore[attr-defined]
    await routes.create_session("a")
    assert routes.load == [1]


async def test_a_gateway_that_is_away_is_passed_over_until_it_is_alone() -> None:
    away, here = Told(Unavailable("away")), Told()
    routes = manager(away, here)
    for name in "abc":
        await routes.create_session(name)
    assert [what for what, _ in away.asked] == ["create", "abort"]
    assert routes.load == [0, 3]
    here.error, away.error = Unavailable("away too"), None
    await routes.create_session("d")
    assert routes.load == [1, 3]


async def test_a_gateway_that_refused_once_has_sessions_again_after_a_while() -> None:
    now = 0.0
    once, here = Told(Unavailable("its disk is slow")), Told()
    routes = manager(once, here, clock=lambda: now)
    await routes.create_session("a")
    once.error = None
    now = DOWN_S - 1.0
    await routes.create_session("b")
    assert routes.load == [0, 2]
    now = DOWN_S
    for name in "cd":
        await routes.create_session(name)
    assert routes.load == [2, 2]


async def never_ends() -> Any:
    await asyncio.Event().wait()


def opened(world: World) -> dict[str, list[str]]:
    """The sessions that are open at each gateway."""
    cores = {name: site.core for name, site in world.sites.items() if site.core is not None}
    return {
        name: [one.session_id for one in core.sessions.live.values() if not one.ended]
        for name, core in cores.items()
    }


def of(world: World) -> GatewayManager:
    return GatewayManager([HttpGateway(world._client(site)) for site in world.sites.values()])


async def test_a_creation_that_is_cancelled_leaves_no_session_open_whenever_it_is() -> None:
    """Of which nobody knows, and which keeps its sample's place from the next try."""
    at, begun = 0, True
    while begun:
        async with World(1) as world:
            routes = of(world)
            creating = asyncio.ensure_future(routes.create_session("s0", uid="q0", job=JOB))
            for _ in range(at):
                await asyncio.sleep(0)
            begun, at = creating.cancel(), at + 1
            await asyncio.gather(creating, return_exceptions=True)
            await world.settle()
            assert (opened(world)["g0"], routes.load) == (([], [0]) if begun else (["s0"], [1])), at
    assert at > 3, "none was in flight"


async def test_a_creation_that_is_cancelled_is_aborted_once_its_gateway_is_done_with_it() -> None:
    """Before, it does not know the session, and opens it afterwards."""
    one = Told()
    one.gate.clear()
    routes = manager(one)
    creating = asyncio.ensure_future(routes.create_session("a"))
    for _ in range(3):  # the creation is a task of its own
        await asyncio.sleep(0)
    creating.cancel()
    await asyncio.wait([creating], timeout=0)
    assert (one.asked, routes.load) == ([("create", "a")], [1])
    one.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert (one.asked, routes.load) == ([("create", "a"), ("abort", "a")], [0])


async def test_a_creation_whose_answer_is_lost_leaves_one_session_open() -> None:
    async with World(2) as world:
        routes = of(world)
        world.sites["g0"].lose.append("/v1/sessions")
        await routes.create_session("s0", uid="q0", job=JOB)
        assert (opened(world), routes.load) == ({"g0": [], "g1": ["s0"]}, [0, 1])


@pytest.mark.parametrize("cancelled", [False, True])
async def test_a_creation_that_is_refused_aborts_no_session_of_somebody_else(*, cancelled: bool) -> None:
    async with World(1) as world:
        await world.admins["g0"].create_session(session_id="s0", uid="theirs", job=JOB)
        world.sites["g0"].slow = asyncio.Event()
        creating = asyncio.ensure_future(of(world).create_session("s0", uid="q0", job=JOB))
        await world.settle()
        if cancelled:
            creating.cancel()
        world.sites["g0"].slow.set()
        with pytest.raises(asyncio.CancelledError if cancelled else Conflict):
            await creating
        assert opened(world) == {"g0": ["s0"]}


@pytest.mark.parametrize("hangs", ["create", "abort"])
async def test_a_gateway_that_hangs_keeps_no_caller_that_is_cancelled(
    hangs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_manager, "DOUBT_S", 0.0)
    one = Told(Unavailable("away"))
    monkeypatch.setattr(one, f"{hangs}_session", lambda *_, **__: never_ends())
    routes = manager(one)
    creating = asyncio.ensure_future(routes.create_session("a"))
    await asyncio.wait([creating], timeout=0)
    creating.cancel()
    async with asyncio.timeout(10):
        with pytest.raises((asyncio.CancelledError, Unavailable)):
            await creating
    assert routes.load == [0]


async def test_an_abort_that_fails_frees_the_place_and_a_finalize_that_fails_does_not() -> None:
    one = Told()
    routes = manager(one)
    await routes.create_session("a")
    one.error = Unavailable("away")
    with pytest.raises(Unavailable):
        await routes.finalize_session("a")
    assert routes.load == [1]
    with pytest.raises(Unavailable):
        await routes.abort_session("a")
    assert routes.load == [0]


async def test_an_id_is_used_once() -> None:
    routes = manager(Told())
    await routes.create_session("a")
    with pytest.raises(Conflict, match="already open"):
        await routes.create_session("a")
    assert routes.load == [1]


def test_no_gateways_are_no_manager() -> None:
    with pytest.raises(Unavailable, match="no gateway to create sessions at"):
        manager()


@pytest.mark.parametrize(
    ("info", "reward"),
    [
        ({"reward": 1.0, "score": 0.0}, 1.0),
        ({"score": 0.5}, 0.5),
        ({"reward": True, "score": 2}, 2.0),
        ({"reward": "1"}, None),
        ({"reward": float("nan")}, None),
        ({}, None),
        (None, None),
    ],
)
def test_what_counts_as_an_uploaded_reward(info: Any, reward: float | None) -> None:
    assert uploaded(info) == reward
