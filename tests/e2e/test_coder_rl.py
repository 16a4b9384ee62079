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
STEPS, BATCH, SAMPLES = 2, 16, 4

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.slow,
    pytest.mark.endurance,  # minutes for each arm; test_shop_rl.py has the same trainer and engine
    pytest.mark.timeout(900),
    pytest.mark.skipif(sys.platform != "linux", reason="TRL's lock holds wheels for Linux"),
]


@pytest.mark.parametrize("arm", ["exact", "masked"])
async def test_two_steps_of_an_arm_tell_the_trainer_what_they_should(tmp_path: Path, arm: str) -> None:
    words = [str(EXAMPLE / "compare.py"), "--out", str(tmp_path), "--seeds", "0", "--steps", str(STEPS)]
    words += ["--arms", arm, "--no-evaluate", "--batch", str(BATCH), "--samples", str(SAMPLES)]
    engine = python_of("engine-env.sh").parents[1]
    await end(await start(words, SANDGATE_ENGINE_VENV=str(engine)))
    found = json.loads((tmp_path / "runs" / f"{arm}-0.json").read_text())
    assert len(found["solved"]) == STEPS
    assert found["logprob_difference_max"] < TOLERANCE
    if arm == "masked":
        assert found["masked"] > 0.0, "32 sandboxes, of which a fifth dies"
    else:
        assert (found["transcripts"]["rows"], found["masked"]) == (STEPS * BATCH, 0.0)
    told = found["transcripts"]
    assert told["lost"] <= told["sampled"]
    assert (told["rows_differ"] > 0) == (told["lost"] + told["invented"] > 0)
