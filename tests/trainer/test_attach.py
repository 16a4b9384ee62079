"""A trainer attaches to `sandgate run`: real processes on both sides, a scripted engine between; and who dies when."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

import sandgate.trainer
from sandgate.contract.errors import Unavailable
from sandgate.contract.job import Task
from sandgate.contract.keys import Scope
from sandgate.contract.trajectory import Ids
from sandgate.gateway.engine.scripted.script import INITIAL_LABEL, Gate, Line, Reply
from sandgate.operator.local.attendance import look
from sandgate.trainer import tinymodel
from sandgate.trainer.cli.inspect import count
from sandgate.trainer.client import blocking
from sandgate.trainer.client.attach import RunPlace
from sandgate.trainer.client.groups import Group
from sandgate.trainer.client.rollout_client import AsyncRolloutClient
from sandgate.trainer.client.streaming import Ahead
from sandgate.trainer.export.arrow import read_parquet
from sandgate.trainer.runs.sources import Stored
from tests.support.forked import over
from tests.support.waiting import until
from tests.trainer.jobs import Ended, Lab, ended, lab

pytestmark = [pytest.mark.slow, pytest.mark.timeout(200)]

WITHIN_S = 90.0
UIDS = ["q1", "q2", "q3", "q4"]


def tasks(*uids: str) -> str:
    """As the manifest has them."""
    return f"tasks: {{inline: {json.dumps([{'uid': uid, 'prompt': f'{uid}?'} for uid in uids])}}}"


def asks(here: Lab, uids: Iterable[str] = UIDS, **spec: Any) -> None:
    """The job has these tasks, and further fields."""
    text = (here.folder / "job.yaml").read_text()
    old = next(line for line in text.splitlines() if line.startswith("  tasks:"))
    text = text.replace(old, f"  {tasks(*uids)}" if uids else "  tasks: {queue: {capacity: 4}}")
    more = "".join(f"  {name}: {json.dumps(value)}\n" for name, value in spec.items())
    (here.folder / "job.yaml").write_text(text + more)


def written(here: Lab) -> list[tuple[str, int]]:
    """(task, sample) of the rows in the run's file."""
    rows = read_parquet(here.folder / "out" / "trajectories.parquet")
    return sorted((row.uid, row.sample_index) for row in rows)


def whole(*uids: str) -> list[tuple[str, int]]:
    """Two samples of each."""
    return [(uid, sample) for uid in sorted(uids) for sample in range(2)]


def files(here: Lab) -> int:
    """Groups that are written."""
    return len(list((here.folder / "out" / "groups").glob("ask-*.parquet")))


async def has_files(here: Lab, count: int) -> None:
    async def there() -> bool:
        return files(here) >= count

    await until(there, what=f"{count} groups are written", within_s=WITHIN_S)


class Held:
    """Says yes; what is asked about these tasks only once their gates are open."""

    def __init__(self, *uids: str) -> None:
        self.gates = {uid: Gate() for uid in uids}

    def __call__(self, ids: Ids, number: int) -> Line:
        text = tinymodel.decode(ids)
        gate = next((one for uid, one in self.gates.items() if f"{uid}?" in text), None)
        return Reply([*tinymodel.encode("yes"), tinymodel.END], gate=gate)

    def open(self) -> None:
        """All of them."""
        for gate in self.gates.values():
            gate.open.set()


async def said(process: asyncio.subprocess.Process, word: str) -> None:
    """Until a line of stderr has the word."""
    assert process.stderr is not None
    lines: list[str] = []
    async with asyncio.timeout(WITHIN_S):
        while not lines or word not in lines[-1]:
            lines.append((await process.stderr.readline()).decode())
            assert lines[-1], f"it ended without saying {word!r}: {lines}"


async def trained(here: Lab, wait_s: float = WITHIN_S) -> list[str]:
    """Attach, train on all groups, leave: their tasks."""
    seen: list[str] = []
    async with sandgate.trainer.local(here.folder / "out", wait_s=wait_s) as fleet:
        async for group in fleet.groups():
            async with group:
                seen.append(group.uid)
    return seen


def versions(group: Group) -> set[int]:
    """Those that sampled it."""
    return {one for row in group.trajectories for one in row.versions if one >= 0}


def result(done: Ended) -> dict[str, Any]:
    """What --json said."""
    found: dict[str, Any] = json.loads(done.stdout)
    return found


async def test_every_group_comes_once_and_is_written_and_the_loop_ends_with_the_run(tmp_path: Path) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        asks(here)
        process = await here.start("--json")
        seen: list[str] = []
        async with sandgate.trainer.local(tmp_path / "out") as fleet:
            version = await fleet.version()
            async for group in fleet.groups():
                async with group:
                    seen.append(group.uid)
                    assert [row.sample_index for row in group.trajectories] == [0, 1]
                version += 1
                async with fleet.weight_update(version):
                    pass
            assert fleet.engines == (here.url,)
        done = await ended(process)
        assert sorted(seen) == UIDS
        assert (done.code, result(done)["problems"]) == (0, []), done.stderr
        assert written(here) == whole(*UIDS)
        assert list((tmp_path / "out" / "trainers").iterdir()) == []


async def test_a_trainer_that_comes_late_gets_what_finished_before(tmp_path: Path) -> None:
    held = Held("q4")
    async with lab(tmp_path, held) as here:
        asks(here)
        process = await here.start("--json")
        await has_files(here, 3)
        seen: list[str] = []
        async with sandgate.trainer.local(tmp_path / "out") as fleet:
            async for group in fleet.groups():
                async with group:
                    seen.append(group.uid)
                if len(seen) == 3:
                    assert sorted(seen) == UIDS[:3]
                    held.open()
        assert (await ended(process)).code == 0
        assert sorted(seen) == UIDS
        assert written(here) == whole(*UIDS)


async def test_a_trainer_may_wait_for_the_run_and_two_share_the_groups(tmp_path: Path) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        asks(here)
        trainers = [asyncio.ensure_future(trained(here)) for _ in range(2)]
        process = await here.start("--json")
        shares = await asyncio.gather(*trainers)
        assert sorted(shares[0] + shares[1]) == UIDS
        assert (await ended(process)).code == 0


TRAINER = """
import asyncio, sandgate.trainer
async def main():
    async with sandgate.trainer.local("out") as fleet:
        async for group in fleet.groups():
            print(group.uid, flush=True)
            await asyncio.Event().wait()
asyncio.run(main())
"""


SAVING = TRAINER.replace(
    "print",
    """fleet.trained(group)
            note = await fleet.checkpoint()
            with open("note", "w") as file:
                json.dump(note, file)
            print""",
).replace("asyncio,", "asyncio, json,")
"""It has written its checkpoint, and not acknowledged anything."""


async def working(here: Lab, program: str = TRAINER) -> asyncio.subprocess.Process:
    """A trainer in a process of its own that has leased a group."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, cwd=here.folder, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert (await process.stdout.readline()).decode().strip() in UIDS
    return process


async def killed(process: asyncio.subprocess.Process) -> None:
    process.kill()
    await process.wait()


async def test_a_run_says_how_many_calls_go_on_and_which_gateways_are_on_hold(tmp_path: Path) -> None:
    """A weight update holds its agents' turns: of them the journals in its folder say nothing."""
    held, out = Held(*UIDS), tmp_path / "out"

    async def shows(calls: int, paused: list[str]) -> None:
        async def so() -> bool:
            found = await asyncio.to_thread(count, Stored(out), "")
            return (found["in_flight"], found["paused"]) == (calls, paused)

        await until(so, what=f"{calls} calls in flight, on hold: {paused}", within_s=WITHIN_S)

    async with lab(tmp_path, held) as here:
        asks(here)
        process = await here.start("--json")
        place = RunPlace(out)
        run = await place.here()
        ((name, origin),) = run.gateways.items()
        async with AsyncRolloutClient(origin, place.key(run.job, Scope.ADMIN)) as admin:
            await shows(2, [])
            await admin.pause()
            held.open()  # these two end, and the next two are held
            await has_files(here, 1)
            await shows(2, [name])
            assert (await admin.status())["trainer_seen_at"] is None, "whoever looks is no trainer"
            await admin.resume()
        assert (await ended(process)).code == 0
        await shows(0, [])


async def test_a_group_of_a_trainer_that_was_killed_is_offered_again_at_once(tmp_path: Path) -> None:
    """Its lease had five minutes to go; everything ends meanwhile, and the run waits for the trainer to come back."""
    held = Held("q4")
    async with lab(tmp_path, held) as here:
        asks(here)
        process = await here.start("--json")
        await killed(await working(here))
        held.open()
        await has_files(here, 4)
        async with asyncio.timeout(WITHIN_S):
            assert sorted(await trained(here)) == UIDS
        done = await ended(process)
        assert (done.code, result(done)["problems"]) == (0, []), done.stderr
        assert written(here) == whole(*UIDS)


async def test_the_other_trainer_gets_the_group_of_one_that_was_killed(tmp_path: Path) -> None:
    held = Held("q4")
    async with lab(tmp_path, held) as here:
        asks(here)
        process = await here.start()
        first = await working(here)
        await said(process, f"a trainer is attached (process {first.pid})")
        training = asyncio.ensure_future(trained(here))
        await said(process, f"a trainer is attached (process {os.getpid()})")
        await killed(first)
        held.open()
        async with asyncio.timeout(WITHIN_S):
            assert sorted(await training) == UIDS
        assert (await ended(process)).code == 0


async def test_a_blocking_trainer_tells_its_leases_as_one_that_awaits_does(tmp_path: Path) -> None:
    """Of a lease that a checkpoint may have, before `checkpoint` returns; of another, before it is taken."""
    async with lab(tmp_path, ["yes"]) as here:
        asks(here)
        process = await here.start()

        def train() -> list[tuple[bool, bool]]:
            offered = []
            with blocking.local(tmp_path / "out") as fleet:
                (file,) = (tmp_path / "out" / "trainers").glob(f"{os.getpid()}-*")
                for group in fleet.groups(ahead=Ahead(groups=2)):
                    before = file.read_text().split()
                    fleet.trained(group)
                    note = fleet.checkpoint()
                    mine = note["trained"][-1]["lease"]
                    offered.append((mine in before, mine in file.read_text().split()))
                    fleet.commit(note)
            return offered

        assert await asyncio.to_thread(train) == [(True, False)] * len(UIDS)
        assert (await ended(process)).code == 0


async def test_what_the_checkpoint_of_one_that_was_killed_has_is_not_for_the_other(tmp_path: Path) -> None:
    """It would learn from the group, too: the one that was killed comes back, and goes on from its checkpoint."""
    held = Held("q4")
    async with lab(tmp_path, held) as here:
        asks(here)
        process = await here.start()
        await killed(await working(here, SAVING))
        await said(process, "died")
        seen: list[str] = []
        async with sandgate.trainer.local(tmp_path / "out") as other, asyncio.timeout(WITHIN_S):
            async for group in other.groups():
                async with group:
                    seen.append(group.uid)
                if len(seen) == 2:
                    held.open()
                if len(seen) == 3:
                    async with sandgate.trainer.local(tmp_path / "out") as back:
                        await back.resume_from(json.loads((tmp_path / "note").read_text()))
                        assert back.counters.repeated == 1
        assert len(set(seen)) == 3
        assert (await ended(process)).code == 0


async def test_a_trainer_that_does_not_come_back_is_waited_for_no_longer_than_its_heartbeat(
    tmp_path: Path,
) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        # Long enough for the other sessions to end: those of a job whose trainer is silent are stopped, and wait.
        asks(here, trainer={"heartbeatSeconds": 15, "collectSeconds": 600})
        process = await here.start("--json")
        await killed(await working(here))
        done = await ended(process)
        assert done.code == 0, done.stderr
        assert "groups were not acknowledged by the trainer" in result(done)["problems"][0]
        assert written(here) == whole(*UIDS)


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGINT], ids=["killed", "stopped"])
async def test_a_run_that_goes_away_and_goes_on_is_followed_and_takes_the_acknowledgement(
    tmp_path: Path, sign: signal.Signals
) -> None:
    """Its gateways come back on other ports."""
    held = Held("q4")
    async with lab(tmp_path, held) as here:
        asks(here)
        first = second = await here.start()
        seen: list[str] = []
        async with sandgate.trainer.local(tmp_path / "out", wait_s=WITHIN_S) as fleet:
            async for group in fleet.groups():
                async with group:
                    if not seen:
                        await has_files(here, 3)
                        first.send_signal(sign)
                        if sign is signal.SIGINT:
                            await said(first, "stopping")
                            first.send_signal(sign)  # at once: it does not wait for this trainer
                        await ended(first)
                        second = await here.start("--json")
                        held.open()
                    seen.append(group.uid)
            assert fleet.counters.lost == 0
        assert sorted(seen) == UIDS, "none twice"
        assert (await ended(second)).code == 0
        assert written(here) == whole(*UIDS)


async def test_a_run_whose_engine_was_started_anew_goes_on_when_the_trainer_has_brought_its_weights(
    tmp_path: Path,
) -> None:
    """Both died, as with their machine: the engine has the weights that it was started with."""
    held = Held("q4")
    async with lab(tmp_path, held) as here:
        asks(here)
        first = await here.start()
        seen: dict[str, set[int]] = {}
        async with sandgate.trainer.local(tmp_path / "out", wait_s=WITHIN_S) as fleet:
            async with fleet.weight_update(3):
                here.player.label = "step-3"
            groups = fleet.groups()
            for _ in UIDS[:3]:
                async with await anext(groups) as group:
                    seen[group.uid] = versions(group)
            first.kill()
            await ended(first)
            here.player.label = INITIAL_LABEL
            second = await here.start("--json")
            await said(second, "no engine takes turns")
            before = here.player.counts["generations"]
            held.open()
            async with fleet.weight_update(4):
                assert here.player.counts["generations"] == before, "no agent was begun"
                here.player.label = "step-4"
            async for group in groups:
                async with group:
                    seen[group.uid] = versions(group)
        assert seen.pop("q4") == {4}
        assert sorted(seen) == UIDS[:3]
        assert set.union(*seen.values()) <= {0, 3}, "some were sampled before the first update"
        assert (await ended(second)).code == 0
        assert written(here) == whole(*UIDS)


async def test_a_run_that_is_told_to_stop_lets_a_trainer_acknowledge_what_it_works_on(tmp_path: Path) -> None:
    held = Held("q4")
    async with lab(tmp_path, held) as here:
        asks(here, [*UIDS, "q5"])  # which is not begun when it is told to stop
        process = await here.start()
        await has_files(here, 3)
        async with sandgate.trainer.local(tmp_path / "out", wait_s=0.0) as fleet:
            async for group in fleet.groups():
                async with group:
                    process.send_signal(signal.SIGINT)
                    await said(process, "stopping")
                    held.open()
                    await said(process, "s to acknowledge what it works on")
                break
            assert (await ended(process)).code == 130
            with pytest.raises(Unavailable, match=r"start it with: sandgate run JOB\.yaml --out"):
                await fleet.lease()
        again = await here.start("--json")
        assert sorted([group.uid, *await trained(here)]) == [*UIDS, "q5"], (
            "what was acknowledged is not offered again"
        )
        assert (await ended(again)).code == 0


async def test_a_run_does_not_end_before_its_trainer_and_a_loop_that_blocks_may_attach(
    tmp_path: Path,
) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        asks(here, ["q1"])
        process = await here.start()
        working, go_on = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def train() -> list[str]:
            with blocking.local(tmp_path / "out") as fleet:
                seen = []
                for group in fleet.groups():
                    with group:
                        loop.call_soon_threadsafe(working.set)
                        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()
                        seen.append(group.uid)
                assert fleet.engines == (here.url,)
                return seen

        training = asyncio.ensure_future(asyncio.to_thread(train))
        await working.wait()
        await said(process, "everything ended; the run waits for the trainer (1 group not acknowledged)")
        assert process.returncode is None
        go_on.set()
        assert await training == ["q1"]
        assert (await ended(process)).code == 0


async def test_ctrl_c_while_the_run_only_waits_leaves_its_trainer_what_it_works_on(tmp_path: Path) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        asks(here, ["q1"])
        process = await here.start()
        async with sandgate.trainer.local(tmp_path / "out") as fleet:
            async for group in fleet.groups():
                async with group:
                    await said(process, "everything ended; the run waits for the trainer")
                    process.send_signal(signal.SIGINT)
                    await said(process, "a trainer has 30 s to acknowledge what it works on; Ctrl-C again")
        done = await ended(process)
        assert done.code == 0, done.stderr
        assert "not acknowledged" not in done.stdout + done.stderr
        assert "0 sessions" not in done.stderr


async def test_groups_of_a_run_that_ended_without_its_trainer_come_when_it_is_run_again(
    tmp_path: Path,
) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        asks(here)
        process = await here.start()
        async with sandgate.trainer.local(tmp_path / "out"):
            await said(process, "a trainer is attached")  # the run looks twice a second
        # It left in order: nobody waits for it.
        done = await ended(process)
        assert done.code == 0
        assert "4 groups were not acknowledged by the trainer" in done.stdout + done.stderr
        with pytest.raises(Unavailable, match="is over: complete, 4 groups not acknowledged by a trainer"):
            await trained(here, wait_s=0.0)
        training = asyncio.ensure_future(trained(here))
        again = await here.run("--json")
        assert sorted(await training) == UIDS
        assert (again.code, here.player.counts["generations"]) == (0, 8)
        assert written(here) == whole(*UIDS)


async def test_of_a_run_that_failed_it_is_said_so_and_how_much_is_missing(tmp_path: Path) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        agent = tmp_path / "agent.py"
        agent.write_text("import os\nassert os.environ['SANDGATE_PROMPT'] != 'q1?'\n" + agent.read_text())
        asks(here)
        assert (await here.run()).code == 1
        with pytest.raises(
            Unavailable, match="is over: failed, 1 groups missing, 4 groups not acknowledged by a trainer"
        ):
            await trained(here, wait_s=0.0)


async def test_without_a_run_it_is_said_what_to_do(tmp_path: Path) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        with pytest.raises(Unavailable, match=r"no such folder; start it with: sandgate run JOB\.yaml --out"):
            await trained(here, wait_s=0.0)
        (tmp_path / "out").mkdir()
        with pytest.raises(Unavailable, match=r"no run in .*out; start it with"):
            await trained(here, wait_s=0.0)
        process = await here.start()
        async with sandgate.trainer.local(tmp_path / "out"):
            process.kill()
            await process.wait()
        with pytest.raises(Unavailable, match="was killed before it was over"):
            await trained(here, wait_s=0.0)


# -- staleness --------------------------------------------------------------------------------------------------------

ON_POLICY = {"maxVersionsBehind": 0, "batchSize": 1}


async def test_staleness_holds_while_a_trainer_publishes_versions(tmp_path: Path) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        asks(here, staleness=ON_POLICY)

        async def train() -> list[set[int]]:
            versions = []
            async with sandgate.trainer.local(tmp_path / "out") as fleet:
                async for group in fleet.groups():
                    async with group:
                        versions.append({one for row in group.trajectories for one in row.versions})
                    async with fleet.weight_update(len(versions)):
                        pass
            return versions

        training = asyncio.ensure_future(train())
        done = await here.run("--json")
        assert await training == [{0}, {1}, {2}, {3}], (
            "a group begins when the version before it is published"
        )
        assert done.code == 0


async def test_staleness_counts_from_the_version_that_the_job_begins_with_and_on_in_the_run_that_goes_on(
    tmp_path: Path,
) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        asks(here, (), staleness=ON_POLICY)
        versions: list[set[int]] = []

        async def train(first: int, groups: int, *uids: str) -> None:
            async with sandgate.trainer.local(tmp_path / "out") as fleet:
                async with fleet.weight_update(first):
                    pass
                await fleet.push_tasks(pushed(*uids), last=not uids)
                taken = 0
                async for group in fleet.groups():
                    async with group:
                        versions.append({one for row in group.trajectories for one in row.versions})
                    taken += 1
                    if taken == groups:
                        return
                    async with fleet.weight_update(first + taken):
                        pass

        process = await here.start()
        await train(500, 3, *UIDS)
        process.send_signal(signal.SIGINT)
        await process.wait()
        kept = json.loads((tmp_path / "out" / "versions.json").read_text())
        assert (kept["version"], kept["published"]) == (502, 2)
        assert kept["done"] <= 2, (
            "the third was acknowledged behind 502: it brings no group before the next version"
        )
        process = await here.start()
        await train(503, 1)
        assert (await ended(process)).code == 0
        assert versions == [{500}, {501}, {502}, {503}]


async def test_staleness_waits_for_nobody_once_the_trainer_has_left(tmp_path: Path) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        asks(here, staleness=ON_POLICY)

        async def one() -> None:
            async with sandgate.trainer.local(tmp_path / "out") as fleet:
                async for group in fleet.groups():
                    await group.ack()
                    return

        training = asyncio.ensure_future(one())
        done = await here.run("--json")
        await training
        assert done.code == 0, done.stderr
        assert written(here) == whole(*UIDS)


# -- a queue ----------------------------------------------------------------------------------------------------------


def pushed(*uids: str) -> list[Task]:
    return [Task(uid=uid, prompt=f"{uid}?") for uid in uids]


async def test_tasks_that_a_trainer_pushes_are_run_as_they_come_until_it_says_that_these_were_all(
    tmp_path: Path,
) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        asks(here, ())
        process = await here.start("--json")
        seen: list[str] = []
        async with sandgate.trainer.local(tmp_path / "out") as fleet:
            await fleet.push_tasks(pushed("q1", "q2"))
            async for group in fleet.groups():
                async with group:
                    seen.append(group.uid)
                if len(seen) == 2:
                    # q2 was done before; there is room for these when the places of the first two are free
                    await fleet.push_tasks(pushed("q2", "q3", "q4"), last=True)
        done = await ended(process)
        assert done.code == 0, done.stderr
        assert sorted(seen) == UIDS
        assert written(here) == whole(*UIDS)
        assert here.player.counts["generations"] == 8


async def test_a_queue_goes_on_after_a_kill_and_its_end_is_remembered(tmp_path: Path) -> None:
    held = Held("q2", "q3")
    async with lab(tmp_path, held) as here:
        asks(here, (), gateway={"replicas": 2})
        text = (tmp_path / "job.yaml").read_text()
        (tmp_path / "job.yaml").write_text(text.replace("parallelism: 2", "parallelism: 8"))
        process = await here.start("--json")
        async with sandgate.trainer.local(tmp_path / "out") as fleet:
            await fleet.push_tasks(pushed(*UIDS), last=True)
        await has_files(here, 1)
        process.kill()
        await ended(process)
        held.open()
        again = await here.run("--json")
        assert again.code == 0, again.stderr
        assert written(here) == whole(*UIDS)
        assert (await here.run("--json")).code == 0, "and it stays so"
        assert written(here) == whole(*UIDS)


@pytest.mark.parametrize(
    "spec",
    [{}, {"trainer": {"heartbeatSeconds": 1, "collectSeconds": 600}}],
    ids=["", "nor is its silence minded"],
)
async def test_a_queue_whose_trainer_said_that_these_were_all_and_left_goes_on_alone(
    spec: dict[str, Any], tmp_path: Path
) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        asks(here, (), staleness=ON_POLICY, **spec)
        process = await here.start("--json")
        async with sandgate.trainer.local(tmp_path / "out") as fleet:
            await fleet.push_tasks(pushed(*UIDS), last=True)
            async for group in fleet.groups():
                await group.ack()
                break
        done = await ended(process)
        assert done.code == 0, done.stderr
        assert written(here) == whole(*UIDS)


async def test_a_run_that_nothing_runs_of_until_a_trainer_comes_says_so_once(tmp_path: Path) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        asks(here, (), staleness=ON_POLICY, trainer={"heartbeatSeconds": 4, "collectSeconds": 6})
        process = await here.start("--json")
        async with sandgate.trainer.local(tmp_path / "out") as fleet:
            await fleet.push_tasks(pushed(*UIDS))
            async for group in fleet.groups():
                await group.ack()
                break
        done = await ended(process)
        assert done.code == 1
        said = [
            line for line in done.stderr.splitlines() if "nothing runs until a trainer does something" in line
        ]
        assert len(said) == 2, done.stderr
        assert "before the trainer's next policy version: 1 group begun" in said[0]
        assert "nothing heard of the trainer for heartbeatSeconds 4" in said[1]


async def test_a_queue_whose_trainer_is_silent_ends(tmp_path: Path) -> None:
    async with lab(tmp_path, ["yes"]) as here:
        asks(here, (), trainer={"heartbeatSeconds": 1, "collectSeconds": 2})
        done = await here.run("--json")
        assert (done.code, result(done)["complete"]) == (1, False)


# -- by itself --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", ["presence.leave()", "die()"])
def test_a_worker_that_its_trainer_forked_off_is_no_trainer(end: str, tmp_path: Path) -> None:
    enters = """
from sandgate.trainer.client.attach import Presence

presence = Presence("me")
presence.enter(Path(sys.argv[1]))
fork()
"""
    with over(enters + end, str(tmp_path)):
        assert [seen.held for _, seen in look(tmp_path)] == ([False] if end == "die()" else [])


def test_the_name_costs_nothing_until_it_is_called() -> None:
    code = "import sys; from sandgate.trainer import local; print('httpx' in sys.modules, callable(local))"
    told = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True)
    assert told.stdout.split() == [b"False", b"True"]
