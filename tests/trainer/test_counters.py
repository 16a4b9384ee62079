"""What a trainer can read of its rollouts: counters, sizes, progress."""

from __future__ import annotations

from dataclasses import replace

from sandgate.trainer.client.counters import Counters
from sandgate.trainer.client.groups import nbytes
from tests.trainer.trajectories import trajectory
from tests.trainer.world import World


def test_counters_are_prometheus_text() -> None:
    lines = Counters(leased=3, waited_s=0.5, version=7).prometheus(job='a"b').splitlines()
    assert lines[:2] == [
        "# TYPE sandgate_trainer_leased_total counter",
        'sandgate_trainer_leased_total{job="a\\"b"} 3',
    ]
    assert lines[-2:] == [
        "# TYPE sandgate_trainer_version gauge",
        'sandgate_trainer_version{job="a\\"b"} 7',
    ]
    assert "sandgate_trainer_waited_s_total 0.5" in Counters(waited_s=0.5).prometheus().splitlines()


def test_a_group_weighs_what_its_arrays_do() -> None:
    row = replace(trajectory(0), multimodal=b"12345", routed_experts=None)
    tokens = len(row.response_ids)
    assert nbytes([row, row]) == 2 * (4 * len(row.prompt_ids) + tokens * (4 + 4 + 1 + 4) + 5)


async def test_progress_sums_the_gateways_that_answer() -> None:
    async with World() as world:
        await world.roll("g0", "q0")
        await world.admins["g1"].create_session(session_id="open", job="shop-job")
        await world.admins["g0"].policy_version(3)
        await world.admins["g1"].pause()
        fleet = world.fleet()
        found = await fleet.progress()
        assert (found.gateways, found.away, found.paused) == (2, (), ("g1",))
        assert (found.sessions, found.sessions_open, found.policy_version) == (3, 1, 3)
        world.sites["g1"].cut_off = True
        found = await fleet.progress()
        assert (found.away, found.sessions, found.sessions_open) == (("g1",), 2, 0)
