"""Does it learn with every seed? `make demo-rl` for each, in folders of their own, and a line of JSON for each.

SANDGATE_ENGINE_VENV and PYTHONPATH as `make demo-rl` sets them; in TRL's environment:
    python examples/shop-rl/measure.py --out out/rl-seeds [--seeds 0 1 2] [--ahead 1]
Exit code 0: every seed rose by 30 points, with logprobs within 1e-4 of the trainer's.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
DEMO = HERE.parent / "learning" / "demo.py"
POINTS = 30.0
TOLERANCE = 1e-4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="emptied first, seed by seed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--ahead", type=int, default=0)
    told = parser.parse_args()
    good = True
    for seed in told.seeds:
        out = told.out / f"seed-{seed}-ahead-{told.ahead}"
        shutil.rmtree(out, ignore_errors=True)
        words = [sys.executable, str(DEMO), "--example", str(HERE), "--out", str(out), "--json"]
        words += ["--seed", str(seed), "--steps", str(told.steps), "--ahead", str(told.ahead)]
        began, loads = time.monotonic(), [os.getloadavg()[0]]
        with (told.out.parent / f"{out.name}.log").open("w") as log:
            process = subprocess.Popen(words, stdout=log, stderr=log)
            while process.poll() is None:
                time.sleep(5)
                loads.append(os.getloadavg()[0])
        found = json.loads((out / "summary.json").read_text())
        found |= {
            "whole_s": round(time.monotonic() - began, 1),
            "load_mean": round(sum(loads) / len(loads), 1),
        }
        good &= process.returncode == 0 and found["points"] >= POINTS
        good &= found["logprob_difference_max"] < TOLERANCE
        print(json.dumps(found), flush=True)
    sys.exit(not good)


if __name__ == "__main__":
    main()
