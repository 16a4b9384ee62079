"""Runs in AReaL's environment: how often it is said that groups of one sample teach nothing.

python check_alone.py
"""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.areal import job
from sandgate.trainer.areal.batches import ArealSink
from sandgate.trainer.credit import lone_samples
from sandgate.trainer.credit.sink import SinkGroup
from tests.trainer.verl.rows import row

from areal.infra import workflow_context  # type: ignore[import-not-found]  # isort: skip

ONE, OTHER = row(0, reward=1.0), row(1, reward=0.0)
SAID: list[str] = []


class Kept(logging.Handler):
    """What is said to people."""

    def emit(self, record: logging.LogRecord) -> None:
        """Called by logging."""
        SAID.append(record.getMessage())


class Link:
    """In the place of a job's gateways."""

    size = 1

    async def episode(self, *_: Any) -> tuple[Trajectory, ...]:
        return (ONE,)

    async def group_size(self, session: str) -> int | None:
        assert session == ONE.session_id
        return self.size


async def link(*_: Any) -> Link:
    return Link()


async def episode(credit: Any, *, is_eval: bool) -> None:
    workflow_context.set(workflow_context.WorkflowContext(is_eval=is_eval))
    made = job.JobWorkflow("job.yaml", "out", credit=credit)
    await made.arun_episode(object(), {"prompt": "hello"})


def say(name: str) -> None:
    """And begin anew."""
    print("CHECK", json.dumps([name, sum("each of its groups is one sample" in one for one in SAID)]))
    SAID.clear()
    lone_samples._say.cache_clear()


async def main() -> None:
    job.linked = link  # type: ignore[assignment,attr-defined]
    lone_samples.log.addHandler(Kept(logging.WARNING))
    for _ in range(2):
        await episode("advantages", is_eval=False)
    say("training")
    await episode("advantages", is_eval=True)
    say("evaluation")
    await episode("rewards", is_eval=False)
    say("rewards")
    ArealSink().batch([SinkGroup("q1", [ONE], 1), SinkGroup("q2", [ONE, OTHER], 2)])
    say("a batch with a group of two")
    ArealSink().batch([SinkGroup("q1", [ONE], 1), SinkGroup("q2", [ONE], 1)])
    say("a batch of lone samples")
    Link.size = 8
    await episode("advantages", is_eval=False)
    say("one of eight, whose others were lost")
    ArealSink().batch([SinkGroup("q1", [ONE], 8)])
    say("a batch of one of eight")


if __name__ == "__main__":
    asyncio.run(main())
