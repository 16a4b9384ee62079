"""A group as a fixed number of samples, one row each, for trainers whose groups have a size. (pure)"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sandgate.contract.errors import Conflict, InvalidBody
from sandgate.contract.trajectory import Trajectory


def by_sample(rows: Sequence[Trajectory], samples: Collection[int], size: str) -> dict[int, list[Trajectory]]:
    """Sample -> its session's rows, without those that have no response. `size`: what the trainer calls the number of
    samples. Raises Conflict for a sample beyond these; InvalidBody for images."""
    found: dict[int, list[Trajectory]] = {}
    for row in rows:
        if row.sample_index not in samples:
            raise Conflict(
                f"group {row.uid!r} has sample {row.sample_index}, which was not asked for: "
                f"make the job's groupSize and {size} the same"
            )
        if row.multimodal is not None:
            raise InvalidBody(
                f"session {row.session_id}: rows with images are not carried", field="multimodal"
            )
        if row.response_ids:
            found.setdefault(row.sample_index, []).append(row)
    return found
