"""How fast a trainer gets its trajectories: lease, Arrow over HTTP, decode; and what that costs gateway and trainer.

    python -m tests.bench.lease [--smoke] [--write]

Gateway on core 0, trainer on core 1. `--write`: its section of docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import resource
import socket
import subprocess
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from sandgate.contract.keys import Key, Scope, mint
from sandgate.gateway.journal.records import Delivered, Opened, Record, Sealed, TurnCommitted
from sandgate.gateway.journal.reply import Reply
from sandgate.gateway.journal.sqlite import SqliteStore
from sandgate.trainer.client.fleet import AsyncFleet
from sandgate.trainer.client.groups import nbytes
from sandgate.trainer.client.rollout_client import AsyncRolloutClient
from sandgate.trainer.client.streaming import Ahead
from tests.bench import report
from tests.bench.model import folder
from tests.bench.run import ROOT, SECRET, cpu_s, process, rss_kb
from tests.bench.stub_engine import WINDOW

JOB = "bench"
PROMPT, TURNS, CONTEXT, SAMPLED = 1408, 8, 384, 512
"""Tokens: a first prompt, then turns of a tool's answer and a sample; the first turn adds no context of its own."""
TOKENS = PROMPT + TURNS * SAMPLED + (TURNS - 1) * CONTEXT
MB = 1e6

Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """One line of the table."""

    name: str
    sessions: int
    group: int
    """Sessions of a task."""
    groups: int
    """Of one lease; 0: `fleet.groups()`, one at a time, leased ahead."""
    ahead: int = 0
    commit: int = 1
    """Groups that are acknowledged together, as by a checkpoint; 1: each when it was taken."""
    turns: int = TURNS


def cases(smoke: bool) -> list[Case]:
    """The journal is made for the first; the others lease it again."""
    count = 96 if smoke else int(os.environ.get("BENCH_SESSIONS", "10000"))
    return [
        Case("`fleet.groups()`, 32 ahead, a checkpoint for 32 groups", count, 8, 0, ahead=32, commit=32),
        Case("`fleet.groups()`, 32 ahead, each acknowledged", count, 8, 0, ahead=32),
        Case("`client.lease(max_groups=32)`", count, 8, 32),
    ]


# -- the journal ------------------------------------------------------------------------------------------------------


def ids(rng: random.Random, count: int) -> bytes:
    """Token ids of a vocabulary of 150k."""
    return array("i", [rng.randrange(150_000) for _ in range(count)]).tobytes()


def session(
    name: str, spec: dict[str, Any], rng: random.Random, pool: bytes, turns: int = TURNS
) -> list[Record]:
    """What a gateway writes of a session with so many turns; logprobs and ids are slices of one random pool."""

    def some(count: int) -> bytes:
        at = rng.randrange(len(pool) // 4 - count) * 4
        return pool[at : at + 4 * count]

    found: list[Record] = [Opened(at=1.0, spec=spec)]
    parent = None
    for number in range(turns):
        turn = f"{name}-t{number}"
        found.append(
            TurnCommitted(
                at=2.0,
                turn=turn,
                parent=parent,
                fork=None if parent else "new_root",
                digest=turn.encode(),
                context=some(CONTEXT if parent else PROMPT),
                ids=some(SAMPLED),
                logprobs=array("f", [-rng.random()]).tobytes() * SAMPLED,
                versions=((number // 4, 0, SAMPLED),),
                finish="stop",
                reply=Reply(text="done"),
                prompt_key=turn.encode(),
                head_key=b"head",
                sampling={"temperature": 1.0, "max_tokens": SAMPLED},
                prompt_tokens=PROMPT,
            )
        )
        found.append(Delivered(at=2.0, turn=turn))
        parent = turn
    return [*found, Sealed(at=3.0, reward=rng.random())]


async def write_journal(path: Path, case: Case) -> None:
    """All sessions of a case, sealed."""
    rng = random.Random(7)
    pool = ids(rng, 1 << 20)
    store = await SqliteStore.open(path)
    try:
        for number in range(case.sessions):
            uid = f"q{number // case.group}"
            spec = {
                "job": JOB, "uid": uid, "sample_index": number % case.group, "group_size": case.group,
                "attempt": 0, "model": "bench", "reward_source": "trainer",
            }  # fmt: skip
            name = f"s-{number:06d}"
            await store.append(name, *session(name, spec, rng, pool, case.turns), sync=number % 64 == 63)
        await store.append("", Delivered(at=4.0, turn="end"))
    finally:
        await store.aclose()


# -- the two processes ------------------------------------------------------------------------------------------------


@contextmanager
def gateway(journal: Path, home: Path, model: Path) -> Iterator[tuple[str, int]]:
    """As it is run, on a journal that is there already; its engine is not needed."""
    (home / "secret").write_text(SECRET.hex())
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    config = {
        "listen": {"port": port},
        "journal": str(journal),
        "engine": {"urls": [], "model": "bench", "wait": True},
        "model": {"name": "bench", "tokenizer": str(model), "max_model_len": WINDOW},
        "secret_file": str(home / "secret"),
        "job": JOB,
        "log_level": "WARNING",
    }
    (home / "config.json").write_bytes(orjson.dumps(config))
    told = ("sandgate.gateway.app", "--config", str(home / "config.json"))
    with process(0, *told, origin=f"http://127.0.0.1:{port}") as running:
        yield running


def peak_mb() -> float:
    """Of this process, ever."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MB


async def train(origin: str, case: Case) -> Row:
    """Lease everything and count it, as a trainer that takes no time."""
    key = mint(SECRET, Key(Scope.TRAINER, JOB, "", 0))
    row: Row = {"trajectories": 0, "tokens": 0, "bytes": 0}

    def took(rows: Any) -> None:
        row["trajectories"] += len(rows)
        row["tokens"] += sum(len(one.prompt_ids) + len(one.response_ids) for one in rows)
        row["bytes"] += nbytes(rows)

    async with AsyncRolloutClient(origin, key) as client, AsyncFleet({"gateway": client}, job=JOB) as fleet:
        await client.status()
        import pyarrow.compute  # noqa: F401 - loading it is not what is measured

        row["rss_before_mb"] = rss_kb(os.getpid()) * 1024 / MB
        began, cpu = time.monotonic(), time.process_time()
        if case.groups:
            while (lease := await client.lease(max_groups=case.groups)) is not None:
                took(lease.trajectories)
                await client.ack(lease)
        else:
            async for group in fleet.groups(idle_s=0.0, ahead=Ahead(case.ahead)):
                took(group.trajectories)
                if case.commit == 1:
                    await group.ack()
                    continue
                fleet.trained(group)
                if row["trajectories"] % (case.commit * case.group) == 0:
                    await fleet.commit(await fleet.checkpoint())
            await fleet.commit(await fleet.checkpoint())
        row["wall_s"], row["trainer_cpu_s"] = time.monotonic() - began, time.process_time() - cpu
    return row | {"peak_rss_mb": peak_mb()}


def measured(case: Case, origin: str, pid: int) -> Row:
    """A trainer in a process of its own."""
    before = cpu_s(pid)
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.bench.lease", "--train", origin, "--case", case.name],
        stdout=subprocess.PIPE, cwd=ROOT,
    )  # fmt: skip
    os.sched_setaffinity(child.pid, {1 % (os.cpu_count() or 1)})
    out, _ = child.communicate()
    row: Row = json.loads(out)
    assert row["trajectories"] == case.sessions, row
    row["gateway_cpu_s"] = cpu_s(pid) - before
    for name in ("wall_s", "trainer_cpu_s", "gateway_cpu_s"):
        row[name.removesuffix("_s") + "_mb_per_s"] = row["bytes"] / MB / row[name]
    return {"case": case.name, **row}


def measure(smoke: bool) -> list[Row]:
    """Every case on a journal of its own."""
    found, model = [], folder()
    for case in cases(smoke):
        with tempfile.TemporaryDirectory() as name:
            home = Path(name)
            asyncio.run(write_journal(home / "journal.db", case))
            with gateway(home / "journal.db", home, model) as (origin, pid):
                found.append(measured(case, origin, pid))
        print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    return found


TITLE = "Trajectories to a trainer"
HEAD = f"""\
10,000 finished trajectories of {TOKENS} tokens ({TURNS} turns of {SAMPLED} sampled tokens; groups of 8) lie in the
journal of a gateway, on disk. A trainer leases all of them as Arrow over HTTP on loopback, decodes them into arrays and
acknowledges each lease, durably. MB are 10^6 bytes of token arrays (ids, logprobs, mask, versions): 13 a response
token. "Of one core": bytes by the CPU time that the process took. Peak RSS is the trainer's whole process, libraries
included; a lease that it holds is part of it.

Made by `python -m tests.bench.lease --write`.

"""
COLUMNS = (
    "case",
    "MB/s",
    "trajectories/s",
    "trainer, of one core",
    "gateway, of one core",
    "trainer's RSS before / peak",
)


def table(rows: list[Row]) -> str:
    """Markdown."""
    cells = [
        [
            row["case"],
            f"{row['wall_mb_per_s']:.0f}",
            f"{row['trajectories'] / row['wall_s']:.0f}",
            f"{row['trainer_cpu_mb_per_s']:.0f} MB/s",
            f"{row['gateway_cpu_mb_per_s']:.0f} MB/s",
            f"{row['rss_before_mb']:.0f} / {row['peak_rss_mb']:.0f} MB",
        ]
        for row in rows
    ]
    return report.table(list(COLUMNS), cells) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true", help="96 trajectories, to see that it works")
    parser.add_argument("--write", action="store_true", help="into docs/benchmarks.md and .json")
    parser.add_argument("--train", default="", help=argparse.SUPPRESS)
    parser.add_argument("--case", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.train:
        (case,) = [one for one in cases(False) if one.name == args.case]
        print(json.dumps(asyncio.run(train(args.train, case))))
        return 0
    rows = measure(args.smoke)
    print(table(rows))
    if args.write:
        machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
        report.write(TITLE, f"{HEAD}{table(rows)}\nMeasured on {machine}.", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
