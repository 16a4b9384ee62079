"""Trajectories as files of tensors: verl's DataProto, AReaL's padded tensor dict. One object each, all in memory."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from sandgate.contract.errors import InvalidBody
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.credit.batches import taught
from sandgate.trainer.export.files import replacing

INSTALL = {"verl": "pip install verl==0.9.1", "torch": "pip install torch"}
"""Package -> what to type; versions as tested (docs/trainers)."""


def write_dataproto(
    path: str | os.PathLike[str],
    trajectories: Iterable[Trajectory],
    *,
    prompt_length: int | None = None,
    response_length: int | None = None,
    pad_token_id: int = 0,
) -> tuple[int, int]:
    """A DataProto, saved by verl's own `save_to_disk` (a pickle: load it only where you trust it); how many rows, and
    how many of them are over the lengths, and masked. Lengths: in tokens, by default of the longest row.

    Raises InvalidBody: no rows, images, or verl is not installed.
    """
    need("verl", "dataproto")
    from sandgate.trainer.verl.dataproto import to_dataproto
    from sandgate.trainer.verl.rows import Lengths

    rows = list(trajectories)
    lengths = Lengths(
        prompt=prompt_length if prompt_length is not None else _longest(rows, "prompt_ids"),
        response=response_length if response_length is not None else _longest(rows, "response_ids"),
    )
    found = to_dataproto(rows, lengths, pad_token_id=pad_token_id)
    with replacing(path) as target:
        found.save_to_disk(str(target))
    long = (len(one.prompt_ids) > lengths.prompt or len(one.response_ids) > lengths.response for one in rows)
    return len(rows), sum(long)


def write_areal(path: str | os.PathLike[str], trajectories: Iterable[Trajectory]) -> tuple[int, Counter[str]]:
    """AReaL's tensor dict of a batch by `torch.save`, in the dtypes of its document (int32, float32, bool); how many
    rows, and how many were left out, by reason: AReaL takes every reward that it is given into a group's mean.
    `torch.load(path, weights_only=True)` reads it. Raises InvalidBody: no rows that teach, images, a reward beyond
    float32, or torch is not installed."""
    need("torch", "areal")
    import torch  # type: ignore[import-not-found]

    rows, left_out = taught(list(trajectories))
    found = {name: torch.from_numpy(column) for name, column in padded(rows).items()}
    with replacing(path) as target:
        torch.save(found, str(target))
    return len(rows), left_out


def padded(rows: Sequence[Trajectory]) -> dict[str, Any]:
    """[rows, longest]: what AReaL's `concat_padded_tensors` makes of the rows' own dicts: padding on the right, 0 in
    every column and False in attention_mask. `rewards`: [rows]. Raises InvalidBody."""
    from sandgate.trainer.areal.tensors import DTYPES, columns

    if not rows:
        raise InvalidBody("a tensor dict needs at least one trajectory", field="trajectories")
    width = max(len(row.prompt_ids) + len(row.response_ids) for row in rows)
    found: dict[str, Any] = {name: np.zeros((len(rows), width), dtype) for name, dtype in DTYPES.items()}
    found["rewards"] = np.zeros(len(rows), DTYPES["rewards"])
    for at, row in enumerate(rows):
        if row.multimodal is not None:
            raise InvalidBody(
                f"session {row.session_id}: a tensor dict cannot carry its images", field="multimodal"
            )
        for name, column in columns(row).items():
            if name == "rewards":
                found[name][at] = column[0]
            else:
                found[name][at, : column.shape[1]] = column[0]
    return found


def need(package: str, form: str) -> None:
    """Raises InvalidBody, saying what to install, if the package is not there."""
    if find_spec(package) is None:
        raise InvalidBody(
            f"{form} needs {package}, which is not installed here: {INSTALL[package]}", field="--format"
        )


def _longest(rows: Sequence[Trajectory], name: str) -> int:
    return max([1, *(len(getattr(row, name)) for row in rows)])
