"""What a hostile agent costs the seven honest ones beside it: tests/adversary/hostile.py on one gateway of one core."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

from tests.adversary.eight import Told, told

TURNS = 990
"""Of each honest agent, one after the other without a pause; a session may have 1,000."""


def bench(smoke: bool) -> dict[str, float]:
    """Seconds of a turn, on their own and beside it; the hostile agent and its victims share this machine's cores."""
    turns = 8 if smoke else TURNS
    alone, beside = measure(turns, attacked=False), measure(turns, attacked=True)
    return {
        "alone_p50_s": alone.quantile(50),
        "alone_p99_s": alone.quantile(99),
        "beside_p50_s": beside.quantile(50),
        "beside_p99_s": beside.quantile(99),
        "p99_ratio": beside.quantile(99) / alone.quantile(99),
        "peak_rss_mb": beside.peak_mb,
        "rounds": float(beside.tricks),
    }


def measure(turns: int, *, attacked: bool) -> Told:
    """In a process of its own, which is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        return asyncio.run(told(Path(folder), attacked=attacked, turns=turns, every=turns + 1))
