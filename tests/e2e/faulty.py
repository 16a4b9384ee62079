"""The shop's agent, of which sample 1 fails in the way its task is told to: `python faulty.py TASK=DEED...`."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import openai

import agent  # type: ignore[import-not-found, unused-ignore]  # the shop's (PYTHONPATH)

MEMORY_BYTES = 600 << 20
"""Twice what the job allows."""


def deed(told: dict[str, str]) -> str:
    """Sessions are called JOB-TASK-DIGEST-SAMPLE-ATTEMPT."""
    name, sample, _ = os.environ["SANDGATE_SESSION_ID"].rsplit("-", 2)
    task = name.removeprefix("shop-").rpartition("-")[0]
    return told.get(task, "") if sample == "1" else ""


def main(*told: str) -> None:
    wanted = deed(dict(one.split("=") for one in told))
    prompt = os.environ["SANDGATE_PROMPT"]
    shop: Any = agent.run(openai.OpenAI(), prompt + " FAULT" * (wanted == "engine"), stream=False)
    if wanted == "exit":
        raise SystemExit(1)
    if wanted == "memory":
        held = bytearray(MEMORY_BYTES)
        print(len(held))  # and is held until it is killed for it
    if wanted in ("memory", "hang"):
        signal.pause()
    agent.leave_result(shop)


if __name__ == "__main__":
    main(*sys.argv[1:])
