"""`python -m tests.fuzz [--inputs N] [--seed S] [--only TARGET]`: mutated bodies, records, manifests and sampled
ids, in two processes.

Each input must be understood or refused by an exception of contract.errors; anything else is a bug, and ends the run
with the seed that shows it again.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

from tests.fuzz import fuzz_answers, fuzz_ends, fuzz_manifests, fuzz_protocols, fuzz_records, fuzz_rows

TARGETS: dict[str, Callable[[int, int], object]] = {
    "bodies": fuzz_protocols.run,
    "records": fuzz_records.run,
    "manifests": fuzz_manifests.run,
    "ends": fuzz_ends.run,
    "answers": fuzz_answers.run,
    "rows": fuzz_rows.run,
}
SHARES = {"bodies": 80, "answers": 38, "ends": 40, "records": 20, "manifests": 20, "rows": 2}
"""Of two hundred inputs: agents send bodies and choose how they end, models sample answers, only we write records, only
the owner manifests. An input of rows is a session, and dear."""
BATCH = 10_000
"""Inputs per seed, so that a failure can be repeated in seconds."""


def batch(target: str, seed: int, inputs: int) -> tuple[str, int]:
    """What went wrong, or nothing; and the process' largest memory so far, in MiB."""
    said = ""
    try:
        TARGETS[target](seed, inputs)
    except Exception as error:  # noqa: BLE001 - finding any is what it is for
        said = f"{target}, seed {seed}, {inputs} inputs: {type(error).__name__}: {error}"
    return said, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=TARGETS, help="inputs of this kind only")
    args = parser.parse_args()
    shares = {args.only: 1} if args.only else SHARES
    began = time.monotonic()
    with ProcessPoolExecutor(2) as pool:
        jobs = []
        for target, share in shares.items():
            left, seed = args.inputs * share // sum(shares.values()), args.seed
            while left > 0:
                jobs.append(pool.submit(batch, target, seed, min(BATCH, left)))
                left, seed = left - BATCH, seed + 1
        results = [job.result() for job in jobs]
    wrong = [said for said, _ in results if said]
    early, late = (max(rss for _, rss in part) for part in (results[: len(results) // 3 + 1], results))
    for said in wrong:
        print(said)
    print(f"{args.inputs} inputs in {time.monotonic() - began:.0f} s, {len(wrong)} batches failed")
    print(f"memory at most: {early} MiB in the first third, {late} MiB in all")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
