"""Every arm of train.py with every seed, one after the other, on one engine: `make compare-rl`.

Each leaves a JSON file in OUT/runs. Stop it at any time and start it again: what is done stays done, and what was cut
goes on from its last checkpoint.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from sandgate.operator.local.job import load_job
from sandgate.operator.local.serve import serve_local

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "learning"))
import curve  # noqa: E402
import demo  # noqa: E402
from figure import ARMS  # noqa: E402


def result(out: Path, arm: str, seed: int) -> dict[str, Any]:
    """Of a finished run: what the figure and the page are made of."""
    story = curve.read(out / "steps.jsonl")
    told = [json.loads(line) for line in (out / "steps.jsonl").read_text().splitlines()]
    rows = {one["at_step"]: one for one in told if "at_step" in one}
    names = ("rows", "rows_differ", "sampled", "lost", "invented")
    masked = [one.get("masked", 0.0) for one in story.steps.values()]
    lengths = [one["sampled_mean"] for _, one in sorted(story.steps.items())]
    return {
        "arm": arm,
        "seed": seed,
        "solved": [round(one, 4) for one in story.solved],
        "held_out": {str(step): round(one, 4) for step, one in sorted(story.evaluations.items())},
        "logprob_difference_max": story.worst,
        "masked": round(sum(masked) / len(masked), 4),
        "sandboxes_lost": max((one.get("sandboxes_lost", 0) for one in rows.values()), default=0),
        "tokens": [round(one, 1) for one in lengths],
        "transcripts": {name: sum(one[name] for one in rows.values()) for name in names},
        "trainer_starts": len(story.starts),
        "train_s": round(story.trained_s),
        "load": round(os.getloadavg()[1], 1),
    }


async def run(told: argparse.Namespace) -> None:
    job = load_job(HERE / "job.yaml")
    (told.out / "runs").mkdir(parents=True, exist_ok=True)
    async with serve_local(
        job, manifest_dir=HERE, out=told.out / "job", progress=print, engine_url=told.engine_url
    ) as served:
        for seed in told.seeds:
            for arm in told.arms:
                done = told.out / "runs" / f"{arm}-{seed}.json"
                if not done.exists():
                    await one_run(told, {"origins": served.origins, "key": served.key}, arm, seed, done)


async def one_run(told: argparse.Namespace, served: dict[str, Any], arm: str, seed: int, done: Path) -> None:
    out, began = told.out / f"{arm}-{seed}", time.monotonic()
    out.mkdir(exist_ok=True)
    further = ["--arm", arm, "--run", f"{arm}-{seed}", "--evaluate-every", str(told.evaluate_every)]
    asked = argparse.Namespace(
        out=out,
        example=HERE,
        steps=told.steps,
        seed=seed,
        ahead=0,
        further=[*further, *told.further],
    )
    code = await demo.train(asked, served, demo.View(out, told.steps))
    if code:
        raise SystemExit(f"{arm}, seed {seed}: the trainer ended with {code}; see {out / 'train.log'}")
    found = result(out, arm, seed) | {"wall_s": round(time.monotonic() - began)}
    part = done.with_suffix(".part")
    part.write_text(json.dumps(found) + "\n")
    part.replace(done)
    for name in ("weights", "checkpoints", "transcripts.jsonl"):
        path = out / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    print(json.dumps(found), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/compare-rl"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--evaluate-every", type=int, default=8)
    parser.add_argument("--engine-url", help="use this vLLM; it must serve the job's model")
    told, further = parser.parse_known_args()  # the rest is train.py's
    told.further = further
    told.out = told.out.absolute()
    asyncio.run(run(told))


if __name__ == "__main__":
    main()
