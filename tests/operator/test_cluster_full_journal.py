"""A gateway that cannot write its journal: an agent that dies of it has not failed, and is never scored for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx
import pytest

from tests.operator.cluster_rig import Box, World, buys, hurry, manifest, world
from tests.support.waiting import until

HOME = "shop-gateway-0"
FULL = "database or disk is full"


@pytest.fixture
async def up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    hurry(monkeypatch)
    async with world(tmp_path) as made:
        yield made


def ends(up: World) -> list[tuple[str, str, float | None]]:
    """(reason, class, reward) of each attempt that ended, in order."""
    statuses = [body.get("status", {}) for _, body in sorted(up.sessions().items())]
    return [
        (one.get("failureReason", ""), one.get("failureClass", ""), one.get("reward")) for one in statuses
    ]


async def its_turn(box: Box) -> int:
    """Asks once, and dies of the answer with 1, as a program that does not catch it."""
    return await buys(box)


async def its_word(box: Box) -> int:
    """Has its turn, then cannot tell that it is done."""
    await buys(box)
    box.world.stores[HOME].disk.failure = FULL
    async with httpx.AsyncClient() as http:
        url = box.world.resolve(box.env["SANDGATE_COMPLETE_URL"])
        said = await http.post(url, json={}, headers={"authorization": f"Bearer {box.env['OPENAI_API_KEY']}"})
    return 1 if said.is_error else 0


DIES_OF: dict[str, Callable[[Box], Awaitable[int]]] = {"its turn": its_turn, "its word": its_word}


@pytest.mark.parametrize("healed", ["at once", "after a while"])
@pytest.mark.parametrize("what", DIES_OF)
async def test_an_agent_that_dies_of_a_full_journal_is_tried_again(up: World, what: str, healed: str) -> None:
    disk = up.stores[HOME].disk

    async def dies(box: Box) -> int:
        disk.failure = FULL if what == "its turn" else ""
        try:
            return await DIES_OF[what](box)
        finally:
            if healed == "at once":
                disk.failure = ""

    up.agents = [("-0-0", dies)]
    up.operator_up()
    await up.kube.create(manifest("a 1"))
    if healed != "at once":

        async def waits() -> bool:
            said = (up.job().get("status") or {}).get("conditions", ())
            return any(FULL in one["message"] for one in said if one["reason"] == "NoGateway")

        await until(waits, what="the job says that no gateway can write", within_s=30.0)
        disk.failure = ""

    async def complete() -> bool:
        return up.condition("Complete")[0] == "True"

    await until(complete, what="the job is complete", within_s=30.0)
    first, second = ends(up)
    assert first == ("GatewayLost", "infra", None)
    assert second == ("", "", 1.0)
