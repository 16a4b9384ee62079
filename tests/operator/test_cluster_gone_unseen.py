"""Pods that somebody deletes while no operator looks. Their containers may run on for as long as their grace, or longer
where their node is cut off: no second agent is ever let into a session that may have had one."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import httpx
import pytest

from sandgate.contract.errors import Conflict, Gone, Unavailable
from sandgate.contract.keys import Key, Scope, mint
from sandgate.contract.session import SessionHandle, SessionSpec
from sandgate.gateway.client import GatewayClient
from sandgate.operator.cluster.recovery import UNTOLD
from tests.operator.cluster_rig import NAMESPACE, Box, hurry, manifest, world
from tests.support.gateway import SECRET
from tests.support.waiting import until

HOME = "shop-gateway-0"
TURNS = 3


async def so(what: Callable[[], bool], words: str) -> None:
    async def holds() -> bool:
        return what()

    await until(holds, what=words, within_s=30.0)


class Outlives:
    """Agents whose first turn comes when it may. What deletes their pod does not end them."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.free = asyncio.Event()
        self.lives: list[asyncio.Task[None]] = []

    async def __call__(self, box: Box) -> int:
        self.begun.append(box.env["SANDGATE_SESSION_ID"])
        life = asyncio.ensure_future(self.live(box))
        self.lives.append(life)
        await asyncio.shield(life)
        return 0

    async def live(self, box: Box) -> None:
        await self.free.wait()
        with suppress(httpx.HTTPError):
            for number in range(TURNS):
                await box.ask(*(f"turn {one}" for one in range(number + 1)))


@pytest.mark.parametrize("forgets", [False, True], ids=["its gateway goes on", "its gateway lost its volume"])
async def test_a_session_whose_pod_is_gone_before_its_first_turn_gets_no_second_agent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgets: bool
) -> None:
    hurry(monkeypatch)
    agents = Outlives()
    async with world(tmp_path) as up:
        up.agents = [("shop-", agents)]
        up.operator_up()
        await up.kube.create(manifest("a say", "b say"))
        await so(lambda: len(agents.begun) == 1, "the first agent runs")
        (session,) = agents.begun
        (pod,) = up.pods
        await up.operator_down()
        await up.kube.delete("Pod", NAMESPACE, pod, grace_s=0)
        if forgets:
            await up.gateway_down(HOME)
            await up.gateway_up(HOME, empty=True)
        up.operator_up()
        await so(lambda: len(agents.begun) == 2, "another runs")
        agents.free.set()
        await so(lambda: up.condition("Complete")[0] == "True", "all ended")
        await asyncio.gather(*agents.lives)
        assert Counter(agents.begun).most_common(1)[0][1] == 1, f"two agents in one session: {agents.begun}"
        status = {name: body["status"] for name, body in up.sessions().items()}
        assert status[session]["failureReason"] == "DriverLost"
        rest = {name: one for name, one in status.items() if name != session}
        assert {(one.get("failureReason"), one["turns"]) for one in rest.values()} == {(None, TURNS)}
        assert up.job()["status"]["retries"] == 1
        assert await up.train() == 2


async def test_a_pod_that_comes_after_its_session_was_given_up_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server carries out what an operator asked of it that is dead by then. Its agent is let in nowhere."""
    hurry(monkeypatch)
    agents, on_its_way = Outlives(), list[dict[str, object]]()
    agents.free.set()
    async with world(tmp_path) as up:
        up.agents = [("shop-", agents)]
        create = up.kube.create

        async def held_up(body: dict[str, object]) -> object:
            if body["kind"] == "Pod" and not on_its_way:
                on_its_way.append(body)
                await asyncio.Event().wait()
            return await create(body)

        up.kube.create = held_up  # type: ignore[method-assign]
        up.operator_up()
        await up.kube.create(manifest("a say", "b say"))
        await so(lambda: bool(on_its_way), "the first pod is on its way")
        await up.operator_down()
        up.operator_up()
        await so(lambda: up.condition("Complete")[0] == "True", "all ended")
        assert await up.train() == 2
        await so(lambda: not up.kube.named("Pod"), "their pods go")
        agents.free.clear()  # so that it would stay
        late = await create(on_its_way[0])
        assert late["metadata"]["name"] in up.kube.named("Pod")
        await so(lambda: not up.kube.named("Pod"), "so does the late one")
        agents.free.set()
        await asyncio.gather(*agents.lives)
        status = [body["status"] for body in up.sessions().values()]
        assert sorted((one.get("failureReason"), one["turns"]) for one in status if not one.get("failureReason")) == [
            (None, TURNS), (None, TURNS),
        ]  # fmt: skip


async def test_a_pod_that_is_gone_when_its_creation_is_asked_for_again_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first answer was lost, and so was the watch; the second says that there is one."""
    hurry(monkeypatch)
    agents = Outlives()
    async with world(tmp_path) as up:
        up.agents = [("shop-", agents)]
        get, told = up.kube.get, list[str]()

        def cut(verb: str, kind: str) -> None:
            up.deaf = up.deaf or ((verb, kind) == ("create", "Pod") and not told)

        def lose(verb: str, kind: str) -> None:
            if (verb, kind) == ("create", "Pod") and not told:
                told.append("lost")
                raise Unavailable("the answer is lost", retry_after=0.0)

        async def gone(kind: str, namespace: str, name: str) -> object:
            if kind == "Pod" and told == ["lost"]:
                told.append("deleted")
                await up.kube.delete("Pod", namespace, name, grace_s=0)
            return await get(kind, namespace, name)

        up.kube.fail, up.kube.lose, up.kube.get = cut, lose, gone  # type: ignore[method-assign]
        up.operator_up()
        await up.kube.create(manifest("a say"))
        await so(lambda: len(agents.begun) == 2, "another runs")
        up.relist()
        agents.free.set()
        await so(lambda: up.condition("Complete")[0] == "True", "all ended")
        await asyncio.gather(*agents.lives)
        assert told == ["lost", "deleted"]
        assert len(set(agents.begun)) == 2, f"two agents in one session: {agents.begun}"
        assert [one["status"].get("failureReason") for one in up.sessions().values()] == ["Evicted", None]


async def test_a_call_that_a_dead_operator_sent_opens_nothing_that_nobody_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its gateway takes it after the next operator gave the session up."""
    hurry(monkeypatch)
    create, on_its_way = GatewayClient.create, list[SessionSpec]()

    async def held_up(client: GatewayClient, spec: SessionSpec) -> SessionHandle:
        if not on_its_way:
            on_its_way.append(spec)
            await asyncio.Event().wait()
        return await create(client, spec)

    monkeypatch.setattr(GatewayClient, "create", held_up)
    async with world(tmp_path) as up:
        up.operator_up()
        await up.kube.create(manifest("a say"))
        await so(lambda: bool(on_its_way), "the first call is on its way")
        await up.operator_down()
        up.operator_up()
        await so(lambda: up.condition("Complete")[0] == "True", "all ended")
        (late,) = on_its_way
        async with GatewayClient(
            up.gateways[HOME].origin, mint(SECRET, Key(Scope.ADMIN, job="shop"))
        ) as client:
            with suppress(Conflict, Gone):
                await create(client, late)
            stands = {one.session_id: one async for one in client.sessions(job="shop")}
        assert stands[late.session_id].failure_reason == "DriverLost"
        assert all(one.state.ended for one in stands.values())
        status = {name: body["status"] for name, body in up.sessions().items()}
        (said,) = (one for one in status[late.session_id]["conditions"] if one["type"] == "Finished")
        assert said["message"] == UNTOLD
        assert await up.train() == 1
