"""Judges a submitted program by running it on inputs that the agent never sees: 1.0 if all are right, else 0.0.

Reads SANDGATE_TASK_FILE and SANDGATE_RESULT_FILE, leaves `{"reward", "reward_info"}`: see examples/shop/verifier.py.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

from sandbox import Sandbox
from spec import Step, value

HIDDEN = 16
"""Inputs."""


def judge(wanted: dict[str, Any], submitted: str | None, sandbox: Sandbox) -> dict[str, Any]:
    """`wanted` is the task's data. Raises SandboxLost: nothing is known then."""
    if submitted is None:
        return {"reward": 0.0, "reward_info": {"submitted": False, "right": 0}}
    steps = tuple(Step(name, n) for name, n in wanted["steps"])
    inputs = random.Random(wanted["seed"]).sample(range(-200, 201), HIDDEN)
    found = sandbox.outputs(submitted, inputs)
    right = 0
    if not isinstance(found, str):
        right = sum(one == value(steps, x) for one, x in zip(found, inputs, strict=True))
    return {"reward": float(right == HIDDEN), "reward_info": {"submitted": True, "right": right}}


def main() -> None:
    task = json.loads(Path(os.environ["SANDGATE_TASK_FILE"]).read_text())
    message = json.loads(Path(os.environ["SANDGATE_RESULT_FILE"]).read_text()).get("message")
    left = message.get("reward_info") if isinstance(message, dict) else None
    verdict = json.dumps(judge(task["data"], (left or {}).get("submitted"), Sandbox()))
    print(verdict)
    Path(os.environ.get("SANDGATE_TERMINATION_LOG", "/dev/termination-log")).write_text(verdict)


if __name__ == "__main__":
    main()
