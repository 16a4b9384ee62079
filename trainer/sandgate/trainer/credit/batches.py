"""Batches for trainers that have no mask for a whole row, or whose groups cannot be taken apart. (pure)"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.credit.prepare import prepare, why_left_out


def taught(rows: Sequence[Trajectory]) -> tuple[list[Trajectory], Counter[str]]:
    """The rows that teach, and how many do not, by reason, for a trainer that takes whatever it is given into its
    group's mean. Where nobody scored anything, rows without a reward stay: the trainer scores them itself."""
    scored = any(row.reward is not None for row in rows)
    whys = [(row, why_left_out(row, scored=scored)) for row in rows]
    return [row for row, why in whys if why is None], Counter(why.value for _, why in whys if why is not None)


def kept_in_place(rows: Sequence[Trajectory]) -> list[Trajectory]:
    """For a batch that keeps its size, of any number of groups: rows that teach nothing have mask 0, and, where others
    have a score, the mean of their group, which leaves that mean as it is. (The group's deviation shrinks.)"""
    groups: dict[str, list[Trajectory]] = {}
    for row in rows:
        groups.setdefault(row.uid, []).append(row)
    scored = any(row.reward is not None for row in rows)
    means = {uid: prepare(group).mean for uid, group in groups.items()}
    return [
        row
        if why_left_out(row, scored=scored) is None
        else replace(
            row,
            loss_mask=array("b", bytes(len(row.loss_mask))),
            reward=means[row.uid] if scored else None,
        )
        for row in rows
    ]
