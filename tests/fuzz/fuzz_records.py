"""Law: whatever bytes a record, a trajectory or a journal file has become, it is read as what it says or is refused
with an error of `contract.errors`; nothing else escapes.

`python -m tests.fuzz.fuzz_records SEED N` looks longer than the tests do.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import tempfile
from array import array
from pathlib import Path
from typing import Any

from sandgate.contract.errors import SandgateError
from sandgate.contract.trajectory import Trajectory, from_json, to_json
from sandgate.gateway.journal.records import decode, encode
from sandgate.gateway.journal.sqlite import SqliteStore
from sandgate.gateway.journal.wal_damage import frames_kept, lost_commits
from tests.fuzz.patience import quick
from tests.gateway.journal.samples import EVERY_KIND

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 2, 10**30, 1.5, float("nan"), float("inf"), "", "x", "1", [], [None], ["x"], [10**30], [1.5],
    [-1], [[1]], {}, {"a": 1}, {"schema_version": 9},
)  # fmt: skip

TRAJECTORY = Trajectory(
    job="shop",
    uid="q1",
    session_id="s",
    trajectory_id=0,
    sample_index=0,
    attempt=0,
    prompt_ids=array("i", [1, 2]),
    response_ids=array("i", [3, 4]),
    response_logprobs=array("f", [-0.5, 0.0]),
    loss_mask=array("b", [1, 0]),
    versions=array("i", [1, -1]),
    turn_ids=("t1",),
    turn_ends=(1,),
    turn_rewards=(0.5,),
)


def mutated(rng: random.Random, raw: bytes) -> bytes:
    """A few bytes flipped, cut, doubled, inserted."""
    out = bytearray(raw)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(out) + 1)
        match rng.randrange(5):
            case 0:
                out[at : at + 1] = rng.randbytes(1)
            case 1:
                del out[at:]
            case 2:
                del out[at : at + rng.randint(1, 8)]
            case 3:
                out[at:at] = rng.randbytes(rng.randint(1, 8))
            case _:
                out[at:at] = out[at : at + rng.randint(1, 64)]
    return bytes(out)


def fuzz_record(rng: random.Random) -> None:
    raw = mutated(rng, encode(rng.choice(list(EVERY_KIND.values()))))
    with contextlib.suppress(SandgateError):
        again = decode(raw)
        assert encode(decode(encode(again))) == encode(again), raw


def fuzz_trajectory(rng: random.Random) -> None:
    value: Any = json.loads(json.dumps(to_json(TRAJECTORY)))
    for _ in range(rng.randint(1, 3)):
        name = rng.choice(list(value))
        match rng.randrange(3):
            case 0:
                value.pop(name)
            case 1:
                value[name] = rng.choice(ODD)
            case _:
                value[name + "_new"] = rng.choice(ODD)
    if rng.random() < 0.02:
        value = rng.choice(ODD)
    with contextlib.suppress(SandgateError):
        again = from_json(value)
        assert len(again.loss_mask) == len(again.response_ids), value


def fuzz_log(rng: random.Random) -> None:
    raw = rng.randbytes(rng.randrange(200))
    assert frames_kept(raw) >= 0
    assert lost_commits(raw, rng.randrange(4)) >= 0


async def fuzz_journal(rng: random.Random, folder: Path) -> None:
    """A journal file with some bytes changed."""
    path = folder / "j"
    async with await SqliteStore.open(path) as store:
        await store.append("s", *EVERY_KIND.values())
        await store.append("t", *list(EVERY_KIND.values())[: rng.randrange(1, 9)])
        rows = list(store.scan())
    raw = bytearray(path.read_bytes())
    for _ in range(rng.choice((1, 1, 1, 8, 64))):
        raw[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    path.write_bytes(raw)
    with contextlib.suppress(SandgateError):
        async with await SqliteStore.open(path) as store:
            found = list(store.scan())
            assert found == rows[: len(found)], "a head of what was written, or refused"
            assert len(found) + store.status().cut == len(rows)
            for session in ("s", "t"):
                assert list(store.scan(session)) == [row for row in found if row[1] == session]


def run(seed: int, n: int) -> None:
    """`n` mutations of each kind (one in fifty for journal files, which are slower)."""
    rng = random.Random(seed)
    for _ in range(n):
        for one in (fuzz_record, fuzz_trajectory, fuzz_log):
            with quick():
                one(rng)
    for _ in range(max(1, n // 50)):
        with tempfile.TemporaryDirectory() as folder:
            asyncio.run(fuzz_journal(rng, Path(folder)))


if __name__ == "__main__":
    run(int(sys.argv[1]), int(sys.argv[2]))
