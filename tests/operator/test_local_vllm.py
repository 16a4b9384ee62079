"""The main job whole, as `make demo` runs it: a managed vLLM, a gateway, an OpenAI-SDK agent, a verifier."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path

import pytest

from sandgate.contract.job import TasksSpec
from sandgate.operator.local.job import EngineReady, Event, SessionEnded, load_job, run_local
from sandgate.trainer.export.parquet import merge_parquet, read_parquet, samples_in_parquet, write_parquet
from tests.support.vllm import engine_python

JOB = Path(__file__).resolve().parents[2] / "examples" / "shop" / "job.yaml"


@pytest.mark.vllm
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_the_shop_job_runs_on_a_real_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDGATE_ENGINE_PYTHON", str(engine_python()))
    job = load_job(JOB)
    assert job.spec.tasks.inline is not None
    few = TasksSpec(inline=job.spec.tasks.inline[:2])
    job = replace(job, spec=replace(job.spec, tasks=few, group_size=2, parallelism=2))
    events: list[Event] = []
    async with asyncio.timeout(500):
        result = await run_local(
            job,
            manifest_dir=JOB.parent,
            out=tmp_path,
            write_groups=write_parquet,
            merge=merge_parquet,
            samples_in=samples_in_parquet,
            progress=events.append,
        )
    assert [one for one in events if isinstance(one, EngineReady)]
    assert result.complete
    assert result.failures == {}
    rows = list(read_parquet(tmp_path / "trajectories.parquet"))
    assert {(row.uid, row.sample_index) for row in rows} == {
        (task.uid, n) for task in few.inline or () for n in (0, 1)
    }
    for row in rows:
        sampled = [p for p, mask in zip(row.response_logprobs, row.loss_mask, strict=True) if mask]
        assert sampled
        assert all(-100 < p <= 0 and math.isfinite(p) for p in sampled)
        assert row.reward in (0.0, 0.5, 1.0)
        assert row.engine.startswith("vllm")
        assert row.logprobs_mode == "processed_logprobs"
        assert row.sampling["temperature"] == 1.0
    ended = [one for one in events if isinstance(one, SessionEnded)]
    assert sum(one.sampled_tokens for one in ended) == result.sampled_tokens
