"""The demo's story: what a killed trainer wrote twice, or in part, is told once."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[3] / "examples" / "learning"


def curve() -> Any:
    spec = importlib.util.spec_from_file_location("curve", EXAMPLE / "curve.py")
    assert spec is not None
    assert spec.loader is not None
    found = sys.modules["curve"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_a_step_that_was_done_again_counts_once_and_a_cut_line_not_at_all(tmp_path: Path) -> None:
    steps = [
        {"began": 5.0, "checkpoint": None},
        {"step": 0, "eval_solved": 0.4, "at": 6.0},
        {"step": 1, "solved": 0.5, "logp_difference_max": 1e-5, "behind_max": 0},
        {"step": 2, "solved": 0.5, "logp_difference_max": 1e-5, "behind_max": 0},
        {"began": 9.0, "checkpoint": "c"},
        {"step": 2, "solved": 0.625, "logp_difference_max": 0.3, "behind_max": 1},
        {"step": 2, "eval_solved": 0.9, "at": 12.0},
        {"done": True},
    ]
    path = tmp_path / "steps.jsonl"
    path.write_text("\n".join(map(json.dumps, steps)) + '\n{"step": 3, "sol')
    story = curve().read(path)
    assert (story.solved, story.starts, story.done) == ([0.5, 0.625], [5.0, 9.0], True)
    assert round(story.points, 6) == 50.0
    assert story.worst == 1e-5, "an older version's logprobs are no difference of rounding"
    assert curve().read(tmp_path / "none").solved == []


def test_the_curve_is_one_column_for_each_step() -> None:
    lines = curve().curve([0.0, 0.5, 1.0], height=4)
    assert [line[7:] for line in lines[:-1]] == ["  █", "  █", " ██", " ██"]
    assert len(curve().curve([0.5] * 500)[0]) < 100
