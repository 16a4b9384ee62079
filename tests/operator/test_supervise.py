"""A process that is meant to run: started again when it ends, given up when it keeps ending."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract import descriptors
from sandgate.contract.errors import Unavailable
from sandgate.operator.local import supervise
from sandgate.operator.local.sandboxes import base_env
from sandgate.operator.local.supervise import Supervised, own_env
from sandgate.sandbox import procfs
from sandgate.sandbox.process import Guard, ProcessSpec
from tests.support.waiting import until

Make = Callable[..., Supervised]
FOREVER = "import time; time.sleep(600)"


class Bench:
    def __init__(self, folder: Path) -> None:
        self.folder, self.guard = folder, Guard()
        self.restarts: list[tuple[str, str, int]] = []
        self.again = asyncio.Event()
        """It was started for the second time."""
        self.starts = 0
        self.made: list[Supervised] = []

    def make(self, code: str, program: str = sys.executable, **more: Any) -> Supervised:
        spec = ProcessSpec(argv=[program, "-S", "-c", code], env={}, cwd=self.folder, log=self.folder / "log")

        def asked() -> ProcessSpec:
            self.starts += 1
            if self.starts == 2:
                self.again.set()
            return spec

        self.made.append(Supervised("it", asked, self.guard, on_restart=self.on_restart, **more))
        return self.made[-1]

    def on_restart(self, name: str, why: str, count: int) -> None:
        self.restarts.append((name, why, count))


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    monkeypatch.setattr(supervise, "PAUSE_S", 0.0001)
    made = Bench(tmp_path)
    yield made
    for one in made.made:
        await one.stop(0.0)
    made.guard.close()


async def test_it_is_started_again_at_once(bench: Bench) -> None:
    process = bench.make(FOREVER)
    await process.start()
    assert process.process is not None
    first = process.process.pid
    os.kill(first, signal.SIGKILL)
    await bench.again.wait()

    async def again() -> bool:
        return process.process is not None and process.process.pid != first

    await until(again, what="it runs again")
    await process.stop(0.0)
    assert bench.restarts == [("it", "signal 9", 1)]


async def test_engines_and_gateways_get_the_limit_of_descriptors_that_the_run_was_given(bench: Bench) -> None:
    """A gateway raises its own; an engine may use select(), which cannot name a descriptor of 1,024 or more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft - 1 if soft == hard else soft + 1, hard))
    try:
        process = bench.make(FOREVER)
        await process.start()
        assert process.process is not None
        given = resource.prlimit(process.process.pid, resource.RLIMIT_NOFILE)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert given == (descriptors.given(), hard)


def children() -> set[int]:
    """Of this process alone: what builds beside the tests, or an engine that they share, has children of its own."""
    return {pid for pid, (parent, _) in procfs.parents().items() if parent == os.getpid()}


async def test_one_that_is_stopped_while_it_starts_again_leaves_nothing(bench: Bench) -> None:
    before = children()
    process = bench.make(FOREVER)
    await process.start()
    assert process.process is not None
    os.kill(process.process.pid, signal.SIGKILL)
    await bench.again.wait()
    await process.stop(0.0)
    guard = bench.guard.pid
    assert children() - before <= {guard}
    assert procfs.below(guard) == []


async def test_one_that_keeps_ending_is_given_up_with_its_last_words(bench: Bench) -> None:
    process = bench.make("print('cannot bind'); raise SystemExit(3)")
    await process.start()
    assert process.task is not None
    with pytest.raises(Unavailable, match="it ended 8 times in a row: exit code 3: cannot bind"):
        await process.task
    assert len(bench.restarts) == supervise.FAILURES_MAX - 1


async def test_one_that_answers_may_be_killed_as_often_as_somebody_likes(bench: Bench) -> None:
    answered: asyncio.Queue[None] = asyncio.Queue()

    async def answers() -> str:
        answered.put_nowait(None)
        return ""

    process = bench.make(FOREVER, answers=answers)
    await process.start()
    for _ in range(2 * supervise.FAILURES_MAX):
        await answered.get()
        assert process.process is not None
        os.kill(process.process.pid, signal.SIGKILL)
    await answered.get()
    await process.stop(0.0)
    assert len(bench.restarts) == 2 * supervise.FAILURES_MAX


async def test_one_that_answers_nothing_is_given_up_all_the_same(bench: Bench) -> None:
    async def answers() -> str:
        return "starting"

    process = bench.make("raise SystemExit(3)", answers=answers)
    await process.start()
    assert process.task is not None
    with pytest.raises(Unavailable, match="it ended 8 times in a row"):
        await process.task


async def test_one_that_is_stopped_stays_so(bench: Bench) -> None:
    process = bench.make(FOREVER)
    await process.start()
    await process.stop(5.0)
    assert process.process is not None
    assert process.process.exited
    assert bench.restarts == []


async def test_what_cannot_be_started_says_so(bench: Bench) -> None:
    with pytest.raises(Unavailable, match="it cannot be started: /none is not an executable file"):
        await bench.make("", "/none").start()


async def test_readiness_is_waited_for(bench: Bench) -> None:
    process = bench.make(FOREVER)
    await process.start()
    answers = ["not yet", "nearly", ""]

    async def check() -> str:
        return answers.pop(0)

    await process.first_ready(check, within_s=30.0)
    assert answers == []


async def test_one_that_is_never_ready_says_why(bench: Bench) -> None:
    process = bench.make(FOREVER)
    await process.start()

    async def check() -> str:
        return "no engine answers"

    with pytest.raises(Unavailable, match="not ready after 0 s: no engine answers"):
        await process.first_ready(check, within_s=0.0)


async def test_one_that_ends_while_it_starts_is_not_waited_for(bench: Bench) -> None:
    process = bench.make("print('bad config'); raise SystemExit(2)")
    await process.start()

    async def check() -> str:
        return "no answer"

    with pytest.raises(Unavailable, match="ended while it started: exit code 2: bad config"):
        await process.first_ready(check, within_s=60.0)


def test_what_we_start_for_ourselves_gets_no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "HF_TOKEN",
        "GITHUB_TOKEN",
        "OPENAI_API_KEY",
        "PYTHON_KEYRING_PASSWORD",
        "SANDGATE_X",
        "EDITOR",
    ):
        monkeypatch.setenv(name, "hidden")
    monkeypatch.setenv("HF_HOME", "/cache")
    env = own_env()
    assert "hidden" not in env.values()
    assert env["HF_HOME"] == "/cache"
    assert "PATH" in env


def test_nothing_that_a_run_starts_asks_a_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    for env in (own_env(), base_env(Path("/home"))):
        assert (env["HF_HUB_OFFLINE"], env["TRANSFORMERS_OFFLINE"]) == ("1", "1")
