"""One gateway of two lost its volume, and the operator builds its store anew: what begins meanwhile at the other one is
not lost, wherever the operator waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import Unavailable
from sandgate.contract.session import SessionSummary
from sandgate.operator.cluster.gateway_monitor import GatewayMonitor
from sandgate.operator.cluster.resync import Resync
from tests.operator.cluster_rig import Box, World, hurry, manifest, world
from tests.support.waiting import until

Json = Any
HOME, OTHER = "shop-gateway-0", "shop-gateway-1"


class Works:
    """Agents that have a turn, and another when they may end."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.free = asyncio.Event()

    async def __call__(self, box: Box) -> int:
        await box.ask("one")
        self.begun.append(box.env["SANDGATE_SESSION_ID"])
        await self.free.wait()
        await box.ask("one", "two")
        return 0

    def of(self, *uids: str) -> list[str]:
        return [name for name in self.begun if any(f"shop-{uid}-" in name for uid in uids)]


class Gate:
    """Holds up calls that were carried out already: their answer comes when it is opened."""

    def __init__(self, real: Callable[..., Awaitable[Any]], which: Callable[..., bool]) -> None:
        self.real, self.which = real, which
        self.reached, self.open = asyncio.Event(), asyncio.Event()

    async def __call__(self, *args: Any, **more: Any) -> Any:
        if not self.which(*args):
            return await self.real(*args, **more)
        try:
            return await self.real(*args, **more)
        finally:
            self.reached.set()
            await self.open.wait()


@pytest.fixture
def works() -> Works:
    return Works()


@pytest.fixture
async def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: Works) -> AsyncIterator[World]:
    """A job with agents at both gateways."""
    hurry(monkeypatch)
    async with world(tmp_path, gateways=2) as made:
        made.agents = [("shop-", works)]
        made.operator_up()
        await made.kube.create(manifest(tasks={"queue": {}}, gateway={"replicas": 2}))
        await push(made, *"abcd")
        await so(lambda: len(works.begun) == 4, "agents run")
        yield made


async def so(what: Callable[[], bool], words: str) -> None:
    async def holds() -> bool:
        return what()

    await until(holds, what=words, within_s=30.0)


async def push(up: World, *uids: str, last: bool = False) -> None:
    for name, gateway in up.gateways.items():
        tasks = [{"uid": uid, "prompt": uid} for uid in uids] if name == OTHER else []
        said = await gateway.admin.post("/v1/tasks", json={"job": "shop", "tasks": tasks, "last": last})
        assert said.status_code == 200, said.text


async def loses_its_volume(up: World) -> None:
    await up.gateway_down(HOME)
    await up.gateway_up(HOME, empty=True)


async def ends_well(up: World, works: Works, *uids: str) -> None:
    """All do; these with the attempt they began with."""
    works.free.set()
    await so(lambda: up.condition("Complete") == ("True", "AllEnded"), "all ended")
    of = {body["spec"]["taskUid"]: body for body in up.sessions().values() if body["spec"]["taskUid"] in uids}
    assert sorted(of) == sorted(uids)
    assert {
        uid: (body["spec"]["gateway"], body["status"].get("failureReason")) for uid, body in of.items()
    } == dict.fromkeys(uids, (OTHER, None))
    assert sorted(works.of(*uids)) == sorted(body["metadata"]["name"] for body in of.values()), (
        "each began once"
    )


WINDOWS = {
    "AgentSessions are listed": ("list", lambda kind, *_: kind == "AgentSession"),
    "pods are listed": ("list", lambda kind, *_: kind == "Pod"),
    "finished tasks are read": ("get", lambda kind, _, name: kind == "ConfigMap" and "done" in name),
}


@pytest.mark.parametrize("window", WINDOWS)
async def test_sessions_that_begin_while(up: World, works: Works, window: str) -> None:
    verb, which = WINDOWS[window]
    gate = Gate(getattr(up.kube, verb), which)
    setattr(up.kube, verb, gate)
    await loses_its_volume(up)
    await asyncio.wait_for(gate.reached.wait(), 30.0)
    await push(up, "n1", "n2", last=True)
    await so(lambda: len(works.of("n1", "n2")) == 2, "new ones run")
    gate.open.set()
    await ends_well(up, works, "n1", "n2")


async def test_one_whose_pod_is_being_made_while_the_others_are_asked_for(up: World, works: Works) -> None:
    pods = Gate(up.kube.list, lambda kind, *_: kind == "Pod")
    up.kube.list = pods  # type: ignore[method-assign]
    await loses_its_volume(up)
    await asyncio.wait_for(pods.reached.wait(), 30.0)
    made = Gate(up.kube.create, lambda body: body["kind"] == "Pod" and "shop-n2-" in body["metadata"]["name"])
    up.kube.create = made  # type: ignore[method-assign]
    up.deaf = True  # what the watch says comes later than what the call answers
    await push(up, "n1", "n2", last=True)
    await so(lambda: len(works.of("n1", "n2")) == 2, "new ones run")
    assert up.hub is not None
    (job,) = up.hub.runs.values()
    calls = job.at.monitors[OTHER].calls
    asked = Gate(calls.get, lambda name: "shop-n1-" in name)
    calls.get = asked  # type: ignore[method-assign]
    pods.open.set()
    await asyncio.wait_for(asked.reached.wait(), 30.0)
    made.open.set()
    await so(lambda: any("shop-n2-" in name for name in job.at.agents.held), "its pod is known")
    up.relist()
    asked.open.set()
    await ends_well(up, works, "n1", "n2")


async def test_sessions_that_begin_at_a_gateway_that_is_away_when_a_load_that_failed_is_tried_again(
    up: World, works: Works, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[bool] = []
    real, arrived = up.kube.list, Resync.arrived
    fails = True

    async def listing(kind: str, *args: Any, **more: Any) -> Any:
        if fails and kind == "Pod":
            raise Unavailable("the API server is away")
        return await real(kind, *args, **more)

    async def counted(self: Resync, monitor: GatewayMonitor, listed: list[SessionSummary]) -> bool:
        try:
            return await arrived(self, monitor, listed)
        finally:
            tries.append(monitor.name == HOME)

    up.kube.list = listing  # type: ignore[method-assign]
    monkeypatch.setattr(Resync, "arrived", counted)
    await loses_its_volume(up)
    await so(lambda: any(tries), "a load has failed")
    await push(up, "n1", "n2", last=True)
    await so(lambda: len(works.of("n1", "n2")) == 2, "new ones run")
    assert up.hub is not None
    (job,) = up.hub.runs.values()
    await up.gateway_down(OTHER)
    await so(lambda: not job.at.monitors[OTHER].open, "it is away")
    fails = False
    before = sum(tries)
    await so(lambda: sum(tries) >= before + 2, "it is tried again")
    await up.gateway_up(OTHER)
    await ends_well(up, works, "n1", "n2")
