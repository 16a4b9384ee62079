"""A day of load in fast motion: what was acknowledged is gone, nothing else is, and volume and memory stay flat."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gateway.retired_day import GROUPS, ROUNDS, SAMPLES
from tests.support.process import ROOT

LINE_BYTES = 400
"""Of a retired session, its index and half-filled pages included."""
SLACK_BYTES = 2 << 20


@pytest.mark.slow
def test_a_day_of_load_leaves_a_line_of_each_session_and_nothing_else(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.gateway.retired_day", str(tmp_path / "journal.sqlite")]
    said = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    told = json.loads(said)
    measured = told["measured"]
    (lines, volume, objects, memory), later = measured[0], measured[1:]
    assert later
    for more, bytes_, objects_, memory_ in later:
        assert bytes_ < volume + LINE_BYTES * (more - lines) + SLACK_BYTES, measured
        assert objects_ < objects * 1.05 + 1_000, measured
        assert memory_ < memory + (16 << 20), measured
    assert told["gone"] > 0.9 * ROUNDS * GROUPS * SAMPLES
    assert told["leases"] < 100
    assert told["ends"] < 1_000
    assert told["log"] < 200, "the log of leases is compacted"
    assert told["given_back"]
    assert told["lost"]
