"""An agent, and a verifier: a turn if it has a model, then the result that its task names."""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path


def main() -> None:
    if "OPENAI_API_KEY" in os.environ:
        ask = runpy.run_path("agent.py")["ask"]
        ask([{"role": "user", "content": os.environ["SANDGATE_PROMPT"]}])
        left = Path(sys.argv[1]) / os.environ["SANDGATE_PROMPT"].split()[0]
    else:
        task = json.loads(Path(os.environ["SANDGATE_TASK_FILE"]).read_text())
        result = json.loads(Path(os.environ["SANDGATE_RESULT_FILE"]).read_text(), parse_constant=refuse)
        assert result["exit_code"] == 0
        left = Path(sys.argv[1]) / task["uid"]
    Path(os.environ["SANDGATE_TERMINATION_LOG"]).write_bytes(left.read_bytes())


def refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


if __name__ == "__main__":
    main()
