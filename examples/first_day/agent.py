"""An agent as yours may be: a loop on the `openai` SDK with two tools, and an exit code that says how it went.

Nothing here knows Sandgate but two variables: the task's file and the model's name. The SDK itself finds
OPENAI_BASE_URL and OPENAI_API_KEY. Exit code 0: the errand was done as asked. 1: it was not.

Samples 0 and 1 of every task do their best. The others have an accident, which one is said by the task's name.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from openai import OpenAI

SYSTEM = "You are a shop assistant. Use the tools to do what the user asks, then report the receipt."
TURNS = 4
SOUND = 2
"""So many samples of a task have no accident."""


def tool(name: str, description: str) -> dict[str, Any]:
    fields = {
        "item": {"type": "string", "description": "Which item."},
        "n": {"type": "integer", "description": "How many items, 1 to 9."},
    }
    schema = {"type": "object", "properties": fields, "required": list(fields)}
    return {"type": "function", "function": {"name": name, "description": description, "parameters": schema}}


TOOLS = [tool("buy", "Buy n of an item."), tool("sell", "Sell n of an item.")]


def accident(kind: str) -> None:
    """What happens to programs. `ordinary` and `impossible` tasks have none."""
    match kind:
        case "raises":  # nobody catches it: Python prints a traceback and exits with 1
            raise RuntimeError("the till is open")
        case "crashes":  # somebody catches it, and says that it was no answer
            try:
                raise OSError("the ledger is full")
            except OSError:
                traceback.print_exc()
                sys.exit(3)
        case "hangs":  # a tool that never comes back
            time.sleep(3600)
        case "killed":  # by the kernel, say; as process 1 of a container it would not even notice
            os.kill(os.getpid(), signal.SIGKILL)


def shop(client: OpenAI, errand: str, kind: str) -> list[str]:
    """What the model traded, as `buy 2 pear`."""
    traded: list[str] = []
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": errand}]
    for _ in range(TURNS):
        answer = client.chat.completions.create(
            model=os.environ["SANDGATE_MODEL"], messages=messages, tools=TOOLS
        )
        message = answer.choices[0].message
        messages.append(message)
        accident(kind)
        if not message.tool_calls:
            break
        for call in message.tool_calls:
            said = trade(traded, call.function.name, call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": said})
    return traded


def trade(traded: list[str], name: str, arguments: str) -> str:
    """The tools. What the model calls wrongly it is told; that is no accident of ours."""
    try:
        given = json.loads(arguments)
        item, n = str(given["item"]), int(given["n"])
    except (ValueError, KeyError, TypeError) as error:
        return f"error: {error}"
    if name not in ("buy", "sell") or not 1 <= n <= 9:
        return "error: the shop buys and sells 1 to 9"
    traded.append(f"{name} {n} {item}")
    return f"receipt {10 + len(traded)}"


def main() -> None:
    task = json.loads(Path(os.environ["SANDGATE_TASK_FILE"]).read_text())
    kind = task["uid"] if task["sample_index"] >= SOUND else "ordinary"
    traded = shop(OpenAI(), task["prompt"], kind)
    print(f"asked for {task['prompt']}, traded {traded}")
    if traded != [task["prompt"]]:
        sys.exit(f"wrong: {', '.join(traded) or 'nothing'}")  # to stderr, and exit code 1


if __name__ == "__main__":
    main()
