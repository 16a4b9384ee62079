"""Says where a trainer learns nothing, since each of its groups is one sample."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable

from sandgate.trainer.credit.group_advantages import CreditedGroup

log = logging.getLogger("sandgate.trainer")


def warn_of_lone_samples(batch: Iterable[CreditedGroup]) -> None:
    """Logs a WARNING, once in a process, for a batch whose advantages are all 0 because no group of it has a second
    sample. A group that lost the others is such, too; one whose samples scored the same is not."""
    teaching = [group for group in batch if group.taught]
    if teaching and all(map(_alone, teaching)):
        _say()


def _alone(group: CreditedGroup) -> bool:
    samples = {row.trajectory.sample_index for row in group.rows}
    return len(samples) == 1 and not any(row.advantage for row in group.taught)


@functools.cache
def _say() -> None:
    log.warning(
        "nothing is learned from this batch: each of its groups is one sample, which is its own mean, so that all"
        " advantages are 0. An advantage is against other samples of the task: set groupSize (its default is 1)"
    )
