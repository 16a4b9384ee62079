"""`python -m tests.truth [--only NAME]`: every architecture's recorded logprobs against a forward pass. All of them:
docs/logprobs.md is written."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

from tests.e2e.truth import TOLERANCE
from tests.support.vllm import another
from tests.truth import page
from tests.truth.architectures import ARCHITECTURES
from tests.truth.checkpoints import checkpoint
from tests.truth.held import FLAGS, Held, hold


def main() -> int:
    """See the module. 1: a difference is too large."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=ARCHITECTURES)
    only = parser.parse_args().only
    found: dict[str, Held | str] = {}
    version = ""
    for name, made in ARCHITECTURES.items():
        if only in (None, name):
            version, found[name] = (version, made.not_served) if made.not_served else _held(name)
            print(f"{name}: {found[name]}", flush=True)
    if only is None:
        page.write(found, f"{datetime.now(UTC):%Y-%m-%d}", version)
    wrong = [name for name, one in found.items() if isinstance(one, Held) and one.worst >= TOLERANCE]
    for name in wrong:
        print(f"{name}: differs by more than {TOLERANCE}", file=sys.stderr)
    return 1 if wrong else 0


def _held(name: str) -> tuple[str, Held]:
    with tempfile.TemporaryDirectory(prefix="sandgate-truth-") as folder:
        model = checkpoint(ARCHITECTURES[name], Path(folder) / "model")
        with another(FLAGS, model=model) as vllm:
            with urllib.request.urlopen(f"{vllm.url}/version", timeout=20) as answer:
                version = str(json.load(answer)["version"])
            return version, asyncio.run(hold(vllm))


if __name__ == "__main__":
    sys.exit(main())
