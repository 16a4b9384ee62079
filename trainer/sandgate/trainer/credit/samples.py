"""A group as a fixed number of samples, for trainers whose groups have a size; and what no adapter takes. (pure)"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from math import isfinite

from sandgate.contract.errors import Conflict, InvalidBody
from sandgate.contract.failure_reasons import FailureClass
from sandgate.contract.trajectory import Trajectory


def refuse_unfit(row: Trajectory, *, images: bool = False) -> None:
    """Raises InvalidBody for images (unless `images`), for a row without a prompt, and for numbers that no gateway
    writes: they would make NaN of a whole group, or move its baseline, without a word."""
    name = f"session {row.session_id}"
    if row.multimodal is not None and not images:
        raise InvalidBody(f"{name}: rows with images are not carried", field="multimodal")
    if not row.prompt_ids:
        raise InvalidBody(f"{name}: a row has no prompt", field="prompt_ids")
    refuse_reward(row)
    if not isfinite(sum(row.response_logprobs)):
        raise InvalidBody(f"{name}: a logprob is no number", field="response_logprobs")
    if not set(row.loss_mask) <= {0, 1}:
        raise InvalidBody(f"{name}: its mask has other values than 0 and 1", field="loss_mask")


def refuse_reward(row: Trajectory) -> None:
    """Raises InvalidBody for a reward that is no number: nothing can be compared with it."""
    if row.reward is not None and not isfinite(row.reward):
        raise InvalidBody(f"session {row.session_id}: its reward is {row.reward}", field="reward")


def by_sample(rows: Sequence[Trajectory], samples: Collection[int], size: str) -> dict[int, list[Trajectory]]:
    """Sample -> the rows of the session that counts: its newest attempt that did not fail on infrastructure, else the
    newest. `size`: what the trainer calls the number of samples.

    Raises Conflict for a sample beyond these, and for two sessions of one attempt; InvalidBody for rows of more than
    one task, and for what `refuse_unfit` refuses."""
    if len(tasks := {row.uid for row in rows}) > 1:
        raise InvalidBody(f"rows of {len(tasks)} tasks; a group is of one", field="uid")
    sessions: dict[tuple[int, str], list[Trajectory]] = {}
    for row in rows:
        refuse_unfit(row)
        if row.sample_index not in samples:
            raise Conflict(
                f"group {row.uid!r} has sample {row.sample_index}, which was not asked for: "
                f"make the job's groupSize and {size} the same"
            )
        sessions.setdefault((row.sample_index, row.session_id), []).append(row)
    found: dict[int, list[Trajectory]] = {}
    for (sample, _), own in sessions.items():
        before = found.get(sample)
        if before is not None and before[0].attempt == own[0].attempt:
            raise Conflict(
                f"group {own[0].uid!r} has two sessions of sample {sample}, attempt {own[0].attempt}: "
                f"{before[0].session_id} and {own[0].session_id}"
            )
        if before is None or _counts(own) > _counts(before):
            found[sample] = own
    return found


def _counts(rows: Sequence[Trajectory]) -> tuple[bool, int]:
    return rows[0].failure_class != FailureClass.INFRA, rows[0].attempt
