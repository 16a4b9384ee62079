"""One row of a session, for trainers that take exactly one. (pure)"""

from __future__ import annotations

from collections.abc import Sequence

from sandgate.contract.trajectory import Trajectory, main_row
from sandgate.trainer.credit.shared_turns import with_shared


def alone(rows: Sequence[Trajectory], picked: Trajectory | None = None) -> Trajectory:
    """Of a session's rows the main one (or `picked`), with all that was sampled in it: what its branches share with it
    is trained in only one of them, and would be in none if that is left out. Raises ValueError without any row."""
    found = main_row(rows) if picked is None else picked
    return with_shared(found, rows, found.turn_ids)
