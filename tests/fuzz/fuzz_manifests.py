"""Any YAML text is a RolloutJob or a BadManifest that names file and line: never another error, never a hang."""

from __future__ import annotations

import random
import time

import yaml

from sandgate.contract.errors import BadManifest
from sandgate.contract.job import RolloutJob
from sandgate.contract.manifest_decoder import decode, encode
from sandgate.operator.local.manifest import parse_job
from tests.contract.manifests import GOOD

PARSE_S_MAX = 10.0
"""Of one text; more is a denial of service."""
ODD = [
    "null",
    "-1",
    "1e400",
    "'",
    '"',
    "{",
    "}",
    "[",
    "]",
    "&a",
    "*a",
    "!!python/object:os.system",
    "<<: *a",
    "\t",
]
ODD += [
    "2024-13-45",
    "0x10",
    "1_000",
    "~",
    "|",
    ">",
    "---",
    "...",
    "? x",
    "\u2028",
    "\ufeff",
    "%YAML 1.2",
    ".nan",
    "0o7",
]


def run(seed: int, n: int) -> dict[str, int]:
    """`n` spoilt texts from `seed`; how many were good and bad. AssertionError names the seed and the case."""
    rng = random.Random(seed)
    good = bad = 0
    base = yaml.safe_dump(GOOD, sort_keys=False)
    for case in range(n):
        text = spoil(rng, base)
        began, told = time.monotonic(), "job.yaml"
        try:
            job = parse_job(text, "job.yaml")
            assert decode(RolloutJob, encode(job)) == job, f"seed {seed}, case {case}"
            good += 1
        except BadManifest as error:
            bad += 1
            told = str(error)
        except Exception as error:
            raise AssertionError(f"seed {seed}, case {case}: {error!r}\n{text}") from error
        assert "job.yaml" in told, f"seed {seed}, case {case}: {told}"
        assert time.monotonic() - began < PARSE_S_MAX, f"seed {seed}, case {case} took too long"
    return {"good": good, "bad": bad}


def spoil(rng: random.Random, text: str) -> str:
    """A few random edits."""
    for _ in range(rng.randint(1, 4)):
        lines = text.split("\n")
        at = rng.randrange(len(lines))
        match rng.randrange(7):
            case 0:
                lines.pop(at)
            case 1:
                lines.insert(at, rng.choice(lines))
            case 2:
                lines[at] = lines[at] + rng.choice(ODD)
            case 3:
                head, colon, _ = lines[at].partition(":")
                lines[at] = f"{head}{colon} {rng.choice(ODD)}"
            case 4:
                place = rng.randrange(len(lines[at]) + 1)
                lines[at] = lines[at][:place] + rng.choice(ODD) + lines[at][place:]
            case 5:
                lines[at] = " " * rng.randrange(8) + lines[at].strip()
            case _:
                place = rng.randrange(len(lines[at]) + 1)
                lines[at] = lines[at][:place] + chr(rng.randrange(1, 0x300)) + lines[at][place:]
        text = "\n".join(lines)
    return text
