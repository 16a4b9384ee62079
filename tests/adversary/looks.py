"""An agent that looks for the ground truth wherever it was sent: its environment, its folder, the gateway's door."""

from __future__ import annotations

import json
import os
import sys
import urllib.request
from pathlib import Path


def main() -> None:
    seen = [json.dumps(dict(os.environ))]
    home = Path(os.environ["HOME"]).parent
    seen += [path.read_text() for path in home.rglob("*") if path.is_file()]
    url = os.environ["OPENAI_BASE_URL"].replace("/sessions/", "/v1/sessions/").removesuffix("/v1") + "/task"
    request = urllib.request.Request(url, headers={"authorization": f"Bearer {os.environ['OPENAI_API_KEY']}"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        task = json.load(answer)
    seen.append(json.dumps(task))
    ask(os.environ.get("SANDGATE_PROMPT", "hello"))
    info = {"task": task, "file": file_said(), "found": "GROUND" in "".join(seen)}
    Path(os.environ["SANDGATE_TERMINATION_LOG"]).write_text(json.dumps({"reward": 0, "reward_info": info}))


def file_said() -> object:
    path = os.environ.get("SANDGATE_TASK_FILE")
    return None if path is None else json.loads(Path(path).read_text())


def ask(text: str) -> None:
    """One turn, so that there is a row."""
    body = json.dumps({"model": "shop", "messages": [{"role": "user", "content": text}]}).encode()
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)
    request.add_header("authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
    request.add_header("content-type", "application/json")
    with urllib.request.urlopen(request, timeout=60) as answer:
        print(answer.status, file=sys.stderr)


if __name__ == "__main__":
    main()
