"""The agent of a chaos job, as it runs in its pod: a few turns with the OpenAI SDK, and a book of what it was told.

`agent.py verify` is the verifier: it passes the book on, so that a trainer has it beside the row it is about.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

TURNS = 3
PATIENT = {"max_retries": 60, "timeout": 15.0}
"""Of an agent whose gateway may be away for minutes; the SDK alone gives up after two retries, and waits ten minutes
for an answer whose sender lost its power."""


def leave(message: dict[str, Any]) -> None:
    """As a container leaves its result."""
    Path("/dev/termination-log").write_text(json.dumps(message))


def play() -> None:
    """Each turn goes on from the answer before."""
    from openai import OpenAI  # not needed to verify

    client = OpenAI(**PATIENT) if sys.argv[1:] == ["patient"] else OpenAI()  # type: ignore[arg-type]
    messages: list[Any] = [{"role": "user", "content": os.environ["SANDGATE_PROMPT"]}]
    book: list[tuple[str, str]] = []
    for number in range(TURNS):
        answer = client.chat.completions.with_raw_response.create(
            model=os.environ["SANDGATE_MODEL"], messages=messages
        )
        told = answer.parse().choices[0].message.content or ""
        book.append((answer.headers["x-sandgate-turn"], told))
        messages += [
            {"role": "assistant", "content": told},
            {"role": "user", "content": f"go on {number}"},
        ]
    leave({"reward_info": {"book": book}})


def verify() -> None:
    """Full marks for an agent that came to its end; one that did not has earned its 0."""
    result = json.loads(Path(os.environ["SANDGATE_RESULT_FILE"]).read_text())
    message = result.get("message")
    book = message["reward_info"]["book"] if isinstance(message, dict) else []
    leave({"reward": float(len(book) == TURNS), "reward_info": {"book": book}})


if __name__ == "__main__":
    verify() if sys.argv[1:] == ["verify"] else play()
