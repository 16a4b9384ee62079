"""A job's group as AReaL's batch: the rows that teach, each with what it is to be credited with."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.areal.tensors import as_torch, columns
from sandgate.trainer.credit.counters import RowCounters
from sandgate.trainer.credit.group_advantages import CreditedGroup, prepare
from sandgate.trainer.credit.lengths import Lengths
from sandgate.trainer.credit.lone_samples import warn_of_lone_samples
from sandgate.trainer.credit.reasons import TAUGHT, Truncated
from sandgate.trainer.credit.samples import refuse_unfit
from sandgate.trainer.credit.sink import SinkGroup

Credit = Literal["advantages", "rewards"]
log = logging.getLogger("sandgate.trainer.areal")


def batch_rows(
    rows: Sequence[Trajectory],
    *,
    credit: Credit = "advantages",
    roles: Collection[str] = TAUGHT,
    lengths: Lengths | None = None,
    truncated: Truncated = "score",
    counters: RowCounters | None = None,
) -> list[dict[str, Any]]:
    """One tensor dict for each row that teaches; none if no row does. Integers are int64, as AReaL's own are.

    `credit`: what stands in `rewards`. "advantages": `prepare`'s, so that each session counts once, and what failed or
    was not scored is no part of a mean; AReaL's `reward_norm` must be off then. "rewards": as they were given; AReaL's
    group norm takes rows by fixed numbers, which forks and failures do not keep to. `lengths`, `truncated`: see
    `prepare`. `counters` counts rows that teach, and those that do not by reason.

    Raises InvalidBody for rows of more than one task, for images, which AReaL's tensors cannot carry, and for numbers
    that are none.
    """
    group = credited(rows, roles=roles, lengths=lengths, truncated=truncated, counters=counters)
    (found,) = tensors_of([group], credit)
    return found


def credited(
    rows: Sequence[Trajectory],
    *,
    roles: Collection[str] = TAUGHT,
    lengths: Lengths | None = None,
    truncated: Truncated = "score",
    counters: RowCounters | None = None,
) -> CreditedGroup:
    """`prepare`'s group; what teaches nothing is logged with its reason. Raises as `batch_rows`."""
    for one in rows:
        refuse_unfit(one)
    group = prepare(rows, roles=roles, lengths=lengths, truncated=truncated)
    if group.left_out:
        uid = rows[0].uid
        log.info("group %s: %s rows teach nothing: %s", uid, group.left_out.total(), dict(group.left_out))
    if counters is not None:
        counters.add(len(group.taught), group.left_out)
    return group


def tensors_of(
    batch: Sequence[CreditedGroup], credit: Credit, sizes: Sequence[int | None] | None = None
) -> list[list[dict[str, Any]]]:
    """`tensors` of each group of a batch that is trained on. A batch of which nothing is learned is logged; `sizes`:
    see `warn_of_lone_samples`."""
    if credit == "advantages":
        warn_of_lone_samples(batch, sizes)
    return [tensors(group, credit) for group in batch]


def tensors(group: CreditedGroup, credit: Credit) -> list[dict[str, Any]]:
    """See `batch_rows`."""
    found = []
    for row in group.taught:
        mine = columns(row.trajectory)
        if credit == "advantages":
            mine["rewards"] = np.array([row.advantage], np.float32)
        wide = {
            name: array.astype(np.int64) if array.dtype == np.int32 else array for name, array in mine.items()
        }
        found.append(as_torch(wide))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ArealSink:
    """`batch_rows` of each group as a RolloutSink; AReaL's `concat_padded_tensors` makes a batch of one."""

    credit: Credit = "advantages"
    roles: Collection[str] = TAUGHT
    lengths: Lengths | None = None
    truncated: Truncated = "score"

    def batch(
        self, groups: Sequence[SinkGroup], counters: RowCounters | None = None
    ) -> list[list[dict[str, Any]]]:
        """See RolloutSink."""
        batch = [
            credited(
                group.rows,
                roles=self.roles,
                lengths=self.lengths,
                truncated=self.truncated,
                counters=counters,
            )
            for group in groups
        ]
        return tensors_of(batch, self.credit, [group.samples for group in groups])
