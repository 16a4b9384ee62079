"""`python ask.py BASE_URL API_KEY`: what `instructor` makes of a model's answers in each of its modes, as JSON."""

from __future__ import annotations

import json
import sys
from typing import Literal

import instructor  # type: ignore[import-not-found]
import openai
import pydantic

MODES = (instructor.Mode.TOOLS, instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA, instructor.Mode.MD_JSON)


class Order(pydantic.BaseModel):
    """An order."""

    item: Literal["kiwi", "plum"]
    n: Literal[1, 7]


class Loose(pydantic.BaseModel):
    """Any object: TOOLS (without `strict`) and JSON hold a model to JSON, and only words tell it the schema."""

    item: str = "kiwi"
    n: int = 7


def main(base_url: str, api_key: str) -> None:
    found = {}
    for mode in MODES:
        client = instructor.from_openai(
            openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0), mode=mode
        )
        # In words alone: then the model says an order by itself (tests/support/chain_model.py).
        own = {"repetition_penalty": 2.0} if mode is instructor.Mode.MD_JSON else None
        order = client.chat.completions.create(
            model="shop",
            messages=[{"role": "user", "content": "{K"}],
            response_model=Loose if mode in (instructor.Mode.TOOLS, instructor.Mode.JSON) else Order,
            max_retries=0,
            max_tokens=200,
            temperature=0.0,
            extra_body=own,
        )
        found[mode.name] = order.model_dump()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
