"""Trajectories as AReaL's tensor dict."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

from sandgate.contract.errors import InvalidBody
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.areal.tensors import DTYPES, columns
from tests.trainer.areal.env import ROOT, Areal
from tests.trainer.trajectories import trajectories


@given(trajectories(any_floats=False))
def test_every_trajectory_has_its_row(row: Trajectory) -> None:
    if row.reward is not None and not abs(row.reward) <= float(np.finfo(np.float32).max):
        with pytest.raises(InvalidBody):
            columns(row)
        return
    found = columns(row)
    length = len(row.prompt_ids) + len(row.response_ids)
    assert {name: column.dtype for name, column in found.items()} == DTYPES
    assert {column.shape for name, column in found.items() if name != "rewards"} == {(1, length)}
    before = len(row.prompt_ids)
    failed = row.failure_class not in (None, "policy")
    assert found["input_ids"][0].tolist() == [*row.prompt_ids, *row.response_ids]
    for name, said, nothing in (
        ("loss_mask", [0] * len(row.loss_mask) if failed else row.loss_mask.tolist(), 0),
        ("logprobs", row.response_logprobs.tolist(), 0.0),
        ("versions", row.versions.tolist(), -1),
    ):
        assert found[name][0].tolist() == [nothing] * before + said
    assert found["attention_mask"].all()


def test_torch_gets_what_areal_makes_itself(areal: Areal) -> None:
    rooms = (ROOT / "contract", ROOT / "trainer")
    code, out, errors = areal.run(Path(__file__).parent / "check_tensors.py", path=rooms)
    assert (code, out.splitlines()[-1:]) == (0, ["equal"]), errors[-2000:]
