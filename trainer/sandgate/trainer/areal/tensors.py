"""Trajectories and exported interactions as AReaL's tensor dict, in its document's dtypes. torch at the first use."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from sandgate.contract.errors import CorruptRecord, InvalidBody
from sandgate.contract.trajectory import Json, Trajectory
from sandgate.trainer.credit.group_advantages import LeftOut, why_left_out

Columns = dict[str, npt.NDArray[Any]]
"""Name -> array; [1, length], or [1] for rewards."""
DTYPES = {
    "input_ids": np.int32,
    "loss_mask": np.int32,
    "logprobs": np.float32,
    "versions": np.int32,
    "attention_mask": np.bool_,
    "rewards": np.float32,
}
"""Of the document. (The package sends int64 for int32: what `torch.tensor(list)` makes of it.)"""
WIRE = {
    "torch.int64": "<i8",
    "torch.int32": "<i4",
    "torch.float32": "<f4",
    "torch.bool": "?",
}
"""torch's name -> the bytes that stand for it; no pickle, no class path, no object reference is ever read."""


def to_tensor_dict(trajectory: Trajectory) -> dict[str, Any]:
    """One row as a batch of one; no reward is 0.0. Context has mask 0, logprob 0.0 and version -1. A failure that is
    not the policy's has mask 0 throughout.

    Raises InvalidBody: a reward beyond float32.
    """
    return as_torch(columns(trajectory))


def columns(trajectory: Trajectory) -> Columns:
    """The same without torch."""
    reward = trajectory.reward or 0.0
    if not abs(reward) <= float(np.finfo(np.float32).max):
        raise InvalidBody(f"reward: {reward} is beyond float32", field="reward")
    failed = why_left_out(trajectory, scored=False) is LeftOut.FAILURE
    before, after = len(trajectory.prompt_ids), len(trajectory.response_ids)

    def row(name: str, given: Any, prompt: Any) -> npt.NDArray[Any]:
        out: npt.NDArray[Any] = np.empty((1, before + after), DTYPES[name])
        out[0, :before], out[0, before:] = prompt, given
        return out

    return {
        "input_ids": row("input_ids", trajectory.response_ids, trajectory.prompt_ids),
        "loss_mask": row("loss_mask", 0 if failed else trajectory.loss_mask, 0),
        "logprobs": row("logprobs", trajectory.response_logprobs, 0.0),
        "versions": row("versions", trajectory.versions, -1),
        "attention_mask": np.ones((1, before + after), np.bool_),
        "rewards": np.array([reward], np.float32),
    }


def as_torch(found: Columns) -> dict[str, Any]:
    """Tensors that share the arrays' memory."""
    import torch  # type: ignore[import-not-found]

    return {name: torch.from_numpy(column) for name, column in found.items()}


def from_wire(said: Mapping[str, Json]) -> Columns:
    """An exported `tensor_dict`, in the document's dtypes. Raises CorruptRecord naming the column."""
    out: Columns = {}
    for name, dtype in DTYPES.items():
        try:
            tensor = said[name]
            raw = np.frombuffer(base64.b64decode(tensor["data"], validate=True), WIRE[tensor["dtype"]])
            out[name] = raw.reshape(tensor["shape"]).astype(dtype)
        except (KeyError, TypeError, ValueError, binascii.Error) as error:
            raise CorruptRecord(f"tensor_dict.{name}: {error!r}") from error
    return out
