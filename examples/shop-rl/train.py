"""GRPO on the agent of examples/shop: `demo.py` of examples/learning starts it, with an engine and a gateway."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from openai import OpenAI

from sandgate.contract.session import SessionHandle

HERE = Path(__file__).resolve().parent
SHOP = HERE.parent / "shop"
sys.path[:0] = [str(HERE.parent / "learning"), str(SHOP)]
import agent  # noqa: E402
import grpo  # noqa: E402
from verifier import judge  # noqa: E402


def shopper(*, session: SessionHandle, raw_prompt: str, sample_index: int, tools_kwargs: Any) -> float:
    """The agent of examples/shop, unchanged, and its verifier."""
    client = OpenAI(base_url=session.base_url, api_key=session.api_key, http_client=grpo.HTTP)
    shop = agent.run(client, raw_prompt, stream=False)
    return float(judge(tools_kwargs, shop.ledger)["reward"])


EXAMPLE = grpo.Example(
    job="shop-rl", model=SHOP / "model", agent=shopper, tasks=grpo.tasks_of(SHOP / "tasks.jsonl")
)

if __name__ == "__main__":
    grpo.train(grpo.arguments(__doc__).parse_args(), EXAMPLE)
