"""Rounds on a real gateway: groups are started once, taken once, and acknowledged when a checkpoint has them; and what
a killed trainer leaves."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from openai import AsyncOpenAI, OpenAI

from sandgate.contract.errors import Conflict, NotFound, Unavailable
from sandgate.contract.job import Task
from sandgate.contract.lease import Lease
from sandgate.contract.session import SessionHandle
from sandgate.contract.trajectory import Trajectory
from sandgate.gateway.engine.scripted.engine import Player
from sandgate.trainer.client.fleet import AsyncFleet
from sandgate.trainer.client.rollout_client import AsyncRolloutClient
from sandgate.trainer.testing import RunningGateway, gateway
from sandgate.trainer.trl import agents as trl_agents
from sandgate.trainer.trl import rounds as trl_rounds
from sandgate.trainer.trl.agents import Agent, Driver, QueuedAgents, inline
from sandgate.trainer.trl.names import Round
from sandgate.trainer.trl.rounds import LeaseFile, Rounds
from tests.support.waiting import until

pytestmark = [pytest.mark.timeout(60), pytest.mark.asyncio(loop_scope="module")]

RUN = "run"
TASKS = [Task(uid=name, prompt=f"buy a {name}") for name in ("fig", "nut")]


JOBS = itertools.count()


@dataclass
class Site:
    """A job of its own at the one gateway of these tests."""

    job: str
    client: AsyncRolloutClient
    player: Player
    before: int

    @property
    def generations(self) -> int:
        return self.player.counts["generations"] - self.before


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared() -> AsyncIterator[RunningGateway]:
    async with gateway(lambda ids, number: "a receipt") as made:
        yield made


@pytest.fixture
def running(shared: RunningGateway) -> Site:
    return Site(f"shop-{next(JOBS)}", shared.client, shared.player, shared.player.counts["generations"])


async def buyer(*, session: SessionHandle, raw_prompt: str, sample_index: int, **_: Any) -> float:
    async with AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as client:
        await client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": raw_prompt}], n=1
        )
    return float(sample_index)


class Trainer:
    """One process that trains; it dies when its block ends, and gives nothing back."""

    def __init__(self, rounds: Rounds) -> None:
        self.rounds = rounds

    async def round(
        self, step: int, tasks: list[Task] | None = None, n: int = 2
    ) -> list[tuple[Trajectory, ...]]:
        named = Round(step).tasks(RUN, TASKS if tasks is None else tasks)
        await self.rounds.start(named, n)
        return await self.rounds.take([task.uid for task in named], 30.0)


@asynccontextmanager
async def trainer(
    running: Site, folder: Path, agent: Agent | None = buyer, *, begun: int = 0, **options: Any
) -> AsyncIterator[Trainer]:
    async with AsyncFleet({"g": running.client}, job=running.job) as fleet:
        if agent is None:
            async with _collecting(fleet, QueuedAgents(fleet), folder, begun) as made:
                yield made
            return
        async with (
            inline(
                fleet,
                agent,
                job=running.job,
                options={},
                wanted=lambda uid: True,
                **{"parallel": 4, **options},
            ) as driver,
            _collecting(fleet, driver, folder, begun) as made,
        ):
            yield made


@asynccontextmanager
async def _collecting(fleet: AsyncFleet, driver: Driver, folder: Path, begun: int) -> AsyncIterator[Trainer]:
    rounds = Rounds(
        fleet, driver, job=fleet.job, run=RUN, leases=LeaseFile(folder / "leases.json"), ttl_s=60.0
    )
    await rounds.begin(begun)
    driver.tell(rounds)
    collecting = asyncio.create_task(rounds.collect())
    try:
        yield Trainer(rounds)
    finally:
        collecting.cancel()
        await asyncio.gather(collecting, return_exceptions=True)


async def states(running: Site) -> list[str]:
    return [str(one["state"]) async for one in running.client.sessions(job=running.job)]


async def test_groups_come_in_the_order_asked_for_and_stay_leased_until_a_checkpoint_has_them(
    running: Site, tmp_path: Path
) -> None:
    async with trainer(running, tmp_path) as it:
        groups = await it.round(0)
        assert [[row.reward for row in group] for group in groups] == [[0.0, 1.0], [0.0, 1.0]]
        assert [{row.uid for row in group} for group in groups] == [{"run.t0.0.0.fig"}, {"run.t0.0.1.nut"}]
        assert await running.client.lease(job=running.job) is None, "they are on lease"
        await it.rounds.commit(0)
        assert len(it.rounds._used) == 2, "a checkpoint of no step holds nothing"
        await it.rounds.commit(1)
    assert await running.client.lease(job=running.job) is None
    assert len(LeaseFile(tmp_path / "leases.json").left()) <= 1, "of the next question at most"
    assert running.generations == 4


async def test_a_round_that_was_started_early_is_not_started_again(running: Site, tmp_path: Path) -> None:
    async with trainer(running, tmp_path) as it:
        await it.rounds.start(Round(1).tasks(RUN, TASKS), 2)
        assert len(await it.round(0)) == len(await it.round(1)) == 2
    assert running.generations == 8


async def test_a_killed_trainer_loses_no_group_and_samples_none_again(running: Site, tmp_path: Path) -> None:
    async with trainer(running, tmp_path) as it:
        first = await it.round(0)
    async with trainer(running, tmp_path) as it:
        again = await it.round(0)
    assert [[row.session_id for row in group] for group in again] == [
        [row.session_id for row in group] for group in first
    ]
    assert running.generations == 4


async def test_a_lease_is_on_disk_before_it_is_asked_for(
    running: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, known = running.client.call, []

    async def watched(asked: Any, retries: Any = None) -> Any:
        if asked.path == "/v1/leases":
            known.append(asked.json["lease_id"] in json.loads((tmp_path / "leases.json").read_text()))
        return await call(asked, retries)

    monkeypatch.setattr(running.client, "call", watched)
    async with trainer(running, tmp_path) as it:
        await it.round(0)
    assert known
    assert all(known), "else a kill before the answer holds the group until the lease's end"


async def test_a_lease_that_was_over_before_its_answer_came_is_made_anew(
    running: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, lost = running.client.call, list[str]()

    async def watched(asked: Any, retries: Any = None) -> Any:
        found = await call(asked, retries)
        if asked.path == "/v1/leases" and found is not None and not lost:
            lost.append(found.lease_id)
            await running.client.nack(found)  # as its time does
            raise Unavailable("connection reset")
        return found

    monkeypatch.setattr(running.client, "call", watched)
    async with trainer(running, tmp_path) as it:
        assert len(await it.round(0)) == 2
        assert lost
        assert lost[0] not in json.loads((tmp_path / "leases.json").read_text())


async def test_a_gateway_that_leases_to_no_trainer_ends_the_collection(
    running: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = running.client.call

    async def refused(asked: Any, retries: Any = None) -> Any:
        if asked.path == "/v1/leases":
            raise Conflict("its groups go to files")
        return await call(asked, retries)

    monkeypatch.setattr(running.client, "call", refused)
    async with trainer(running, tmp_path) as it:
        with pytest.raises(Conflict, match="go to files"):
            await it.round(0)


async def test_a_group_whose_lease_ended_and_that_comes_again_is_held_on_under_the_new_one(
    running: Site, tmp_path: Path
) -> None:
    """As behind a machine's sleep: it was trained on already, and its first lease cannot be acknowledged any more."""
    async with trainer(running, tmp_path) as it:
        await it.round(0)
        for lease_id in json.loads((tmp_path / "leases.json").read_text()):
            with suppress(NotFound):  # one that is asked for just now
                await running.client.nack(Lease(lease_id, 0.0, (), ()))
        await it.round(1)
        async with asyncio.timeout(30):
            await it.rounds.start(Round(2).tasks(RUN, TASKS), 2)
            await it.rounds.take([task.uid for task in Round(2).tasks(RUN, TASKS)], 30.0)
        await it.rounds.commit(3)
        assert not it.rounds._ready
    assert set(await states(running)) == {"finalized"}
    assert await running.client.lease(job=running.job) is None, "all are acknowledged"


async def test_at_its_end_a_trainer_gives_everything_back(running: Site, tmp_path: Path) -> None:
    async with trainer(running, tmp_path) as it:
        await it.round(0)
        await it.rounds.start(Round(1).tasks(RUN, TASKS), 2)
        await it.rounds.give_back()
    async with trainer(running, tmp_path / "elsewhere") as it:
        assert len(await it.round(0)) == len(await it.round(1)) == 2


async def test_a_group_in_the_checkpoint_is_acknowledged_unseen(running: Site, tmp_path: Path) -> None:
    async with trainer(running, tmp_path) as it:
        await it.round(0)  # killed between checkpoint and acknowledgement
    async with trainer(running, tmp_path, begun=1) as it:
        (fig, nut) = await it.round(1)
        assert {row.uid for row in (*fig, *nut)} == {"run.t1.0.0.fig", "run.t1.0.1.nut"}
        assert not it.rounds._ready
        await it.rounds.commit(2)
    assert [
        one async for one in running.client.sessions(job=running.job)
    ] == [] or await running.client.lease(job=running.job) is None


async def test_a_checkpoint_that_is_older_than_what_was_acknowledged_is_an_error_and_not_a_wait(
    running: Site, tmp_path: Path
) -> None:
    async with trainer(running, tmp_path) as it:
        await it.round(0)
        await it.rounds.commit(1)
    async with trainer(running, tmp_path) as it:
        with pytest.raises(Conflict, match=r"'run.t0.0.*' was trained on.*another name"):
            await it.round(0)


async def test_a_session_whose_agent_died_with_its_trainer_is_tried_again(
    running: Site, tmp_path: Path
) -> None:
    begun = asyncio.Event()

    async def sample_0_is_over() -> bool:
        return "finalized" in await states(running)

    async def stuck(*, session: SessionHandle, sample_index: int, **told: Any) -> float:
        reward = await buyer(session=session, sample_index=sample_index, **told)
        if sample_index:
            begun.set()
            await asyncio.Event().wait()
        return reward

    async with trainer(running, tmp_path, stuck) as it:
        await it.rounds.start(Round(0).tasks(RUN, TASKS[:1]), 2)
        await begun.wait()
        await until(sample_0_is_over, what="the other sample is finished")
    async with trainer(running, tmp_path) as it:
        (rows,) = await it.round(0, TASKS[:1])
    assert [(row.sample_index, row.attempt) for row in rows] == [(0, 0), (1, 1)]
    assert sorted(await states(running)) == ["aborted", "finalized", "finalized"]


def failing(error: BaseException, times: int = 99, *, after_turn: bool = True) -> Agent:
    left = {"n": times}

    async def agent(*, sample_index: int, **told: Any) -> float:
        if after_turn or sample_index == 0:
            await buyer(sample_index=sample_index, **told)
        if sample_index and left["n"]:
            left["n"] -= 1
            raise error
        return 1.0

    return agent


FAILURES: dict[str, tuple[Agent, list[tuple[int, str | None]]]] = {
    "an agent that raises fails alone, and is not tried again": (
        failing(ValueError("lost")), [(0, None), (0, "AgentExit")],
    ),
    "so does one that exits": (failing(SystemExit(3)), [(0, None), (0, "AgentExit")]),
    "what infrastructure broke is tried again": (failing(Unavailable("away"), 2), [(0, None), (2, None)]),
    "but not for ever: the group goes without it": (failing(Unavailable("away")), [(0, None)]),
}  # fmt: skip


@pytest.mark.parametrize(("agent", "rows"), FAILURES.values(), ids=FAILURES)
async def test_a_failed_session(
    running: Site, tmp_path: Path, agent: Agent, rows: list[tuple[int, str | None]]
) -> None:
    async with trainer(running, tmp_path, agent) as it:
        (group,) = await it.round(0, TASKS[:1])
    assert [(row.attempt, row.failure_reason) for row in group] == rows


@pytest.mark.parametrize("error", [ValueError("no turn"), Unavailable("away")], ids=["agent", "infra"])
async def test_a_group_in_which_nobody_took_a_turn_is_empty(
    running: Site, tmp_path: Path, error: Exception
) -> None:
    async def mute(**_: Any) -> float:
        raise error

    async with trainer(running, tmp_path, mute) as it:
        assert await it.round(0) == [(), ()]
        await it.rounds.commit(1)
    assert await running.client.lease(job=running.job) is None


async def test_an_agent_that_never_ends_is_cut_off(
    running: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def endless(**told: Any) -> float:
        await buyer(**told)
        await asyncio.Event().wait()
        raise AssertionError

    async with trainer(running, tmp_path, endless, session_s=4.0) as it:
        (group,) = await it.round(0, TASKS[:1], n=1)
    assert [(row.failure_class, row.failure_reason) for row in group] == [("policy", "SessionTimeout")]
    assert "longer than 4 s" in caplog.text


async def test_an_agents_own_timeout_is_not_its_sessions(running: Site, tmp_path: Path) -> None:
    async def impatient(**told: Any) -> float:
        await buyer(**told)
        raise TimeoutError("the shop is closed")

    async with trainer(running, tmp_path, impatient) as it:
        (group,) = await it.round(0, TASKS[:1], n=1)
    assert [row.failure_reason for row in group] == ["AgentExit"]


async def test_plain_functions_that_hang_keep_no_later_agent_from_its_call(
    running: Site, tmp_path: Path
) -> None:
    """No thread can be ended from outside; a session that times out without a call would be masked, and nobody told."""
    over, called = threading.Event(), []

    def hanging(*, raw_prompt: str, **told: Any) -> float:
        called.append(raw_prompt)
        if raw_prompt == TASKS[0].prompt:
            over.wait(60)
            return 0.0
        return asyncio.run(buyer(raw_prompt=raw_prompt, **told))

    try:
        async with trainer(running, tmp_path, hanging, parallel=2, session_s=4.0) as it:
            assert await it.round(0, TASKS[:1]) == [()]
            (group,) = await it.round(1, TASKS[1:])
            assert [row.reward for row in group] == [0.0, 1.0]
        assert called == [TASKS[0].prompt] * 2 + [TASKS[1].prompt] * 2
    finally:
        over.set()


async def test_an_agent_that_always_hangs_ends_the_run(
    running: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trl_agents, "HANGING", 0)
    over = threading.Event()
    try:
        async with trainer(running, tmp_path, lambda **_: over.wait(60), parallel=1, session_s=0.2) as it:
            with pytest.raises(Conflict, match=r"calls of the agent have not returned.*session_s"):
                await it.round(0, TASKS, n=3)
    finally:
        over.set()


async def test_a_plain_function_runs_in_a_thread(running: Site, tmp_path: Path) -> None:
    def plain(*, session: SessionHandle, raw_prompt: str, **_: Any) -> float:
        with OpenAI(base_url=session.base_url, api_key=session.api_key) as client:
            client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": raw_prompt}])
        return 0.5

    async with trainer(running, tmp_path, plain) as it:
        groups = await it.round(0)
    assert [row.reward for group in groups for row in group] == [0.5] * 4


async def test_without_an_agent_here_tasks_go_to_the_jobs_queue(running: Site, tmp_path: Path) -> None:
    async with trainer(running, tmp_path, None) as it:
        named = Round(0).tasks(RUN, TASKS[:1])
        await it.rounds.start(named, 1)
        assert (await running.client.status())["tasks"]["held"] == 1
        session = await running.client.create_session(
            uid=named[0].uid, job=running.job
        )  # the operator's part
        await buyer(session=session, raw_prompt="go", sample_index=0)
        await running.client.finalize(session.session_id, reward=1.0)
        ((row,),) = await it.rounds.take([named[0].uid], 30.0)
    assert row.session_id == session.session_id


async def test_a_group_that_the_operator_lost_is_empty_and_not_waited_for(
    running: Site, tmp_path: Path
) -> None:
    async with trainer(running, tmp_path, None) as it:
        (named,) = Round(0).tasks(RUN, TASKS[:1])
        await it.rounds.start([named], 2)
        session = await running.client.create_session(uid=named.uid, job=running.job, group_size=2)
        outcome = {"failure_class": "infra", "failure_reason": "ImageError"}
        await running.client.finalize(session.session_id, outcome=outcome)
        await running.client.close_group(named.uid, job=running.job)
        assert await it.rounds.take([named.uid], 30.0) == [()]


@pytest.mark.parametrize("size", [1, 3])
async def test_a_job_whose_groups_are_of_another_size_is_refused(
    running: Site, tmp_path: Path, size: int
) -> None:
    """A smaller group would be filled with rows that teach nothing."""
    async with trainer(running, tmp_path, None) as it:
        named = Round(0).tasks(RUN, TASKS)
        await it.rounds.start(named[:1], 2)
        for sample in range(size):  # the operator's part
            session = await running.client.create_session(
                uid=named[0].uid, job=running.job, sample_index=sample, group_size=size
            )
            await buyer(session=session, raw_prompt="go", sample_index=sample)
            await running.client.finalize(session.session_id, reward=1.0)
        said = f"groupSize is {size}, and groups of 2 are asked for.*num_generations"
        with pytest.raises(Conflict, match=said):
            await it.rounds.take([named[0].uid], 30.0)
        with pytest.raises(Conflict, match=said):
            await it.rounds.start(named[1:], 2)
        await it.rounds.give_back()
    assert await running.client.lease(job=running.job) is not None, "it is somebody else's to take"


async def test_what_does_not_come_is_named(running: Site, tmp_path: Path) -> None:
    async with trainer(running, tmp_path, None) as it:
        await it.rounds.start(Round(0).tasks(RUN, TASKS), 1)
        with pytest.raises(
            Unavailable, match=r"1 of 1 groups are not there after 0.2 s; first: run.t0.0.1.nut"
        ):
            await it.rounds.take(["run.t0.0.1.nut"], 0.2)


async def of_another_run(running: Site, uid: str) -> None:
    session = await running.client.create_session(uid=uid, job=running.job)
    await buyer(session=session, raw_prompt="go", sample_index=0)
    await running.client.finalize(session.session_id, reward=1.0)


async def test_groups_of_another_run_are_held_untouched_and_given_back(running: Site, tmp_path: Path) -> None:
    await of_another_run(running, "other.t0.0.0.fig")
    async with trainer(running, tmp_path) as it:
        assert len(await it.round(0)) == 2
        await it.rounds.commit(1)
        await it.rounds.give_back()
    lease = await running.client.lease(job=running.job)
    assert lease is not None
    assert [row.uid for row in lease.trajectories] == ["other.t0.0.0.fig"]


async def test_too_many_groups_of_another_run_are_an_error(
    running: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trl_rounds, "STRANGERS_MAX", 0)
    await of_another_run(running, "other.t0.0.0.fig")
    async with trainer(running, tmp_path) as it:
        with pytest.raises(Conflict, match="give each training run a job of its own"):
            await it.round(0)


async def test_a_gateway_that_is_gone_is_an_error_and_not_a_wait(running: Site, tmp_path: Path) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise Unavailable("gone")

    async with trainer(running, tmp_path) as it:
        calls: Callable[..., Any] = refuse
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(running.client, "create_session", calls)
            with pytest.raises(Unavailable, match="gone"):
                await it.round(0)
