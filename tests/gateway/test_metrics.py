"""What a gateway's /metrics says of its state: what alerts are made of."""

from __future__ import annotations

import math
from typing import Any

from sandgate.contract.keys import Scope
from sandgate.gateway.journal.memory import MemoryDisk, MemoryStore
from tests.support.gateway import Running, admin_key, bearer, gateway


async def told(g: Running) -> dict[str, float]:
    """Sample -> value."""
    page = (await g.admin.get("/metrics")).text
    lines = (line.rpartition(" ") for line in page.splitlines() if not line.startswith("#"))
    return {name.removeprefix("sandgate_"): float(value) for name, _, value in lines}


async def test_a_fresh_gateway_is_well_and_has_heard_no_trainer() -> None:
    async with gateway() as g:
        said = await told(g)
        assert (said["journal_healthy"], said["paused"], said["groups_owed"]) == (1, 0, 0)
        assert said["engines"] == said["engines_healthy"] == 1
        assert math.isnan(said["trainer_age_seconds"])
        assert 0 < said["journal_free_bytes"] <= said["journal_volume_bytes"]


async def test_a_journal_in_a_database_has_no_volume() -> None:
    async with gateway(journal="postgresql://db/x", name="g") as g:
        said = await told(g)
        assert math.isnan(said["journal_free_bytes"])
        assert math.isnan(said["journal_volume_bytes"])


async def test_pause_and_trainers_sign_of_life_are_told() -> None:
    clock = [1000.0]
    async with gateway(now=lambda: clock[0]) as g:
        await g.admin.post("/v1/pause", headers=bearer(admin_key(Scope.TRAINER)))
        clock[0] += 30
        said = await told(g)
        assert (said["paused"], said["trainer_age_seconds"]) == (1, 30)
        await g.admin.post("/v1/resume")
        assert (await told(g))["paused"] == 0


async def test_a_trainer_that_died_before_its_gateway_is_silent_since_that_began() -> None:
    clock, disk = [1000.0], MemoryDisk()
    store = await MemoryStore.open(disk)
    async with gateway(now=lambda: clock[0], store=store) as g:
        await g.finalize(await g.session(uid="q"))
        await g.admin.post("/v1/leases", json={"ttl_s": 60.0})
    await store.aclose()
    clock[0] += 1000
    async with gateway(now=lambda: clock[0], store=await MemoryStore.open(disk)) as g:
        clock[0] += 400
        assert (await told(g))["trainer_age_seconds"] == 400
        assert (await g.admin.get("/v1/status")).json()["trainer_seen_at"] is None


ENDS: dict[str, Any] = {"ok": None, "policy": "AnswerWrong", "agent": "AgentExit", "infra": "NodeLost"}


async def test_ended_sessions_are_counted_once_by_the_class_of_their_failure() -> None:
    async with gateway() as g:
        for kind, reason in ENDS.items():
            agent = await g.session(uid=kind)
            outcome = {"failure_class": kind, "failure_reason": reason} if reason else None
            for _ in range(2):
                await g.finalize(agent, outcome=outcome)
        gone = await g.session()
        for _ in range(2):
            await g.admin.post(f"/v1/sessions/{gone.id}/abort")
        said = await told(g)
        counts = {kind: said[f'sessions_ended_total{{outcome="{kind}"}}'] for kind in (*ENDS, "aborted")}
        assert counts == dict.fromkeys(counts, 1)
