"""An agent of the tests, on the standard library. Sample 0 of a group is good; the others do what the prompt says."""

from __future__ import annotations

import http.client
import json
import os
import signal
import sys
import threading
import urllib.error
import urllib.request

RETRIES = 100
"""A gateway that restarts takes some seconds."""


def ask(messages: list[dict[str, str]]) -> dict[str, str]:
    """One turn; broken connections are retried as SDKs do."""
    body = json.dumps({"model": os.environ["SANDGATE_MODEL"], "messages": messages}).encode()
    for retry in range(RETRIES):
        request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body)
        request.add_header("authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
        request.add_header("content-type", "application/json")
        request.add_header("x-stainless-retry-count", str(retry))
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                message: dict[str, str] = json.load(answer)["choices"][0]["message"]
                return message
        except urllib.error.HTTPError:
            raise
        except (OSError, ValueError, http.client.HTTPException) as error:  # IncompleteRead is no OSError
            print("again:", error, file=sys.stderr, flush=True)
            threading.Event().wait(0.05)
    raise SystemExit("no answer")


def main() -> None:
    print("key:", os.environ["OPENAI_API_KEY"], flush=True)
    prompt = os.environ["SANDGATE_PROMPT"]
    sample = int(os.environ["SANDGATE_SESSION_ID"].split("-")[-2])
    deed = prompt.split()[0] if sample else "good"
    messages = [{"role": "user", "content": prompt if deed != "fault" else f"{prompt} FAULT"}]
    for _ in range(3 if deed == "limit" else 2):
        messages.append(ask(messages))
        messages.append({"role": "user", "content": "go on"})
    if deed == "crash":
        raise SystemExit(1)
    if deed == "memory":
        held = bytearray(400 << 20)  # by name: until it is killed, not for the length of a line
        print(len(held))
        signal.pause()
    if deed == "hang":
        signal.pause()
    if deed == "signal":
        os.kill(os.getpid(), signal.SIGSEGV)
    if deed == "complete":
        request = urllib.request.Request(os.environ["SANDGATE_COMPLETE_URL"], b"{}", method="POST")
        request.add_header("authorization", "Bearer " + os.environ["OPENAI_API_KEY"])
        urllib.request.urlopen(request, timeout=60).close()
        signal.pause()
    with open(os.environ["SANDGATE_TERMINATION_LOG"], "w") as file:
        json.dump({"reward": 9.0, "reward_info": {"said": messages[1]["content"]}}, file)


if __name__ == "__main__":
    main()
