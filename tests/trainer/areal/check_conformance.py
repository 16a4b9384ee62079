"""Runs in AReaL's environment: the conformance suite over ArealSink, as AReaL's own padding makes a batch of it.

python check_conformance.py FILE    (pickled: `conformance.groups()`, which need more than there is here)
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from areal.utils.data import concat_padded_tensors  # type: ignore[import-not-found]

from sandgate.trainer.areal.batches import ArealSink
from tests.trainer.conformance import Reading, Taught, check_mutants


def read(batch: Sequence[Sequence[dict[str, Any]]]) -> list[Taught]:
    """Without its padding."""
    rows = [row for group in batch for row in group]
    if not rows:
        return []
    made, found = concat_padded_tensors(rows), []
    for at in range(len(rows)):
        size = int(made["attention_mask"][at].sum())
        ids, mask, logprobs, versions = (
            made[name][at][:size].tolist() for name in ("input_ids", "loss_mask", "logprobs", "versions")
        )
        found.append(Taught(ids, mask, logprobs, versions, float(made["rewards"][at])))
    return found


check_mutants(
    Reading(lambda how: ArealSink(truncated=how), read, score="advantage", scale=True),
    pickle.loads(Path(sys.argv[1]).read_bytes()),
    places=False,
)
print("conforms")
