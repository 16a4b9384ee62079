"""A verifier of the tests: 1 for an agent that left a message, else 0; for the task `posts` it posts its word."""

from __future__ import annotations

import json
import os
import urllib.request
from pathlib import Path


def main() -> None:
    print("key:", os.environ["SANDGATE_REWARD_KEY"])
    task = json.loads(Path(os.environ["SANDGATE_TASK_FILE"]).read_text())
    result = json.loads(Path(os.environ["SANDGATE_RESULT_FILE"]).read_text())
    assert "OPENAI_API_KEY" not in os.environ
    verdict = {
        "reward": float(isinstance(result["message"], dict)),
        "reward_info": {"exit_code": result["exit_code"], "uid": task["uid"], "data": task["data"]},
    }
    if task["uid"] == "posts":
        body = json.dumps({"reward": 0.25, "reward_info": {}}).encode()
        request = urllib.request.Request(os.environ["SANDGATE_REWARD_URL"], body, method="POST")
        request.add_header("authorization", "Bearer " + os.environ["SANDGATE_REWARD_KEY"])
        request.add_header("content-type", "application/json")
        urllib.request.urlopen(request, timeout=60).close()
    else:
        Path(os.environ["SANDGATE_TERMINATION_LOG"]).write_text(json.dumps(verdict))


if __name__ == "__main__":
    main()
