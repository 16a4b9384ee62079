"""Trajectories as the columns that a `rollout_func` of TRL's GRPOTrainer returns, and as a data set of them.

A Parquet file of these columns is a data set (`datasets.load_dataset("parquet", data_files=...)`), and any slice of it,
`rows[:8]`, is the dict. `sandgate.trainer.trl` makes the same columns of live groups.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import pyarrow as pa

from sandgate.contract.errors import InvalidBody
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.credit.group_advantages import why_left_out
from sandgate.trainer.export.files import replacing
from sandgate.trainer.export.parquet import write_groups, writer
from sandgate.trainer.export.schema import schema
from sandgate.trainer.export.tables import to_batches

COLUMNS = {
    "prompt_ids": "prompt_ids",
    "completion_ids": "response_ids",
    "logprobs": "response_logprobs",
    "env_mask": "loss_mask",
    "env_reward": "reward",
    "uid": "uid",
    "sandgate_session": "session_id",
    "sandgate_trajectory": "trajectory_id",
    "sandgate_sample": "sample_index",
    "sandgate_versions": "versions",
    "sandgate_failure": "failure_reason",
    "sandgate_role": "role",
    "sandgate_main": "main",
}
"""TRL's name -> the record's. Columns of one length: completion_ids, logprobs, env_mask, sandgate_versions; nothing is
padded, and context has mask 0, logprob 0.0 and version -1."""

SCHEMA = pa.schema([schema().field(ours).with_name(theirs) for theirs, ours in COLUMNS.items()])


def trl_batches(trajectories: Iterable[Trajectory]) -> Iterator[Any]:
    """RecordBatches, as trajectories go by. One that teaches nothing (it failed, nobody scored it, it is a side call)
    has an `env_mask` of all 0 and `env_reward` null. One without a completion is left out: TRL takes none.

    Raises InvalidBody for images, which the dict cannot carry.
    """
    for batch in to_batches(_masked(row) for row in trajectories if row.response_ids):
        yield pa.RecordBatch.from_arrays([batch.column(ours) for ours in COLUMNS.values()], schema=SCHEMA)


def to_rollout(trajectories: Iterable[Trajectory]) -> dict[str, list[Any]]:
    """The dict itself: lists, one entry per trajectory. Raises InvalidBody."""
    found: dict[str, list[Any]] = pa.Table.from_batches(trl_batches(trajectories), SCHEMA).to_pydict()
    return found


def write_trl(
    path: str | os.PathLike[str], trajectories: Iterable[Trajectory], *, atomic: bool = True
) -> int:
    """Stream to a Parquet file, whole or not at all; how many rows. Raises InvalidBody, OSError."""
    with replacing(path, atomic=atomic) as target, writer(target, SCHEMA, (), {}) as out:
        return sum(write_groups(out, trl_batches(trajectories), SCHEMA))


def _masked(row: Trajectory) -> Trajectory:
    if row.multimodal is not None:
        raise InvalidBody(
            f"session {row.session_id}: a row with images cannot pass rollout_func", field="multimodal"
        )
    if why_left_out(row) is None:
        return row
    return replace(row, reward=None, loss_mask=array("b", bytes(len(row.loss_mask))))
