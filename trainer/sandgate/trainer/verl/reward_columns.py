"""The reward columns that all batches of one validation share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

KEYS = "reward_extra_keys"
"""verl's name, in a DataProto's meta_info, for the columns that it reports."""


@dataclass(slots=True)
class ValidationColumns:
    """verl's v0 trainer joins a validation's batches column by column, and ends where one has a column that another has
    not. But what a verifier tells of a session differs, and of one that failed it tells nothing. So all of a validation
    is reported by the columns of its first batch, and by those of validations before it."""

    _step: object = None
    _keys: tuple[str, ...] = ()

    def settle(self, batch: Any, asked: Mapping[str, Any]) -> None:
        """`batch`: what was made of a DataProto whose meta_info is `asked`. Columns that it lacks are None in each row;
        those that no batch before it had stay, and are not reported."""
        own = batch.meta_info.get(KEYS)
        if not asked.get("validate") or own is None:
            return
        if (step := asked.get("global_steps")) != self._step:
            self._step, self._keys = step, tuple(dict.fromkeys([*self._keys, *own]))
        for key in self._keys:
            if key not in batch.non_tensor_batch:
                batch.non_tensor_batch[key] = np.full(len(batch), None, dtype=object)
        batch.meta_info[KEYS] = list(self._keys)
