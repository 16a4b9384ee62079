"""An agent that wants a reward of 1.0 and has not earned it. The prompt's first word says how it tries."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

BEST = {"reward": 1.0, "exit_code": 0, "signal": None, "detail": "", "traceback": False, "masked": False}
"""What a record says of the best of agents."""


def post(url: str, body: dict[str, Any]) -> int:
    """The status of its answer."""
    request = urllib.request.Request(url, json.dumps(body).encode(), method="POST")
    request.add_header("authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
    request.add_header("content-type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def complete() -> None:
    assert post(os.environ["SANDGATE_COMPLETE_URL"], {"reward_info": BEST}) == 200


def hang() -> None:
    while True:
        signal.pause()


def leave_a_message() -> None:
    Path(os.environ["SANDGATE_TERMINATION_LOG"]).write_text(json.dumps({"reward": 1.0, "reward_info": BEST}))


def reward_itself() -> None:
    """By the doors of trainers and verifiers."""
    base = os.environ["OPENAI_BASE_URL"].split("/sessions/")[0]
    here = f"{base}/v1/sessions/{os.environ['SANDGATE_SESSION_ID']}"
    told = [post(f"{here}/{door}", {"reward": 1.0, "reward_info": BEST}) for door in ("reward", "finalize")]
    assert all(status in (401, 403) for status in told), told


def complain(deed: str) -> None:
    if deed == "show-its-key":
        sys.exit(os.environ["OPENAI_API_KEY"])
    assert deed == "write-rubbish"
    sys.stderr.buffer.write(b"\xff\x00\x1b[31m\xed\xa0\x80" + b"x" * 1_000_000)
    sys.stderr.buffer.write(b"\n\x1b]0;title\x07\xffno\x00 disk " + b"y" * 3_000)
    sys.exit(3)


def main(deed: str) -> None:
    asked = {"model": os.environ["SANDGATE_MODEL"], "messages": [{"role": "user", "content": deed}]}
    assert post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", asked) == 200
    match deed:
        case "complete-and-hang":
            complete()
            hang()
        case "complete-and-exit-1" | "complete-and-exit-3":
            complete()
            sys.exit(int(deed[-1]))
        case "complete-and-die":
            complete()
            os.kill(os.getpid(), signal.SIGKILL)
        case "be-stopped-politely":
            signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
            hang()
        case "leave-a-message":
            leave_a_message()
            sys.exit(1)
        case "reward-itself":
            reward_itself()
            sys.exit(1)
        case "child-exits-0":
            if os.fork() == 0:
                os._exit(0)
            os.wait()
            sys.exit(1)
        case "honest":
            complete()
        case _:
            complain(deed)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(os.environ["SANDGATE_PROMPT"].split()[0])
