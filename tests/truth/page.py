"""docs/logprobs.md and .json: what the last run of each architecture found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from tests.truth.architectures import ARCHITECTURES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "logprobs.md"
NUMBERS = PAGE.with_suffix(".json")
TEXT = """\
<!-- Written by `make truth`. Do not edit. -->
# Recorded logprobs, held against a forward pass

Tiny checkpoints of random weights, each with the real template of its family. A real vLLM serves it; a session of three
turns at temperatures 1.0, 0.7 and 1.3 goes through a gateway, with a tool where the template takes one; each logprob of
its rows is computed again by transformers from the row's own ids. Natural logs, float32 on both sides.

transformers computes with `attn_implementation="eager"`: its default leaves out Gemma 2's soft cap, and
differs by 0.02. A trainer that computes logprobs of its own wants the same.

* **largest difference**: of any token. `make truth` fails at 1e-4, but for Command R and DeepSeek V3 (MLA): there vLLM
  on a CPU and transformers compute something else for weights like these, and why has not been found. What is recorded
  is what the engine said, as everywhere.
* **untempered**: the same against a forward pass that leaves out the temperatures: what a wrong record looks like.

| architecture | transformers | template | tools | tokens | rows | largest difference | untempered | vLLM (CPU), day |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
{rows}
"""


def write(name: str, found: dict[str, Any]) -> None:
    """What was found of one architecture, in place of what was known of it."""
    known = orjson.loads(NUMBERS.read_bytes()) if NUMBERS.exists() else {}
    known = {one: known[one] for one in ARCHITECTURES if one in known} | {name: found}
    NUMBERS.write_bytes(orjson.dumps(known, option=orjson.OPT_INDENT_2) + b"\n")
    lines = [_row(one, known[one]) for one in ARCHITECTURES if one in known]
    PAGE.write_text(TEXT.format(rows="\n".join(lines)), "utf-8")


def _row(name: str, found: dict[str, Any]) -> str:
    made = ARCHITECTURES[name]
    cells = [name, made.config.removesuffix("Config"), made.template]
    if "why_not" in found:
        cells += ["-", "-", "-", f"not compared: {found['why_not']}", "-"]
    else:
        cells += ["yes" if found["tools"] else "no", str(found["tokens"]), str(found["rows"])]
        cells += [f"{found['worst']:.1e}", f"{found['untempered']:.1e}"]
    return "| " + " | ".join([*cells, f"{found['vllm']}, {found['day']}"]) + " |"
