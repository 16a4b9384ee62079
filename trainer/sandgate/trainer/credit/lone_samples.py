"""Says where a trainer learns nothing, since each of its groups is one sample."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable
from itertools import repeat

from sandgate.trainer.credit.group_advantages import CreditedGroup

log = logging.getLogger("sandgate.trainer")


def warn_of_lone_samples(batch: Iterable[CreditedGroup], sizes: Iterable[int | None] | None = None) -> None:
    """Logs a WARNING, once in a process, for a batch whose advantages are all 0 because each of its groups is of one
    sample. `sizes`: of each group, as it was asked for; a group of more that lost the others is none of one. Where
    nobody knows, it is told by its sample's number, and may be such."""
    known = zip(batch, repeat(None)) if sizes is None else zip(batch, sizes, strict=True)
    teaching = [(group, size) for group, size in known if group.taught]
    if teaching and all(is_lone(group) and size in (None, 1) for group, size in teaching):
        _say()


def is_lone(group: CreditedGroup) -> bool:
    """Whether rows of its first sample alone are there, and teach nothing."""
    samples = {row.trajectory.sample_index for row in group.rows}
    return samples == {0} and not any(row.advantage for row in group.taught)


@functools.cache
def _say() -> None:
    log.warning(
        "nothing is learned from this batch: each of its groups is one sample, which is its own mean, so that all"
        " advantages are 0. An advantage is against other samples of the task: set groupSize (its default is 1),"
        " unless it is more, and the others were lost"
    )
