"""Write train.jsonl and held_out.jsonl, 64 tasks each and no specification in both, and the agent's specs.json."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

from spec import Spec, program, random_steps

HERE = Path(__file__).resolve().parent
TASKS = 64


def main() -> None:
    rnd = random.Random(0)
    numbers = iter(rnd.sample(range(100, 1000), 2 * TASKS))
    seen: set[str] = set()
    specs: dict[str, Any] = {}
    for name in ("train", "held_out"):
        lines = []
        while len(lines) < TASKS:
            steps = random_steps(rnd, name == "held_out")
            if (text := program(steps)) in seen:
                continue
            seen.add(text)
            number = next(numbers)
            specs[str(number)] = asdict(Spec.of(rnd, steps))
            data = {"steps": [[one.name, one.n] for one in steps], "seed": number}
            lines.append(json.dumps({"uid": f"spec-{number}", "prompt": f"spec {number}", "data": data}))
        (HERE / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    (HERE / "specs.json").write_text(json.dumps(specs, indent=0) + "\n")


if __name__ == "__main__":
    main()
