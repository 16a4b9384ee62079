"""`python -m tests.fuzz [--inputs N] [--seed S]`: mutated bodies, records and manifests, in two processes.

Each input must be understood or refused by an exception of contract.errors; anything else is a bug, and ends the run
with the seed that shows it again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor

from tests.fuzz import fuzz_manifests, fuzz_protocols, fuzz_records

TARGETS: dict[str, Callable[[int, int], object]] = {
    "bodies": fuzz_protocols.run,
    "records": fuzz_records.run,
    "manifests": fuzz_manifests.run,
}
SHARES = {"bodies": 6, "records": 2, "manifests": 2}
"""Of ten inputs: agents send bodies, only we write records, only the job's owner writes manifests."""
BATCH = 10_000
"""Inputs per seed, so that a failure can be repeated in seconds."""


def batch(target: str, seed: int, inputs: int) -> str:
    """What went wrong, or nothing."""
    try:
        TARGETS[target](seed, inputs)
    except Exception as error:  # noqa: BLE001 - finding any is what it is for
        return f"{target}, seed {seed}, {inputs} inputs: {type(error).__name__}: {error}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    began, wrong = time.monotonic(), []
    with ProcessPoolExecutor(2) as pool:
        jobs = []
        for target, share in SHARES.items():
            left, seed = args.inputs * share // sum(SHARES.values()), args.seed
            while left > 0:
                jobs.append(pool.submit(batch, target, seed, min(BATCH, left)))
                left, seed = left - BATCH, seed + 1
        wrong = [said for job in jobs if (said := job.result())]
    for said in wrong:
        print(said)
    print(f"{args.inputs} inputs in {time.monotonic() - began:.0f} s, {len(wrong)} batches failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
