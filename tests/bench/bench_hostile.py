"""What a hostile agent costs the seven honest ones beside it: tests/adversary/hostile.py on one gateway of one core."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from tests.adversary.eight import told


def bench(smoke: bool) -> dict[str, float]:
    """Seconds of a turn, on their own and beside it; the hostile agent and its victims share this machine's cores."""
    found: dict[str, float] = {}
    for name, attacked in (("alone", False), ("attacked", True)):
        with tempfile.TemporaryDirectory() as folder:
            run = asyncio.run(told(Path(folder), attacked=attacked, turns=8 if smoke else 60))
        found |= {f"{name}_p50_s": run.quantile(50), f"{name}_p99_s": run.quantile(99)}
    return found | {"p99_ratio": found["attacked_p99_s"] / found["alone_p99_s"], "peak_rss_mb": run.peak_mb}
