"""Long trajectories streamed from four gateways: the trainer's memory does not grow with what went through it.

    python -m tests.bench.bench_stream [COUNT]

COUNT trajectories of 32k tokens, by default 400 (0.16 GB); 10,000, a tenth of what a large run makes, are 4.1 GB, take
3 GB of disk and a minute or three. Memory must not grow from one tenth of them to the next.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import AsyncExitStack, ExitStack
from multiprocessing import get_context
from pathlib import Path

from sandgate.contract.keys import Key, Scope, mint
from sandgate.trainer.client.fleet import AsyncFleet
from sandgate.trainer.client.groups import nbytes
from sandgate.trainer.client.rollout_client import AsyncRolloutClient
from sandgate.trainer.client.streaming import Ahead
from tests.bench.lease import JOB, MB, Case, gateway, write_journal
from tests.bench.model import folder
from tests.bench.run import ROOT, SECRET, rss_kb

GATEWAYS, GROUP, TURNS = 4, 4, 35
"""35 turns have 32,384 tokens."""
AHEAD = Ahead(16, nbytes=64 << 20)


async def stream(origins: list[str], count: int) -> dict[str, float]:
    """RSS of this process when a quarter went through it, and at most after that; and at most in each tenth."""
    key = mint(SECRET, Key(Scope.TRAINER, JOB, "", 0))
    seen, size, early, late = 0, 0, 0.0, 0.0
    tenths = [0.0] * 10
    async with AsyncExitStack() as stack:
        clients = {
            origin: await stack.enter_async_context(AsyncRolloutClient(origin, key)) for origin in origins
        }
        fleet = await stack.enter_async_context(AsyncFleet(clients, job=JOB))
        began, cpu = time.monotonic(), time.process_time()
        async for group in fleet.groups(idle_s=0.0, ahead=AHEAD):
            seen += len(group.trajectories)
            size += nbytes(group.trajectories)
            await group.ack()
            now = rss_kb(os.getpid()) * 1024 / MB
            early, late = (max(early, now), late) if seen <= count // 4 else (early, max(late, now))
            tenth = (seen - 1) * 10 // count
            tenths[tenth] = max(tenths[tenth], now)
        wall, cpu = time.monotonic() - began, time.process_time() - cpu
    assert seen == count, f"{seen} of {count}"
    return {
        "stream_gb": size / 1e9,
        "stream_mb_per_s": size / MB / wall,
        "stream_mb_per_s_of_a_trainers_core": size / MB / cpu,
        "stream_rss_of_the_first_quarter_mb": early,
        "stream_rss_of_the_rest_mb": late,
    } | {f"stream_rss_of_tenth_{number}_mb": rss for number, rss in enumerate(tenths, 1)}


def write(home: Path, case: Case) -> None:
    """One gateway's journal."""
    asyncio.run(write_journal(home / "journal.db", case))


def measure(count: int) -> dict[str, float]:
    """With a trainer in a process of its own."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        homes = [Path(name) / str(number) for number in range(GATEWAYS)]
        for home in homes:
            home.mkdir()
        case = Case("stream", count // GATEWAYS, GROUP, 0, turns=TURNS)
        with ProcessPoolExecutor(min(GATEWAYS, os.cpu_count() or 1), get_context("spawn")) as writers:
            list(writers.map(write, homes, [case] * GATEWAYS))
        origins = [stack.enter_context(gateway(home / "journal.db", home, folder()))[0] for home in homes]
        words = [sys.executable, "-m", "tests.bench.bench_stream", "--train", str(count), *origins]
        said = subprocess.run(words, stdout=subprocess.PIPE, cwd=ROOT, check=True).stdout
    found: dict[str, float] = json.loads(said)
    return found


def bench(smoke: bool) -> dict[str, float]:
    """As many as fit into a minute."""
    return measure(64 if smoke else 400)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        print(json.dumps(asyncio.run(stream(sys.argv[3:], int(sys.argv[2])))))
    else:
        print(json.dumps(measure(int(sys.argv[1]) if sys.argv[1:] else 400), indent=1))
