"""examples/first_day before a real engine: what its model does is chance; how each end reads is not."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from sandgate.trainer.export.arrow import read_parquet
from tests.e2e.rig import SANDGATE, WITHIN_S
from tests.support.vllm import Vllm
from tests.trainer import first_day
from tests.trainer.jobs import Ended, ended

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(400)]


async def run(folder: Path, engine: str, *words: str) -> Ended:
    """`sandgate run job.yaml --out out`, in the example's folder."""
    pipe = asyncio.subprocess.PIPE
    words = ("run", "job.yaml", "--out", "out", "--engine-url", engine, *words)
    process = await asyncio.create_subprocess_exec(SANDGATE, *words, cwd=folder, stdout=pipe, stderr=pipe)
    try:
        async with asyncio.timeout(WITHIN_S):
            return await ended(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_five_kinds_of_ends_read_differently(tmp_path: Path, vllm: Vllm) -> None:
    here = first_day.copied(tmp_path)
    first = await run(here, vllm.url)
    assert first.code == 0, first.stderr
    first_day.live_lines_tell_them_apart(first.stderr)

    rows = list(read_parquet(here / "out" / "trajectories.parquet"))
    kinds = first_day.rows_read_as_they_should(rows)
    assert {kind: kinds[kind] for kind in first_day.SAYS} == dict.fromkeys(first_day.SAYS, 2)
    assert kinds["right"] > 0, "two of three errands go well; twelve of them had the chance"
    assert kinds["wrong"] >= first_day.SAMPLES, "what is impossible is done wrongly"
    first_day.groups_mean_what_the_policy_did(rows)

    again = await run(here, vllm.url, "--json")
    told = json.loads(again.stdout)
    wrong = kinds["wrong"] + kinds["raises"]
    assert told["failures"] == {"AgentExit": 2, "AgentSignal": 2, "AnswerWrong": wrong, "SessionTimeout": 2}
    judged = len(rows) - kinds["crashes"] - kinds["killed"]
    assert told["tracebacks"] == kinds["raises"]
    assert told["reward_mean"] == pytest.approx(kinds["right"] / judged)
    assert f"reward        {told['reward_mean']:.3f} ± " in first.stdout


async def test_a_model_that_the_engine_does_not_serve_is_one_line(tmp_path: Path, vllm: Vllm) -> None:
    here = first_day.copied(tmp_path)
    first_day.change(here / "job.yaml", "{name: shop, tokenizer", "{name: shpo, tokenizer")
    said = await run(here, vllm.url)
    assert (said.code, said.stdout, said.stderr.count("\n")) == (2, "", 1), said.stderr
    assert "does not serve shpo; it serves shop" in said.stderr
