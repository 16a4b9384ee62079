"""Groups as Tinker's datums: what `TrainingClient.forward_backward` takes with a policy gradient's loss.

Needs `tinker` beside ours (docs/trainers/tinker.md); imports it when it is used.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.credit.counters import RowCounters
from sandgate.trainer.credit.group_advantages import prepare
from sandgate.trainer.credit.lengths import Lengths
from sandgate.trainer.credit.lone_samples import warn_of_lone_samples
from sandgate.trainer.credit.reasons import TAUGHT, Truncated
from sandgate.trainer.credit.samples import refuse_unfit
from sandgate.trainer.credit.sink import SinkGroup


def to_data(
    groups: Iterable[Sequence[Trajectory]],
    *,
    scale: bool = False,
    roles: Collection[str] = TAUGHT,
    lengths: Lengths | None = None,
    truncated: Truncated = "score",
    mask: bool = False,
    counters: RowCounters | None = None,
    sizes: Iterable[int] | None = None,
) -> list[Any]:
    """A `tinker.Datum` for each row that teaches, in order. `groups`: all rows of each task's sessions. `sizes`: how
    many sessions of each were asked for, so that one that lost the others is not taken for a group of one.

    `loss_fn_inputs`: `target_tokens` (int64), `logprobs` and `advantages` (float32), one entry for each token after the
    first; context has logprob and advantage 0.0, so that it teaches nothing. `mask` adds `mask` (float32), which
    tinker_cookbook's own functions read, and take out before they send. `scale`: advantages are divided by
    the group's deviation; without, they are differences from its mean, as tinker_cookbook's. `roles`, `lengths`,
    `truncated`: see `prepare`. `counters` counts rows that teach, and those that do not by reason.

    Raises InvalidBody for rows of more than one task in a group, for images, and for numbers that are none.
    """
    batch = []
    for rows in groups:
        for row in rows:
            refuse_unfit(row)
        group = prepare(rows, roles=roles, scale=scale, lengths=lengths, truncated=truncated)
        if counters is not None:
            counters.add(len(group.taught), group.left_out)
        batch.append(group)
    warn_of_lone_samples(batch, sizes)
    return [_datum(one.trajectory, one.advantage, mask=mask) for group in batch for one in group.taught]


@dataclass(frozen=True, slots=True, kw_only=True)
class TinkerSink:
    """`to_data` as a RolloutSink."""

    scale: bool = False
    roles: Collection[str] = TAUGHT
    lengths: Lengths | None = None
    truncated: Truncated = "score"
    mask: bool = False

    def batch(self, groups: Sequence[SinkGroup], counters: RowCounters | None = None) -> list[Any]:
        """See RolloutSink."""
        return to_data(
            [group.rows for group in groups], scale=self.scale, roles=self.roles, lengths=self.lengths,
            truncated=self.truncated, mask=self.mask, counters=counters,
            sizes=[group.samples for group in groups],
        )  # fmt: skip


def _datum(row: Trajectory, advantage: float, *, mask: bool) -> Any:
    from tinker import Datum, ModelInput  # type: ignore[import-not-found]

    ids = row.prompt_ids + row.response_ids
    before = len(row.prompt_ids) - 1  # a model's answer to the prompt's last token is the response's first
    bits = np.zeros(len(ids) - 1, np.float32)
    bits[before:] = row.loss_mask
    logprobs = np.zeros(len(ids) - 1, np.float32)
    logprobs[before:] = row.response_logprobs
    inputs = {
        "target_tokens": np.array(ids[1:], np.int64),
        "logprobs": logprobs,
        "advantages": np.where(bits, np.float32(advantage), np.float32(0.0)),
    }
    return Datum(
        model_input=ModelInput.from_ints(ids[:-1].tolist()),
        loss_fn_inputs=inputs | ({"mask": bits} if mask else {}),
    )
