"""What models say here: texts, reasoning and tool calls in the shop model's tokens, often not as its tokenizer would
cut them, and sometimes nonsense."""

from __future__ import annotations

import functools
import json
import re
from random import Random
from typing import Any

from tests.support.gateway import codec, ids

NOUNS = "kiwi lime receipt errand shop naïve 🙂 你好 total seven".split()
ASK = re.compile(r"#q:([A-Za-z0-9.-]+):(\d+)#")
"""Names a question in its text: (session, number)."""


@functools.lru_cache(maxsize=4096)
def _ids(text: str) -> tuple[int, ...]:
    return tuple(ids(text))


class Words:
    """Draws answers; every one has a number of its own, so that two can never be mistaken for each other."""

    def __init__(self) -> None:
        self._count = 0

    def reply(self, rng: Random) -> list[int]:
        """Ids of one answer, the end of turn included."""
        self._count += 1
        kind = rng.choices(("text", "call", "calls", "think", "junk", "empty"), (8, 5, 2, 2, 1, 0.3))[0]
        end = codec().stop_ids[0]
        if kind == "junk":
            junk = [rng.randrange(codec().vocab_size) for _ in range(rng.randint(1, 12))]
            return [*(one for one in junk if one not in codec().stop_ids), end]
        if kind == "empty":
            return [end]
        said = " ".join(rng.choices(NOUNS, k=rng.randint(0, 6)))
        text = f"{said} no{self._count}"
        if kind == "think":
            text = f"<think>\nhm {text}\n</think>\n\n{text}"
        elif kind in ("call", "calls"):
            calls = [self._call(rng) for _ in range(1 if kind == "call" else 2)]
            text = "\n".join([text, *calls] if rng.random() < 0.5 else calls)
        return [*self._cut(text, rng), end]

    def _call(self, rng: Random) -> str:
        arguments: dict[str, Any] = {"item": rng.choice(NOUNS), "n": self._count}
        said = json.dumps({"name": "buy", "arguments": arguments}, ensure_ascii=rng.random() < 0.5)
        return f"<tool_call>\n{said}\n</tool_call>"

    def _cut(self, text: str, rng: Random) -> list[int]:
        """Encoded whole, or in two parts: a cut that the tokenizer itself would not make, as models do."""
        at = rng.randrange(len(text)) if rng.random() < 0.3 else 0
        return [*_ids(text[:at]), *_ids(text[at:])] if at else list(_ids(text))
