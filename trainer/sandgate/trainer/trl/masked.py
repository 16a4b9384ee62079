"""Masked rows in TRL's means: none, whatever other reward functions say of them."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from sandgate.contract.errors import Conflict, InvalidBody

HOOK = "_calculate_rewards"
"""Of TRL 1.16's GRPOTrainer. Called in each process with its own rows; answers with rewards of all, row by function."""
COLUMN = "sandgate_masked"


def leave_out_masked(trainer: Any) -> None:
    """From now on, in `trainer`, no reward of a masked row counts, whichever function or reward model it is of. TRL
    leaves out a row only if none of them has one for it, and takes a missing one for 0 beside others.
    Twice changes nothing. Raises Conflict for a TRL without that place."""
    plain = getattr(trainer, HOOK, None)
    if not callable(plain):
        raise Conflict(
            f"this TRL's {type(trainer).__name__} has no {HOOK}: masked samples would be part of their groups' means."
            " TRL 1.16 has it"
        )
    if getattr(plain, "leaves_out_masked", False):
        return

    @functools.wraps(plain)
    def unmasked(inputs: Sequence[Mapping[str, Any]], *args: Any, **given: Any) -> Any:
        rewards = plain(inputs, *args, **given)
        own = rewards.new_tensor([0.0 if one is None else math.nan for one in _masked(inputs)])
        return (
            rewards + trainer.accelerator.gather(own)[:, None]
        )  # NaN and anything is NaN, TRL's word for none

    unmasked.leaves_out_masked = True  # type: ignore[attr-defined]
    setattr(trainer, HOOK, unmasked)


def _masked(inputs: Sequence[Mapping[str, Any]]) -> list[str | None]:
    """Why each row of this process is masked, None if it is not."""
    if any(COLUMN not in row for row in inputs):
        raise InvalidBody(
            f"rows without {COLUMN}: a rollout_func around Rollouts has to pass on its columns", field=COLUMN
        )
    return [row[COLUMN] for row in inputs]
