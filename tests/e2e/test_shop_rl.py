"""Reinforcement learning for real: TRL's GRPOTrainer, a real engine whose weights change while it runs, a kill -9."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from sandgate.gateway.engine.control import EngineControl
from sandgate.operator.local.job import load_job
from sandgate.operator.local.serve import Served, serve_local
from sandgate.trainer.client.fleet import fleet
from tests.e2e.test_resume import of_run
from tests.e2e.truth import TOLERANCE
from tests.support.vllm import Vllm
from tests.support.waiting import until
from tests.trainer.test_trl import environ, environment

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "shop-rl"
DEMO = ROOT / "examples" / "learning" / "demo.py"
HERE = Path(__file__).parent
STEPS, BATCH, SAMPLES = 4, 16, 4
KILLED_AFTER = 2
"""Steps that are logged when the kill falls; the next round is under way by then."""
WITHIN_S = 600.0
"""Where the test cluster is compiled beside it, what takes 200 s took over 300."""
"""Half a minute alone on two cores."""

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="TRL's lock holds wheels for Linux"),
]


@pytest.fixture
async def engine(vllm: Vllm) -> AsyncIterator[str]:
    """The engine that all tests share; afterwards it has the weights that it started with."""
    yield vllm.url
    async with EngineControl([vllm.url]) as control:
        await control.reload_weights(str(vllm.folder))
        await control.update_weight_version("default")
        await control.reset_prefix_cache()
        await control.resume()


async def start(words: list[str], **env: str) -> asyncio.subprocess.Process:
    python = await asyncio.to_thread(environment)
    return await asyncio.create_subprocess_exec(
        python, *words, env=environ(**env), cwd=ROOT, stdout=PIPE, stderr=STDOUT, start_new_session=True
    )


async def end(process: asyncio.subprocess.Process, code: int = 0) -> str:
    try:
        async with asyncio.timeout(WITHIN_S):
            out, _ = await process.communicate()
    except TimeoutError:  # or it goes on beside all other tests
        os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()
        raise
    text = out.decode("utf-8", "replace")
    assert process.returncode == code, text[-4_000:]
    return text


class Run:
    """train.py under witness, in one folder."""

    def __init__(self, out: Path, served: Served) -> None:
        self.out, self.record = out, out / "record.jsonl"
        rooms = environ()["PYTHONPATH"]
        self._env = {
            "PYTHONPATH": f"{EXAMPLE}:{rooms}",
            "LEARNING_SERVED": json.dumps({"origins": served.origins, "key": served.key}),
        }

    async def start(self) -> asyncio.subprocess.Process:
        words = [str(HERE / "recorded_rl.py"), "train", str(self.record), "--out", str(self.out)]
        words += ["--steps", str(STEPS), "--batch", str(BATCH), "--samples", str(SAMPLES)]
        return await start([*words, "--ahead", "1", "--no-evaluate"], **self._env)

    async def judged(self) -> dict[str, Any]:
        words = [str(HERE / "recorded_rl.py"), "check", str(self.record), str(self.out / "weights")]
        text = await end(await start(words))
        found: dict[str, Any] = json.loads(text.splitlines()[-1])
        return found

    def steps(self) -> list[int]:
        path = self.out / "steps.jsonl"
        told = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [one["step"] for one in told if "solved" in one]

    def rounds(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.record.read_text().splitlines()]


async def killed(run: Run, process: asyncio.subprocess.Process) -> None:
    """After KILLED_AFTER steps, somewhere in the next one."""

    async def so_far() -> bool:
        assert process.returncode is None, (await process.communicate())[0].decode()[-4_000:]
        return len(run.steps()) >= KILLED_AFTER

    await until(so_far, what=f"{KILLED_AFTER} steps are trained", within_s=WITHIN_S, every_s=0.1)
    process.kill()
    await end(process, code=-9)


async def uncommitted(served: Served) -> list[dict[str, Any]]:
    """Finished sessions whose trajectories nobody acknowledged; attempts that infrastructure broke never are."""
    async with fleet(served.origins, served.key, job="shop-rl") as gateways:
        ended = [one async for one in gateways.sessions() if one["state"] == "finalized"]
    return [one for one in ended if not one["committed"] and one.get("failure_class") != "infra"]


async def test_a_trainer_that_is_killed_trains_no_group_twice_on_tokens_with_their_true_versions_and_logprobs(
    engine: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    job = load_job(EXAMPLE / "job.yaml")
    async with serve_local(
        job, manifest_dir=EXAMPLE, out=out, progress=lambda event: None, engine_url=engine
    ) as served:
        run = Run(out, served)
        await killed(run, await run.start())
        await end(await run.start())
        left = await uncommitted(served)
    assert not left, "all that was trained on is acknowledged, and nothing was sampled for nothing"
    _trained_once(run)
    _versions(run.rounds())
    found = await run.judged()
    assert found["worst"] < TOLERANCE
    assert found["mixed"] >= SAMPLES, "trajectories that span an update"
    assert found["other"] > 100 * TOLERANCE, "under another version's weights a token is told apart"


def _trained_once(run: Run) -> None:
    """By the last round of each step: what went before a kill is not in the weights."""
    assert sorted(set(run.steps())) == list(range(1, STEPS + 1))
    kept = {one["step"]: one for one in run.rounds()}
    sessions = [name for one in kept.values() for name in one["sandgate_session"]]
    assert len(sessions) == len(set(sessions)) == STEPS * BATCH
    assert len({uid for one in kept.values() for uid in one["uid"]}) == STEPS * BATCH // SAMPLES
    again = [one for one in run.rounds() if one is not kept[one["step"]]]
    assert all(one["sandgate_session"] == kept[one["step"]]["sandgate_session"] for one in again), (
        "a step that is done again is done on the same data"
    )


def _versions(rounds: list[dict[str, Any]]) -> None:
    trainer = [one["sandgate_version"] for one in rounds]
    assert trainer == sorted(set(trainer)), "a version is one set of weights"
    first: dict[int, int] = {}
    for one in rounds:
        first.setdefault(one["step"], one["sandgate_version"])
        known = {version for row in one["sandgate_versions"] for version in row} - {-1}
        assert max(known) <= one["sandgate_version"], "nothing is from the future"
        assert min(known) >= first[max(0, one["step"] - 1)], "begun one step before, at the earliest"


async def test_the_demo_starts_a_killed_trainer_again_and_draws_the_curve(
    engine: str, tmp_path: Path
) -> None:
    words = [
        str(DEMO),
        "--example",
        str(EXAMPLE),
        "--out",
        str(tmp_path),
        "--engine-url",
        engine,
        "--steps",
        "2",
    ]
    words += ["--batch", "16", "--samples", "4", "--no-evaluate", "--json"]
    demo = await start(words)

    async def trained() -> bool:
        assert demo.returncode is None, (await demo.communicate())[0].decode()[-4_000:]
        return (
            '"solved"' in (tmp_path / "steps.jsonl").read_text()
            if (tmp_path / "steps.jsonl").exists()
            else False
        )

    await until(trained, what="a step is trained", within_s=WITHIN_S, every_s=0.1)
    (trainer,) = (pid for pid, line in of_run(tmp_path) if "train.py" in line)
    os.kill(trainer, signal.SIGKILL)
    said = json.loads((await end(demo)).splitlines()[-1])
    assert (said["done"], said["steps"], said["trainer_starts"]) == (True, 2, 2)
    assert said["logprob_difference_max"] < TOLERANCE
    assert (tmp_path / "reward.png").read_bytes().startswith(b"\x89PNG")


async def test_the_pages_program_prints_what_it_shows(engine: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "trainers" / "trl.md").read_text("utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (shown,) = re.findall(r"```text\n(.*?)```", page, re.DOTALL)
    (tmp_path / "program.py").write_text(program)
    process = await start([str(tmp_path / "program.py")], OUT=str(tmp_path / "out"), ENGINE_URL=engine)
    assert (await end(process)).endswith(shown)
