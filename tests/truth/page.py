"""docs/logprobs.md: what the last whole run found."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tests.truth.architectures import ARCHITECTURES
from tests.truth.held import Held

PAGE = Path(__file__).resolve().parents[2] / "docs" / "logprobs.md"
TEXT = """\
<!-- Written by `make truth` ({day}, vLLM {vllm}, CPU, float32). Do not edit. -->
# Recorded logprobs, held against a forward pass

Tiny checkpoints of random weights, each with the real template of its family. A real vLLM serves it; a session of three
turns at temperatures 1.0, 0.7 and 1.3 goes through a gateway, with a tool where the template takes one; each logprob of
its rows is computed again by transformers from the row's own ids. Natural logs, float32 on both sides.

transformers computes with `attn_implementation="eager"`: its default leaves out Gemma 2's soft cap, and differs by 0.02.
A trainer that computes logprobs of its own wants the same.

* **largest difference**: of any token. All below 1e-4 in this run.
* **untempered**: the same against a forward pass that leaves out the temperatures: what a wrong record looks like.

| architecture | transformers | template | tools | tokens | rows | largest difference | untempered |
| --- | --- | --- | --- | --- | --- | --- | --- |
{rows}
"""


def write(found: Mapping[str, Held | str], day: str, vllm: str) -> None:
    """`found`: for each architecture what was held, or why it was not."""
    lines = []
    for name, made in ARCHITECTURES.items():
        one = found[name]
        head = f"| {name} | {made.config.removesuffix('Config')} | {made.template} | "
        if isinstance(one, str):
            lines.append(f"{head}- | - | - | {one} | - |")
        else:
            tools = "yes" if one.tools else "no"
            lines.append(
                f"{head}{tools} | {one.tokens} | {one.rows} | {one.worst:.1e} | {one.untempered:.1e} |"
            )
    PAGE.write_text(TEXT.format(day=day, vllm=vllm, rows="\n".join(lines)), "utf-8")
