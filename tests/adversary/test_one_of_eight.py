"""One hostile agent beside seven honest ones, with every trick at once: their records are what they are without it.

What it costs them in time is measured, not asserted: `make bench ARGS=hostile`.
"""

from __future__ import annotations

from pathlib import Path

from tests.adversary.eight import HONEST, told

RSS_MB = 512
SAME = (
    "uid", "session_id", "sample_index", "prompt_ids", "response_ids", "response_logprobs", "loss_mask", "versions",
    "turn_ends", "reward", "finish_reason", "fork_reason", "failure_class", "complete", "masked", "metadata",
)  # fmt: skip


async def test_the_seven_have_the_records_that_they_have_without_it(tmp_path: Path) -> None:
    for name in ("alone", "attacked"):
        (tmp_path / name).mkdir()
    alone = await told(tmp_path / "alone", attacked=False)
    attacked = await told(tmp_path / "attacked", attacked=True)
    for name, rows in alone.rows.items():
        again = attacked.rows[name]
        assert [{key: row.get(key) for key in SAME} for row in again] == [
            {key: row.get(key) for key in SAME} for row in rows
        ]
    assert {row["reward"] for row in attacked.rows[f"s{HONEST}"]} <= {0.0}, "its reward is what it earned"
    assert attacked.peak_mb < RSS_MB
