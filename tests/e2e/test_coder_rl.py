"""examples/coder-rl: two of its arms for two small steps each, before a real engine; `make compare-rl` has all four."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.e2e.test_shop_rl import ROOT, end, start
from tests.e2e.truth import TOLERANCE
from tests.support.environments import python_of

EXAMPLE = ROOT / "examples" / "coder-rl"
ARMS = ("exact", "masked")
STEPS, BATCH, SAMPLES = 2, 16, 4

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="TRL's lock holds wheels for Linux"),
]


async def test_two_steps_of_two_arms_differ_in_what_the_trainer_is_told(tmp_path: Path) -> None:
    words = [str(EXAMPLE / "compare.py"), "--out", str(tmp_path), "--seeds", "0", "--steps", str(STEPS)]
    words += ["--arms", *ARMS, "--no-evaluate", "--batch", str(BATCH), "--samples", str(SAMPLES)]
    engine = python_of("engine-env.sh").parents[1]
    await end(await start(words, SANDGATE_ENGINE_VENV=str(engine)))
    found = {arm: json.loads((tmp_path / "runs" / f"{arm}-0.json").read_text()) for arm in ARMS}
    assert {len(one["solved"]) for one in found.values()} == {STEPS}
    assert all(found[arm]["logprob_difference_max"] < TOLERANCE for arm in ARMS)
    assert found["exact"]["transcripts"]["rows"] == STEPS * BATCH
    assert found["exact"]["masked"] == 0.0
    assert found["masked"]["masked"] > 0.0, "32 sandboxes, of which a fifth dies"
    for one in found.values():
        told = one["transcripts"]
        assert told["lost"] <= told["sampled"]
        assert (told["rows_differ"] > 0) == (told["lost"] + told["invented"] > 0)
