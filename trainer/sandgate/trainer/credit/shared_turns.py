"""Turns that rows of a session share are trained in one of them; another takes over what is left out. (pure)"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.credit.reasons import LeftOut


def handed_on(rows: Sequence[Trajectory], whys: Sequence[LeftOut | None]) -> list[Trajectory]:
    """The rows, where of each session the first that teaches trains what it shares with one that does not, and would
    have trained: an answer that was cut, and asked for again, takes nothing of the conversation along. `whys`: why each
    teaches nothing, None where it does."""
    found = list(rows)
    sessions: dict[tuple[str, str], list[int]] = {}
    for at, row in enumerate(rows):
        sessions.setdefault((row.uid, row.session_id), []).append(at)
    for members in sessions.values():
        gone = [rows[at] for at in members if whys[at] is not None and 1 in rows[at].loss_mask]
        heirs = [at for at in members if whys[at] is None]
        left = {turn for row in gone for turn in row.turn_ids}
        for at in heirs if gone else ():
            found[at] = with_shared(rows[at], gone, left)
            left -= trained(found[at])
    return found


def with_shared(row: Trajectory, others: Sequence[Trajectory], turns: Iterable[str]) -> Trajectory:
    """The row, in which those of these turns are trained that are trained in one of the others and not in it."""
    wanted = set(turns)
    mask, versions, logprobs = row.loss_mask[:], row.versions[:], row.response_logprobs[:]
    for turn, end in zip(row.turn_ids, row.turn_ends, strict=True):
        if turn not in wanted or not 0 < end <= len(mask) or mask[end - 1]:
            continue
        for other in others:
            start, theirs = span(other, turn)
            size = theirs - start
            if 0 < size <= end and row.response_ids[end - size : end] == other.response_ids[start:theirs]:
                mask[end - size : end] = other.loss_mask[start:theirs]
                versions[end - size : end] = other.versions[start:theirs]
                logprobs[end - size : end] = other.response_logprobs[start:theirs]
                break
    if mask == row.loss_mask:
        return row
    return replace(row, loss_mask=mask, versions=versions, response_logprobs=logprobs)


def trained(row: Trajectory) -> set[str]:
    """The turns that are trained in a row."""
    return {
        turn
        for turn, end in zip(row.turn_ids, row.turn_ends, strict=True)
        if 0 < end <= len(row.loss_mask) and row.loss_mask[end - 1]
    }


def span(row: Trajectory, turn: str) -> tuple[int, int]:
    """(start, end) in the response of what was sampled in this turn and is trained in this row; empty if nothing."""
    if turn not in row.turn_ids:
        return 0, 0
    at = row.turn_ids.index(turn)
    floor, end = row.turn_ends[at - 1] if at else 0, row.turn_ends[at]
    if not 0 <= floor <= end <= len(row.loss_mask):  # rows of anywhere may say anything
        return 0, 0
    context = row.loss_mask.tobytes().rfind(b"\0", floor, end)
    return (floor if context < 0 else context + 1), end
