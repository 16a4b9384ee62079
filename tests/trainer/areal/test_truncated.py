"""AReaL trains on truncated episodes, or masks them, as its workflow is told; an evaluation counts them."""

from __future__ import annotations

import json
from pathlib import Path

from tests.trainer.areal.env import ROOT, Areal

ROOMS = (*(ROOT / room for room in ("contract", "gateway", "operator", "sandbox", "trainer")), ROOT)
COUNTED = {"advantages": [1.155, -0.577, -0.577], "score": 0.333}
MASKED = {"advantages": [0.707, -0.707], "score": 0.5}


def test_truncated_episodes_are_scored_or_masked_and_count_in_an_evaluation(areal: Areal) -> None:
    code, out, errors = areal.run(Path(__file__).parent / "check_truncated.py", path=ROOMS)
    assert code == 0, errors[-2000:]
    found = [json.loads(line.removeprefix("CHECK")) for line in out.splitlines() if line.startswith("CHECK")]
    assert found == [
        ["score", "training", COUNTED],
        ["score", "evaluation", COUNTED],
        ["mask", "training", MASKED],
        ["mask", "evaluation", COUNTED],
    ]
