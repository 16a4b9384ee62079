"""Runs in AReaL's environment: what becomes of a truncated episode in training and in an evaluation.

python check_truncated.py
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.areal import job
from tests.trainer.verl.rows import row

from areal.infra import workflow_context  # type: ignore[import-not-found]  # isort: skip
from areal.utils import stats_tracker  # type: ignore[import-not-found]  # isort: skip

SOLVED, FAILED = row(0, reward=1.0), row(1, reward=0.0)
CUT = row(2, reward=0.0, failure_class="policy", failure_reason="TurnLimit")


class Link:
    """In the place of a job's gateways."""

    async def episode(self, *_: Any) -> tuple[Trajectory, ...]:
        return SOLVED, FAILED, CUT


async def link(*_: Any) -> Link:
    return Link()


async def episode(truncated: Any, *, is_eval: bool) -> dict[str, Any]:
    workflow_context.set(workflow_context.WorkflowContext(is_eval=is_eval))
    made = job.JobWorkflow("job.yaml", "out", truncated=truncated)
    job.linked = link  # type: ignore[assignment,attr-defined]
    batch = await made.arun_episode(object(), {"prompt": "hello"})
    assert batch is not None
    said = stats_tracker.get(workflow_context.stat_scope()).export()
    (score,) = (value for name, value in said.items() if name.endswith("reward"))
    advantages = [round(float(one), 3) for one in batch["rewards"]]
    return {"advantages": advantages, "score": round(float(score), 3)}


async def main() -> None:
    for truncated in ("score", "mask"):
        for is_eval in (False, True):
            kind = "evaluation" if is_eval else "training"
            found = await episode(truncated, is_eval=is_eval)
            print("CHECK", json.dumps([truncated, kind, found]))


if __name__ == "__main__":
    asyncio.run(main())
