"""Measure: every ``tests/bench/bench_*.py``, each with ``bench(smoke: bool) -> dict[str, float]``.

A key names what was measured and its unit (``overhead_p50_ms``, ``turns_per_s``). `smoke` asks for a second or two, to
see that it still works; such numbers mean nothing. Results are printed, and written to out/bench/results.json.

    make bench                 all          make bench ARGS='--smoke journal'      quickly, only bench_journal.py
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE.parents[1] / "out" / "bench" / "results.json"


def main() -> int:
    parser = argparse.ArgumentParser(prog="make bench ARGS=...")
    parser.add_argument("--smoke", action="store_true", help="only see that each works")
    parser.add_argument("names", nargs="*", help="without bench_ and .py; default: all")
    args = parser.parse_args()
    found = sorted(path.stem.removeprefix("bench_") for path in HERE.glob("bench_*.py"))
    names: list[str] = args.names or found
    if not names or not set(names) <= set(found):
        print(f"asked for {names or 'all'}; there are {found or 'none'}", file=sys.stderr)
        return 2
    results: dict[str, dict[str, float]] = {}
    for name in names:
        began = time.monotonic()
        results[name] = importlib.import_module(f"tests.bench.bench_{name}").bench(args.smoke)
        print(f"{name} ({time.monotonic() - began:.1f} s)")
        for key, value in results[name].items():
            print(f"  {key:<40} {value:>14,.3f}", flush=True)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    machine = {"machine": platform.platform(), "python": platform.python_version(), "smoke": args.smoke}
    RESULTS.write_text(json.dumps({**machine, "results": results}, indent=2) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
