"""`python -m tests.simulation --seeds A:B`: run many worlds; print each seed that fails, why, and its last events."""

from __future__ import annotations

import argparse
import logging
import time
from collections import Counter

from tests.simulation.checker import verdict
from tests.simulation.loop import Stuck
from tests.simulation.world import World


def main() -> int:
    """Exit code 1 if any seed failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", default="0:200", help="A:B, or one seed")
    parser.add_argument(
        "--log", type=int, default=60, help="lines of the event log that a failing seed prints"
    )
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    first, _, last = args.seeds.partition(":")
    failed: list[int] = []
    totals: Counter[str] = Counter()
    begun = time.perf_counter()
    seeds = range(int(first), int(last) if last else int(first) + 1)
    for seed in seeds:
        wrong, world = run(seed)
        totals.update(world.history.counts)
        if wrong:
            failed.append(seed)
            print(f"--- seed {seed} FAILED")
            for line in list(world.history.lines)[-args.log :] if args.log else ():
                print(line)
            print(*(f"!!! {line}" for line in wrong[:12]), sep="\n", flush=True)
    took = time.perf_counter() - begun
    print(f"{len(seeds)} seeds in {took:.1f} s, {len(failed)} failed: {failed}")
    print("  ".join(f"{word}={count}" for word, count in sorted(totals.items())))
    return 1 if failed else 0


def run(seed: int) -> tuple[list[str], World]:
    """What is wrong with this world; nothing, if all is well."""
    world = World(seed)
    try:
        history = world.run()
    except (Stuck, TimeoutError) as error:
        return [f"{type(error).__name__}: {error}", *world.history.wrong], world
    return verdict(history), world


if __name__ == "__main__":
    raise SystemExit(main())
