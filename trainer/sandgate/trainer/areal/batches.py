"""A job's group as AReaL's batch: the rows that teach, each with what it is to be credited with."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any, Literal

import numpy as np

from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.areal.tensors import as_torch, columns
from sandgate.trainer.credit.group_advantages import prepare
from sandgate.trainer.credit.reasons import TAUGHT

Credit = Literal["advantages", "rewards"]
log = logging.getLogger("sandgate.trainer.areal")


def batch_rows(
    rows: Sequence[Trajectory], *, credit: Credit = "advantages", roles: Collection[str] = TAUGHT
) -> list[dict[str, Any]]:
    """One tensor dict for each row that teaches; none if no row does. Integers are int64, as AReaL's own are.

    `credit`: what stands in `rewards`. "advantages": `prepare`'s, so that each session counts once, and what failed or
    was not scored is no part of a mean; AReaL's `reward_norm` must be off then. "rewards": as they were given; AReaL's
    group norm takes rows by fixed numbers, which forks and failures do not keep to.
    """
    group = prepare(rows, roles=roles)
    if group.left_out:
        uid = rows[0].uid
        log.info("group %s: %s rows teach nothing: %s", uid, group.left_out.total(), dict(group.left_out))
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
