"""`make demo-rl`: an engine, a gateway, and a trainer whose model gets better while you watch.

`--example` is a folder with a job.yaml and a train.py. The trainer (train.py) is a process of its own. Kill it, with -9
if you like: it is started again, and goes on from its last checkpoint. Kill this program, and run it again: the same. A
run that is finished is only shown; `--out` elsewhere, or the folder removed, starts a new one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

import curve
from sandgate.operator.local.job import load_job
from sandgate.operator.local.serve import serve_local
from sandgate.trainer.cli.progress import line_of

SERVED = "LEARNING_SERVED"
"""As train.py finds the gateways (grpo.py, which loads the trainer, is not imported here)."""
RESTARTS_MAX = 20
"""Of a trainer that was killed; one that ends with an error by itself is not started again."""
LOOK_S = 0.5
"""Between two looks at what the trainer wrote; a step takes seconds."""
TAIL = 3_000
"""Characters of a failed trainer's log."""


class View:
    """The curve on a terminal, a line per step elsewhere."""

    def __init__(self, out: Path, total: int) -> None:
        self.console, self.out, self.total = Console(highlight=False), out, total
        self.note, self.said = "starting", 0
        self.live = Live(console=self.console, auto_refresh=False) if self.console.is_terminal else None

    def say(self, event: Any) -> None:
        """Progress of engine and gateway."""
        if (words := line_of(event)) is not None:
            self.note = words
            if self.live is None:
                self.console.print(words, markup=False)
        self.show(curve.read(self.out / "steps.jsonl"))

    def show(self, story: curve.Story) -> None:
        if self.live is not None:
            self.live.update(Group(*map(Text, self.lines(story))), refresh=True)
            return
        for step in sorted(story.steps)[self.said :]:
            self.console.print(f"step {step}: {line(story.steps[step])}", markup=False)
        self.said = len(story.steps)

    def lines(self, story: curve.Story) -> list[str]:
        head = f"solved, {len(story.steps)} of {self.total} steps"
        if story.starts:
            head += f", {time.time() - story.starts[0]:.0f} s since the trainer began"
        last = line(story.steps[max(story.steps)]) if story.steps else self.note
        return [head, *curve.curve(story.solved), last]


def line(one: dict[str, Any]) -> str:
    off = one.get("logp_difference_max")
    return (
        f"solved {one['solved']:.0%}, reward {one['reward']:.2f}"
        + (f", captured logprobs within {off:.0e} of the trainer's" if off is not None else "")
        + (f", up to {one['behind_max']:.0f} version(s) old" if one.get("behind_max") else "")
    )


async def train(told: argparse.Namespace, served: dict[str, Any], view: View) -> int:
    """Run the trainer to its end; again if it was killed. Its exit code."""
    words = [
        sys.executable,
        str(told.example / "train.py"),
        "--out",
        str(told.out),
        "--steps",
        str(told.steps),
    ]
    words += ["--seed", str(told.seed), "--ahead", str(told.ahead), *told.further]
    env = {**os.environ, SERVED: json.dumps(served), "HF_HUB_OFFLINE": "1"}
    env |= {"TRL_EXPERIMENTAL_SILENCE": "1", "OMP_NUM_THREADS": "1"}
    for _ in range(RESTARTS_MAX):
        with (told.out / "train.log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(*words, env=env, stdout=log, stderr=log)
        try:
            while True:
                try:
                    code = await asyncio.wait_for(process.wait(), LOOK_S)
                    break
                except TimeoutError:
                    view.show(curve.read(told.out / "steps.jsonl"))
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()
        if code != -signal.SIGKILL:
            return code
        view.console.print("the trainer was killed; it goes on from its last checkpoint")
    return 1


async def run(told: argparse.Namespace, view: View) -> int:
    job = load_job(told.example / "job.yaml")
    async with serve_local(
        job, manifest_dir=told.example, out=told.out, progress=view.say, engine_url=told.engine_url
    ) as served:
        connect = {"origins": served.origins, "key": served.key}
        view.note = "loading the trainer"
        return await train(told, connect, view)


def summary(told: argparse.Namespace, story: curve.Story) -> dict[str, Any]:
    before, after = story.before or {}, story.after or {}
    ages = [one.get("behind_max", 0) for one in story.steps.values()]
    return {
        "done": story.done,
        "seed": told.seed,
        "steps": len(story.steps),
        "solved_before": before.get("eval_solved"),
        "solved_after": after.get("eval_solved"),
        "points": None if story.points is None else round(story.points, 1),
        "train_s": round(story.trained_s, 1) if story.starts else None,
        "logprob_difference_max": story.worst,
        "versions_behind_max": max(ages, default=0),
        "trainer_starts": len(story.starts),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--example", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("out/demo-rl"))
    parser.add_argument("--steps", type=int, default=16, help="optimizer steps of 64 episodes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--ahead", type=int, default=0, help="1: sample the next batch while this one is trained"
    )
    parser.add_argument("--engine-url", help="use this vLLM; it must serve the job's model")
    parser.add_argument("--json", action="store_true", help="print the summary as JSON")
    told, further = parser.parse_known_args()  # the rest is train.py's
    told.further = further
    told.out, told.example = told.out.absolute(), told.example.absolute()
    told.out.mkdir(parents=True, exist_ok=True)
    began = time.time()
    view = View(told.out, told.steps)
    story = curve.read(told.out / "steps.jsonl")
    code = 0
    if not story.done:
        if view.live is not None:
            view.live.start()
        try:
            code = asyncio.run(run(told, view))
        finally:
            if view.live is not None:
                view.live.stop()
        story = curve.read(told.out / "steps.jsonl")
    found = summary(told, story) | {"wall_s": round(time.time() - began, 1)}
    (told.out / "summary.json").write_text(json.dumps(found))
    if story.steps:
        curve.write_png(story, told.out / "reward.png", f"GRPO through Sandgate, seed {told.seed}")
    if code or not story.done:
        view.console.print((told.out / "train.log").read_text(errors="replace")[-TAIL:], markup=False)
        sys.exit(code or 1)
    if told.json:
        print(json.dumps(found))
        return
    for text in curve.curve(story.solved):
        print(text)
    if found["points"] is not None:
        before, after = found["solved_before"], found["solved_after"]
        print(
            f"solved {before:.0%} -> {after:.0%} ({found['points']:+.0f} points) in {found['train_s']:.0f} s"
        )
    print(
        f"captured logprobs are within {found['logprob_difference_max']:.1e} of the trainer's own;"
        f" curve: {told.out / 'reward.png'}"
    )


if __name__ == "__main__":
    main()
