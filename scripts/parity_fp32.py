"""Logprobs as a trainer would compute them: a plain fp32 forward pass, to hold captured ones against.

    <engine venv>/bin/python scripts/parity_fp32.py MODEL_DIR <in.jsonl >out.jsonl

In: a line of `{"prompt_ids": [...], "response_ids": [...], "temperature": 1.0}` each. Out, in the same
order: a line of `{"logprobs": [...]}` each, one natural log per response id, of softmax(logits /
temperature); nothing else goes to stdout. Ids are taken as they are: no tokenizer is loaded. Needs torch
and transformers, so it runs in the engine's environment (`scripts/engine-env.sh`). A temperature of 0 is
refused: greedy sampling has no such distribution.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch  # type: ignore[import-not-found, unused-ignore]  # only in the engine's environment
from transformers import AutoModelForCausalLM  # type: ignore[import-not-found, unused-ignore]


def logprobs(
    model: torch.nn.Module, prompt: list[int], response: list[int], temperature: float
) -> list[float]:
    if temperature <= 0:
        raise SystemExit(f"temperature must be > 0, not {temperature}")
    if not prompt:
        raise SystemExit("prompt_ids is empty: the first response id would have no distribution")
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([prompt + response])).logits[0].float()
    rows = (logits[len(prompt) - 1 : -1] / temperature).log_softmax(-1)
    values: list[float] = rows.gather(1, torch.tensor(response)[:, None])[:, 0].tolist() if response else []
    return values


def main() -> None:
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        raise SystemExit("usage: parity_fp32.py MODEL_DIR <in.jsonl >out.jsonl")
    torch.set_num_threads(1)
    model = AutoModelForCausalLM.from_pretrained(
        # sdpa, the default, leaves out what it has no argument for: Gemma 2's soft cap, by 0.02 of a log.
        sys.argv[1],
        dtype=torch.float32,
        local_files_only=True,
        attn_implementation="eager",
    ).eval()
    for line in sys.stdin:
        if line.strip():
            row = json.loads(line)
            found = logprobs(
                model, row["prompt_ids"], row["response_ids"], float(row.get("temperature", 1.0))
            )
            print(json.dumps({"logprobs": found}), flush=True)


if __name__ == "__main__":
    main()
