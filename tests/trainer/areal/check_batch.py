"""Runs in AReaL's environment: an exported file is what AReaL's own padding makes of the rows' own dicts.

python areal_batch.py FILE
"""

from __future__ import annotations

import sys

import torch  # type: ignore[import-not-found]
from areal.utils.data import concat_padded_tensors  # type: ignore[import-not-found]

from sandgate.trainer.areal.tensors import to_tensor_dict
from sandgate.trainer.cli.tensor_files import write_areal
from tests.trainer.verl.rows import row, short

rows = [row(0), short(1), row(2, failure_class="policy", reward=0.0)]
lost = row(3, failure_class="agent", failure_reason="AgentExit", reward=0.0)
assert not to_tensor_dict(lost)["loss_mask"].any(), "a crash is no lesson"
theirs = concat_padded_tensors([to_tensor_dict(one) for one in rows])
assert write_areal(sys.argv[1], [*rows, lost, short(4, reward=None)]) == (
    3,
    {"failure": 1, "no_reward": 1},
)
ours = torch.load(sys.argv[1], weights_only=True)
assert list(ours) == list(theirs)
for name, tensor in theirs.items():
    assert ours[name].dtype == tensor.dtype, name
    assert torch.equal(ours[name], tensor), name
print("equal")
