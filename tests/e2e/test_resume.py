"""A run that is stopped or killed goes on when it is run again, and nothing that was finished is sampled again."""

from __future__ import annotations

import math
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from aiohttp import web

from sandgate.gateway import offline
from sandgate.sandbox import procfs
from tests.e2e import books, truth
from tests.e2e.rig import ROOT, SHOP, Command, Run, command, written
from tests.support.recorder import Exchange, Recorder
from tests.support.waiting import until

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(400)]

AT = 9
"""Generation at which it happens. Two sessions run at a time and take 2 to 4 turns each: one at least is finished by
then, and of four tasks with two samples one at least has not begun."""
TASKS = ("errand-00", "errand-01", "errand-02", "errand-03")


class Press:
    """A hook: sends a signal to the driver when the engine is asked for the AT-th time."""

    def __init__(self, number: signal.Signals, out: Path) -> None:
        self._number, self._out = number, out
        self.driver: Command | None = None
        self.asked = 0
        self.beside: dict[int, str] = {}
        """Processes of the run at that moment, but for the driver: pid -> command line."""

    async def __call__(self, moment: str, one: Exchange) -> web.Response | None:
        self.asked += moment == "asked"
        if self.asked == AT and self.driver is not None:
            driver, self.driver = self.driver, None
            self.beside = {pid: line for pid, line in of_run(self._out) if pid != driver.process.pid}
            driver.signal(self._number)
        return None


def of_run(out: Path) -> Iterator[tuple[int, str]]:
    """(pid, command line) of everything that works on `out`: named by its command line, or by its environment."""
    for pid in procfs.pids():
        with suppress(OSError):
            folder = Path("/proc") / str(pid)
            line, environ = (folder / "cmdline").read_bytes(), (folder / "environ").read_bytes()
            if str(out).encode() in line + environ:
                yield pid, line.replace(b"\0", b" ").decode()


def finished(out: Path) -> dict[str, list[str]]:
    """Finalized session -> its turns."""
    ended = {one["session_id"] for one in offline.sessions(out) if one["state"] == "finalized"}
    every = books.sessions(out, [])
    return {name: [one.turn for one in every[name].committed] for name in ended}


def same_as_before(run: Run, before: dict[str, list[str]]) -> None:
    """What was finished is in the result, as it was."""
    rows = {row.session_id: list(row.turn_ids) for row in run.rows()}
    assert before
    assert {name: rows.get(name) for name in before} == before


async def test_ctrl_c_drains_and_a_second_run_goes_on(tmp_path: Path, recorder: Recorder) -> None:
    out = tmp_path / "out"
    file = written(tmp_path, SHOP, uids=TASKS, groupSize=2, parallelism=2)
    args = ("run", file, "--out", out, "--engine-url", recorder.url)
    press = recorder.hook = Press(signal.SIGINT, out)
    async with Command(*args) as press.driver:
        code, said = await press.driver.end()
    assert (code, said["complete"], said["trajectories_file"]) == (130, False, None)
    assert [one["state"] for one in offline.sessions(out)].count("finalized") == said["sessions"]
    assert 0 < said["sessions"] < 8
    first = finished(out)
    assert len(recorder.generations) == said["turns"] == sum(map(len, first.values())), (
        "running sessions ended"
    )

    code, said = await command(*args)
    assert (code, said["complete"], said["sessions"], said["failures"]) == (0, True, 8, {})
    same_as_before(Run(out, ""), first)
    made = truth.check(Run(out, "").rows(), recorder.generations)
    assert len(made) == len(recorder.generations) == said["turns"], "nothing was sampled twice"

    asked = len(recorder.generations)
    code, said = await command(*args)
    assert (code, said["complete"]) == (0, True)
    assert len(recorder.generations) == asked, "a third run has nothing to do"


async def test_a_driver_that_is_killed_takes_all_with_it_and_the_next_goes_on(
    tmp_path: Path, recorder: Recorder
) -> None:
    """Its engine is a process of its own, too: a recorder, which leads to the one that all tests share."""
    out = tmp_path / "out"
    engine = {
        "managed": {
            "command": [sys.executable, "-m", "tests.support.recorder", recorder.url, "$(PORT)", str(out)],
            "env": {"PYTHONPATH": str(ROOT)},
            "gpus": 0,
        }
    }
    file = written(tmp_path, SHOP, uids=TASKS, groupSize=2, parallelism=2, engine=engine)
    press = recorder.hook = Press(signal.SIGKILL, out)
    async with Command("run", file, "--out", out) as press.driver:
        code, _ = await press.driver.end()
    assert code == -signal.SIGKILL
    for part in ("sandgate.gateway.app", "tests.support.recorder", "agent.py"):
        assert any(part in line for line in press.beside.values()), f"{part} ran"

    async def gone() -> bool:
        return not list(of_run(out)) and all(one.over_at < math.inf for one in recorder.generations)

    await until(gone, what="agents, gateway, engine and what they had asked for are gone with their driver")
    first = finished(out)
    lost = {one["session_id"] for one in offline.sessions(out)} - first.keys()
    assert 1 <= len(lost) <= 2, "the ones that ran"
    before = len(recorder.generations)

    code, said = await command("run", file, "--out", out)
    assert (code, said["complete"], said["sessions"]) == (0, True, 8)
    assert said["failures"] == {"DriverLost": len(lost)}, "tried again, not scored"
    run = Run(out, "")
    same_as_before(run, first)
    assert {row.session_id for row in run.rows()}.isdisjoint(lost)
    made = truth.check(run.rows(), recorder.generations)
    since = recorder.generations[before:]
    assert [one for one in since if one not in made] == [], "all that was sampled since is new"
    assert len(made) - len(since) == sum(map(len, first.values()))
