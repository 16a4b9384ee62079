"""Make the tiny model of examples/coder-rl, with the engine venv's python: 4 minutes of one idle core.

Its tokenizer is a byte-level BPE that splits text as GPT-2's does. One text has many token sequences, as with any real
tokenizer; `encode` gives one of them, a model that samples may say any.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "learning"))
import agent  # noqa: E402
import lessons  # noqa: E402
import pupil  # noqa: E402
import turns  # noqa: E402
from spec import Spec, random_steps  # noqa: E402

SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
"""GPT-2's."""
VOCABULARY = 1024
COURSE = ((0.4, "copied"), (0.62, "translated"), (0.77, "careful"), (1.0, "careless"))
"""Until which part of the course what is taught; the first two are quick."""


def corpus(seed: int, head: str) -> Iterator[str]:
    rnd = random.Random(seed)
    for number in range(4000):
        if number % 10 == 0:
            yield head
        yield "".join(text for text, _ in lessons.episode(rnd, lessons.NONE))


def head_of(tokenizer: Any) -> str:
    """The system turn, as the template writes it; checks that the lessons' hand-written turns are the template's."""
    rnd = random.Random(5)
    spec = Spec.of(rnd, random_steps(rnd, held_out=False)).text()
    said = {"role": "assistant", "tool_calls": [{"function": {"name": "read", "arguments": "{}"}}]}
    history = [
        {"role": "system", "content": agent.SYSTEM},
        {"role": "user", "content": "spec 417"},
        said,
        {"role": "tool", "content": spec},
    ]
    render = tokenizer.apply_chat_template
    head: str = render(history[:1], tools=agent.TOOLS, tokenize=False)
    got = render(history, tools=agent.TOOLS, add_generation_prompt=True, tokenize=False)
    want = head + turns.user_turn("spec 417") + turns.call("read", {}) + turns.tool_turn(spec)
    if got != want:
        raise SystemExit(f"template and lessons differ:\n--- template\n{got}\n--- lessons\n{want}")
    return head


def main() -> None:
    told = pupil.arguments(__doc__, HERE / "model", steps=650, episodes=32).parse_args()
    head = head_of(pupil.make_tokenizer(iter(()), vocabulary=VOCABULARY, split=SPLIT))
    tokenizer = pupil.make_tokenizer(corpus(told.seed, head), vocabulary=VOCABULARY, split=SPLIT)
    rnd = random.Random(told.seed + 1)

    def course(done: float) -> pupil.Lessons:
        part = next(name for until, name in COURSE if done < until)
        match part:
            case "copied" | "translated":
                lesson = getattr(lessons, part)
                return [("<|endoftext|>", [lesson(rnd) for _ in range(2 * told.episodes)])]
        mistakes = lessons.NONE if part == "careful" else lessons.SOME
        return [(head, [lessons.episode(rnd, mistakes) for _ in range(told.episodes)])]

    pupil.make(told, tokenizer, course)


if __name__ == "__main__":
    main()
