"""Judges one episode, apart from the agent: half a point for the right deed, half for the right report.

Reads SANDGATE_TASK_FILE (`{"uid", "prompt", "data", "sample_index"}`) and SANDGATE_RESULT_FILE
(`{"exit_code", "message"}`, message being what the agent left as its termination message); leaves
`{"reward", "reward_info"}` where a container leaves its result.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def judge(wanted: dict[str, Any], ledger: dict[str, Any]) -> dict[str, Any]:
    """`wanted` is the task's data: verb, item, n, pay. One trade or payment too many makes the deed wrong."""
    trades, paid = ledger.get("trades") or [], ledger.get("paid") or []
    deed = report = False
    if len(trades) == 1:
        receipt = trades[0]["receipt"]
        same = all(trades[0][key] == wanted[key] for key in ("verb", "item", "n"))
        deed = same and paid == ([receipt] if wanted.get("pay") else [])
        report = (ledger.get("answer") or "").strip() == f"receipt {receipt}"
    return {"reward": 0.5 * deed + 0.5 * report, "reward_info": {"deed": deed, "report": report}}


def main() -> None:
    task = json.loads(Path(os.environ["SANDGATE_TASK_FILE"]).read_text())
    result = json.loads(Path(os.environ["SANDGATE_RESULT_FILE"]).read_text())
    message = result.get("message")
    ledger = (
        message.get("reward_info") if isinstance(message, dict) else None
    )  # an agent that crashed left nothing
    verdict = json.dumps(judge(task["data"], ledger or {}))
    print(verdict)
    Path(os.environ.get("SANDGATE_TERMINATION_LOG", "/dev/termination-log")).write_text(verdict)


if __name__ == "__main__":
    main()
