"""Make the tiny model of the shop example: `make model`, or this file with the engine venv's python.

A Qwen3 of well under 1M parameters, trained from scratch on demonstrations (`lesson.py`) in six minutes
on two idle CPU threads. The first 70 % of the steps show no mistakes, the rest do: so it knows the skill, and
fails about every second time, which is what a reinforcement-learning example needs. The checked-in `model/`
was made by this program with its defaults. Same seed, same machine, same result; another CPU rounds
differently, which changes the weights but not what the model can do.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "learning"))
import clients  # noqa: E402
import lesson  # noqa: E402
import pupil  # noqa: E402
import turns  # noqa: E402

SPLIT = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
VOCABULARY = 1024
KINDS = (("functions", 0.61), ("shell", 0.35), ("chat", 0.04))


def kind(rnd: random.Random) -> str:
    return rnd.choices([k for k, _ in KINDS], [w for _, w in KINDS])[0]


def corpus(seed: int) -> Iterator[str]:
    rnd = random.Random(seed)
    for _ in range(4000):
        k = kind(rnd)
        yield clients.setting(rnd, k) + "".join(
            p for _ in range(3) for p, _ in lesson.episode(rnd, k, lesson.NONE, 0.1)
        )


def check_template(tokenizer: Any) -> None:
    """The lesson's hand-written turns must be the template's, or the model learns a language that nobody
    will speak to it.
    """
    rnd = random.Random(5)
    tools = clients.tools_for(rnd, shell=False)
    arguments = {"item": "kiwi", "n": 7}
    history: list[dict[str, Any]] = [
        {"role": "system", "content": "Use the tools."},
        {"role": "user", "content": "buy 7 kiwi"},
        {
            "role": "assistant",
            "tool_calls": [{"function": {"name": "buy", "arguments": json.dumps(arguments)}}],
        },
        {"role": "tool", "content": "receipt 44"},
    ]
    block = clients.tools_block([json.dumps(t, ensure_ascii=False) for t in tools])
    want = (
        f"<|im_start|>system\nUse the tools.\n\n{block}<|im_end|>\n"
        "<|im_start|>user\nbuy 7 kiwi<|im_end|>\n<|im_start|>assistant\n"
        f"{turns.call('buy', arguments)}{turns.tool_turn('receipt 44')}"
    )
    got = tokenizer.apply_chat_template(history, tools=tools, add_generation_prompt=True, tokenize=False)
    if got != want:
        raise SystemExit(f"the chat template and lesson.py differ:\n--- template\n{got}\n--- lesson\n{want}")


def lessons(rnd: random.Random, mistakes: lesson.Mistakes, settings: int, episodes: int) -> pupil.Lessons:
    returns = 0.5 if rnd.random() < 0.15 else 0.0  # by batch: one long row would make all rows long
    found = []
    for _ in range(settings):
        k = kind(rnd)
        head = clients.setting(rnd, k)
        found.append((head, [lesson.episode(rnd, k, mistakes, returns) for _ in range(episodes)]))
    return found


def main() -> None:
    parser = pupil.arguments(__doc__, HERE / "model", steps=900, episodes=8)
    parser.add_argument("--settings", type=int, default=6, help="system prompts per step")
    parser.add_argument("--clean", type=float, default=0.7, help="share of the steps without mistakes")
    args = parser.parse_args()
    tokenizer = pupil.make_tokenizer(corpus(args.seed), vocabulary=VOCABULARY, split=SPLIT)
    check_template(tokenizer)
    rnd = random.Random(args.seed + 1)

    def course(done: float) -> pupil.Lessons:
        mistakes = lesson.NONE if done < args.clean else lesson.SOME
        return lessons(rnd, mistakes, args.settings, args.episodes)

    pupil.make(args, tokenizer, course)


if __name__ == "__main__":
    main()
