"""`python -m tests.truth [--only NAME]`: every architecture's recorded logprobs against a forward pass. All of them:
docs/logprobs.md is written. One that could not be compared stands there with the reason."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import urllib.request
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.e2e.truth import TOLERANCE
from tests.support.vllm import another
from tests.truth import page
from tests.truth.architectures import ARCHITECTURES, Architecture
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
            try:
                version, found[name] = _held(made)
            except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - the page says which, and why
                found[name] = _why(str(error))
            print(f"{name}: {found[name]}", flush=True)
    if only is None:
        page.write(found, f"{datetime.now(UTC):%Y-%m-%d}", version)
    wrong = [name for name, one in found.items() if isinstance(one, Held) and one.worst >= TOLERANCE]
    for name in wrong:
        print(f"{name}: differs by more than {TOLERANCE}", file=sys.stderr)
    return 1 if wrong else 0


def _why(error: str) -> str:
    """Its last line that names an error."""
    lines = [line.strip() for line in error.splitlines() if "Error" in line]
    return f"not compared: {lines[-1][-150:] if lines else error[:150]}".replace("|", "/")


def _held(made: Architecture) -> tuple[str, Held]:
    with tempfile.TemporaryDirectory(prefix="sandgate-truth-") as folder:
        model = checkpoint(made, Path(folder) / "model")
        with another(FLAGS, model=model) as vllm:
            with urllib.request.urlopen(f"{vllm.url}/version", timeout=20) as answer:
                version = str(json.load(answer)["version"])
            return version, asyncio.run(hold(vllm))


if __name__ == "__main__":
    sys.exit(main())
