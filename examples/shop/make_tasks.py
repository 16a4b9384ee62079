"""Write tasks.jsonl: 64 different errands, the same on every run, one task a line."""

from __future__ import annotations

import itertools
import json
import random
from pathlib import Path

from shop import ITEMS


def main() -> None:
    every = list(itertools.product(("buy", "sell"), ITEMS, range(1, 10), (False, True)))
    with (Path(__file__).parent / "tasks.jsonl").open("w") as out:
        for number, (verb, item, n, pay) in enumerate(random.Random(0).sample(every, 64)):
            prompt = f"{verb} {n} {item}{' and pay' if pay else ''}"
            data = {"verb": verb, "item": item, "n": n, "pay": pay}
            out.write(json.dumps({"uid": f"errand-{number:02d}", "prompt": prompt, "data": data}) + "\n")


if __name__ == "__main__":
    main()
