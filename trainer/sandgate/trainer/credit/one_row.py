"""One row of a session, for trainers that take exactly one. (pure)"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sandgate.contract.trajectory import Trajectory, main_row


def alone(rows: Sequence[Trajectory], picked: Trajectory | None = None) -> Trajectory:
    """Of a session's rows the main one (or `picked`), with all that was sampled in it: what its branches share with it
    is trained in only one of them, and would be in none if that is left out. Raises ValueError without any row."""
    found = main_row(rows) if picked is None else picked
    mask, versions, logprobs = found.loss_mask[:], found.versions[:], found.response_logprobs[:]
    for turn, end in zip(found.turn_ids, found.turn_ends, strict=True):
        if not 0 < end <= len(mask) or mask[end - 1]:
            continue
        for other in rows:
            start, theirs = _span(other, turn)
            size = theirs - start
            if 0 < size <= end and found.response_ids[end - size : end] == other.response_ids[start:theirs]:
                mask[end - size : end] = other.loss_mask[start:theirs]
                versions[end - size : end] = other.versions[start:theirs]
                logprobs[end - size : end] = other.response_logprobs[start:theirs]
                break
    if mask == found.loss_mask:
        return found
    return replace(found, loss_mask=mask, versions=versions, response_logprobs=logprobs)


def _span(row: Trajectory, turn: str) -> tuple[int, int]:
    """(start, end) in the response of what was sampled in this turn and is trained in this row; empty if nothing."""
    if turn not in row.turn_ids:
        return 0, 0
    at = row.turn_ids.index(turn)
    floor, end = row.turn_ends[at - 1] if at else 0, row.turn_ends[at]
    if not 0 <= floor <= end <= len(row.loss_mask):  # rows of anywhere may say anything
        return 0, 0
    context = row.loss_mask.tobytes().rfind(b"\0", floor, end)
    return (floor if context < 0 else context + 1), end
