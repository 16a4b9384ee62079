"""How often does the model succeed? `python measure.py URL [EPISODES] [--stream]`.

Runs the agent's own loop, 32 at once, and prints one JSON line. URL is an OpenAI-compatible base
(`http://127.0.0.1:8000/v1`), such as that of a bare vLLM with the hermes tool parser.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from openai import OpenAI

import agent
from verifier import judge


def main() -> None:
    url, stream = sys.argv[1], "--stream" in sys.argv
    wanted = int(sys.argv[2]) if len(sys.argv) > 2 and sys.argv[2].isdigit() else 256
    lines = (Path(__file__).parent / "tasks.jsonl").read_text().splitlines()
    tasks: list[dict[str, Any]] = list(itertools.islice(itertools.cycle(map(json.loads, lines)), wanted))
    client = OpenAI(base_url=url, api_key="none")
    began = time.monotonic()
    with ThreadPoolExecutor(32) as pool:
        shops = list(pool.map(lambda task: agent.run(client, task["prompt"], stream), tasks))
    seconds = time.monotonic() - began
    verdicts = [judge(task["data"], shop.ledger) for task, shop in zip(tasks, shops, strict=True)]

    def share(hits: list[bool]) -> float:
        return round(sum(hits) / len(hits), 3)

    report = {
        "episodes": wanted,
        "solved": share([v["reward"] == 1 for v in verdicts]),
        "solved_when_paying": share(
            [v["reward"] == 1 for v, t in zip(verdicts, tasks, strict=True) if t["data"]["pay"]]
        ),
        "deed": share([v["reward_info"]["deed"] for v in verdicts]),
        "report": share([v["reward_info"]["report"] for v in verdicts]),
        "traded": share(
            [bool(shop.ledger["trades"]) for shop in shops]
        ),  # the first call parsed and made sense
        "seconds": round(seconds, 1),
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
