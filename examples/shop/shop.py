"""The simulated shop, a ledger of what was traded and paid: the environment of all agents in the examples."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path
from typing import Any

ITEMS = ("apple", "pear", "plum", "fig", "kiwi", "lime", "date", "nut", "corn", "rice", "milk", "tea")


class Shop:
    """Methods answer with the text that the model is shown; a refusal starts with `error` or `no`."""

    def __init__(self, ledger: dict[str, Any] | None = None) -> None:
        self.ledger: dict[str, Any] = ledger or {"trades": [], "paid": [], "answer": None}

    def trade(self, verb: str, item: str, n: int) -> str:
        if item not in ITEMS or type(n) is not int or not 1 <= n <= 9:
            return "error: the shop trades 1 to 9 of " + ", ".join(ITEMS)
        receipt = random.randint(10, 99)
        self.ledger["trades"].append({"verb": verb, "item": item, "n": n, "receipt": receipt})
        return f"receipt {receipt}"

    def pay(self, receipt: int) -> str:
        self.ledger["paid"].append(receipt)
        known = any(t["receipt"] == receipt for t in self.ledger["trades"])
        return f"paid {receipt}" if known else f"no receipt {receipt}"

    def answer(self, text: str | None) -> None:
        self.ledger["answer"] = text


def result_path() -> Path | None:
    """Where a container leaves its result: the termination message, or the file that stands for it locally."""
    if told := os.environ.get("SANDGATE_TERMINATION_LOG"):
        return Path(told)
    usual = Path("/dev/termination-log")
    return usual if usual.exists() else None


def leave_result(shop: Shop) -> None:
    """The agent reports facts, not a reward: the verifier judges them."""
    result = json.dumps({"reward_info": shop.ledger})
    print(result)
    if path := result_path():
        path.write_text(result)
