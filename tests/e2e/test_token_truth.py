"""Every token of every trajectory of a real job is what the engine sampled, and what a trainer computes."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.trajectory import Trajectory
from tests.e2e import truth
from tests.e2e.rig import SHOP, Run, command, job
from tests.e2e.truth import Parity
from tests.support.recorder import Recorder

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.timeout(400)]


async def test_the_shop_job_from_the_command_line(tmp_path: Path, recorder: Recorder, parity: Parity) -> None:
    """`sandgate run examples/shop/job.yaml`, as a user types it."""
    code, said = await command("run", SHOP, "--out", tmp_path / "out", "--engine-url", recorder.url)
    assert code == 0
    rows = Run(tmp_path / "out", "").rows()
    assert {(row.uid, row.sample_index) for row in rows} == {
        (f"errand-{task:02}", sample) for task in range(8) for sample in range(4)
    }
    made = truth.check(rows, recorder.generations)
    assert len(made) == len(recorder.generations), "nothing was sampled that is not in a trajectory"
    assert not any(one.streamed for one in made)
    assert parity.check(made) == said["sampled_tokens"] > 500
    assert (said["complete"], said["forks"], said["failures"]) == (True, {}, {})
    assert (said["groups"], said["sessions"], said["turns"]) == (8, 32, len(made))
    for lie, spoilt in spoilt_copies(max(rows, key=lambda row: len(row.turn_ids))):
        others = [row for row in rows if row.session_id != spoilt.session_id]
        with pytest.raises((AssertionError, KeyError)):
            pytest.fail(f"nobody noticed {lie}: {truth.check([*others, spoilt], recorder.generations)}")


def spoilt_copies(row: Trajectory) -> Iterator[tuple[str, Trajectory]]:
    """The smallest lies that a record could tell: what the checks above must notice, or they prove nothing."""
    last = len(row.response_ids) - 1

    def changed(values: array[Any], at: int, value: float) -> array[Any]:
        return array(values.typecode, [*values[:at], value, *values[at + 1 :]])

    logprob = row.response_logprobs[last]
    nearest = math.nextafter(logprob, -math.inf)
    while array("f", [nearest])[0] == logprob:  # the next float32, not the next float64
        nearest = logprob + 2 * (nearest - logprob)
    yield (
        "another sampled id",
        replace(row, response_ids=changed(row.response_ids, last, row.response_ids[last] ^ 1)),
    )
    yield (
        "a logprob of one bit more",
        replace(row, response_logprobs=changed(row.response_logprobs, last, nearest)),
    )
    yield "a mask that hides a token", replace(row, loss_mask=changed(row.loss_mask, last, 0))
    yield "another version", replace(row, versions=changed(row.versions, last, 1))
    yield "another prompt id", replace(row, prompt_ids=changed(row.prompt_ids, 0, row.prompt_ids[0] ^ 1))
    if len(row.turn_ids) > 1:
        yield (
            "a turn that is not told",
            replace(row, turn_ids=row.turn_ids[1:], turn_ends=row.turn_ends[1:], turn_rewards=()),
        )


SAMPLINGS: dict[str, tuple[tuple[str, ...], dict[str, Any]]] = {
    "agents that stream": (("--stream",), {"temperature": 1.0}),
    "a temperature": ((), {"temperature": 0.7}),
    "agents that stream at a temperature": (("--stream",), {"temperature": 1.3}),
}


@pytest.mark.parametrize(("args", "sampling"), SAMPLINGS.values(), ids=SAMPLINGS)
async def test_however_it_is_sampled(
    tmp_path: Path, recorder: Recorder, parity: Parity, args: tuple[str, ...], sampling: dict[str, Any]
) -> None:
    run = Run(tmp_path / "out", recorder.url)
    result = await run.go(
        job(SHOP, uids=("errand-00", "errand-01"), args=args, groupSize=3, sampling=sampling)
    )
    assert (result.complete, result.sessions, result.failures, result.forks) == (True, 6, {}, {})
    made = truth.check(run.rows(), recorder.generations)
    assert len(made) == len(recorder.generations)
    assert {one.temperature for one in made} == {sampling["temperature"]}
    assert {one.streamed for one in made} == {bool(args)}
    assert parity.check(made) == result.sampled_tokens > 50
