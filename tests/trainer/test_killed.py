"""A trainer process is killed, -9, between lease and acknowledgement; and the blocking fleet, over HTTP."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from sandgate.trainer.client import blocking
from sandgate.trainer.client.blocking import Fleet
from sandgate.trainer.client.fleet import AsyncFleet
from tests.support.gateway import Running, admin_key, gateway

pytestmark = pytest.mark.timeout(120)

T = TypeVar("T")
JOB = "shop-job"
TTL_S = 60.0

TRAINER = """
import json, sys
from sandgate.trainer import blocking

origin, key, note_file, crash = sys.argv[1:]
with blocking.fleet({"g": origin}, key, job="shop-job") as fleet:
    groups = fleet.groups(ttl_s=60.0)
    for group in groups:
        fleet.trained(group)
        if crash == "before":
            break
        note = fleet.checkpoint()
        with open(note_file, "w") as file:
            json.dump({"learned": sorted({row.session_id for row in group.trajectories}), "rollouts": note}, file)
        break
    print("trained", group.uid, flush=True)
    sys.stdin.read()  # until it is killed
"""
"""It trains on one group; `crash`: before or after it wrote its checkpoint, and never acknowledges."""


class Clock:
    """Of the gateway."""

    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def clock() -> Clock:
    return Clock()


@pytest.fixture
async def g(clock: Clock) -> AsyncIterator[Running]:
    async with gateway(lambda ids, number: f"said {number}", now=clock) as running:
        for uid in ("q0", "q1"):
            for index in range(2):
                agent = await running.session(
                    session_id=f"{uid}-{index}", uid=uid, sample_index=index, group_size=2
                )
                await agent.ask("hi")
                await running.finalize(agent, reward=1.0)
        yield running


async def killed(g: Running, note: Path, crash: str) -> str:
    """The uid that it trained on before it was killed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", TRAINER, g.origin, admin_key(), str(note), crash,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    said = (await process.stdout.readline()).split()
    process.kill()
    await process.wait()
    assert said[:1] == [b"trained"]
    return said[1].decode()


async def everything(fleet: AsyncFleet) -> list[str]:
    found = []
    async for group in fleet.groups(ttl_s=TTL_S, idle_s=0.0):
        async with group:
            found.append(group.uid)
    return found


async def test_killed_before_its_checkpoint_its_groups_are_offered_again_once_their_leases_end(
    g: Running, clock: Clock, tmp_path: Path
) -> None:
    uid = await killed(g, tmp_path / "note", "before")
    async with _fleet(g) as fleet:
        other = [one for one in ("q0", "q1") if one != uid]
        first = await everything(fleet)
        assert uid not in first, "until then they are its own"
        clock.now += TTL_S
        assert sorted(first + await everything(fleet)) == sorted([uid, *other])
        clock.now += 2 * TTL_S
        assert await everything(fleet) == []


async def test_killed_after_its_checkpoint_its_next_life_trains_on_none_of_it_again(
    g: Running, clock: Clock, tmp_path: Path
) -> None:
    uid = await killed(g, tmp_path / "note", "after")
    saved = json.loads((tmp_path / "note").read_text())
    assert saved["learned"] == [f"{uid}-0", f"{uid}-1"]
    async with _fleet(g) as fleet:
        await fleet.resume_from(saved["rollouts"])
        clock.now += 2 * TTL_S
        assert await everything(fleet) == [one for one in ("q0", "q1") if one != uid]
        assert (fleet.counters.acked, fleet.counters.repeated) == (1, 1)


def _fleet(g: Running) -> Any:
    from sandgate.trainer.client.fleet import fleet

    return fleet({"g": g.origin}, admin_key(), job=JOB)


# -- the blocking fleet -----------------------------------------------------------------------------------------------


async def in_thread(g: Running, use: Callable[[Fleet], T]) -> T:
    """`use` as a program without an event loop would; the gateway is served by this one."""

    def program() -> T:
        with blocking.fleet({"g": g.origin}, admin_key(), job=JOB, heartbeat_s=0.01) as fleet:
            return use(fleet)

    return await asyncio.to_thread(program)


async def test_a_loop_without_an_event_loop(g: Running) -> None:
    def train(fleet: Fleet) -> list[str]:
        with fleet.weight_update(1):
            assert fleet.progress().paused == ("g",)
        assert (fleet.version(), fleet.progress().paused) == (1, ())
        seen = []
        for group in fleet.groups(idle_s=0.0, max_behind=1):
            with group:
                group.renew()
                seen.append(f"{group.job} {group.uid} {len(group.trajectories)} {group.lost}")
        assert fleet.counters.acked == 2
        return sorted(seen)

    assert await in_thread(g, train) == [f"{JOB} q0 2 False", f"{JOB} q1 2 False"]
    assert [thread.name for thread in threading.enumerate() if thread.name == "sandgate fleet"] == []


async def test_a_block_that_raises_gives_back_its_group_and_what_was_leased_ahead(g: Running) -> None:
    def fail(fleet: Fleet) -> None:
        for group in fleet.groups():
            with group:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await in_thread(g, fail)
    assert sorted(await in_thread(g, lambda fleet: [one.uid for one in fleet.groups(idle_s=0.0)])) == [
        "q0",
        "q1",
    ]


async def test_a_swap_that_raises_in_another_thread_lets_agents_go_on(g: Running) -> None:
    def fail(fleet: Fleet) -> None:
        with fleet.weight_update(5):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await in_thread(g, fail)
    status = (await g.admin.get("/v1/status")).json()
    assert (status["paused"], status["policy_version"]) == (False, 0)


async def test_checkpoints_and_heartbeats_without_an_event_loop(g: Running, clock: Clock) -> None:
    def train(fleet: Fleet) -> Any:
        groups = fleet.groups(idle_s=0.0, ahead=None)
        group = next(groups)
        fleet.trained(group)
        note = fleet.checkpoint()
        fleet.commit(note)
        fleet.resume_from(note)
        other = next(groups)
        other.nack()
        groups.close()
        return note, other

    note, _ = await in_thread(g, train)
    assert len(note["trained"]) == 1
    assert g.core.gate.trainer_seen_at is not None, "a heartbeat was heard"
