"""AReaL's user is told, once, where groups of one sample teach nothing."""

from __future__ import annotations

import json
from pathlib import Path

from tests.trainer.areal.env import ROOT, Areal

ROOMS = (*(ROOT / room for room in ("contract", "gateway", "operator", "sandbox", "trainer")), ROOT)


def test_groups_of_one_sample_are_told_once_where_their_advantages_are_trained_on(areal: Areal) -> None:
    code, out, errors = areal.run(Path(__file__).parent / "check_alone.py", path=ROOMS)
    assert code == 0, errors[-2000:]
    found = dict(
        json.loads(line.removeprefix("CHECK")) for line in out.splitlines() if line.startswith("CHECK")
    )
    assert found == {
        "training": 1,
        "evaluation": 0,
        "rewards": 0,
        "a batch with a group of two": 0,
        "a batch of lone samples": 1,
        "one of eight, whose others were lost": 0,
        "a batch of one of eight": 0,
    }
