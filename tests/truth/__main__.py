"""`python -m tests.truth [--only NAME]`: every architecture's recorded logprobs against a forward pass. All of them:
docs/logprobs.md is written. One that could not be compared stands there with the reason."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import urllib.request
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.truth import TOLERANCE
from tests.support.vllm import another
from tests.truth import page
from tests.truth.architectures import ARCHITECTURES, Architecture
from tests.truth.checkpoints import checkpoint
from tests.truth.held import FLAGS, hold


def main() -> int:
    """See the module. 1: a difference is too large."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=ARCHITECTURES)
    only = parser.parse_args().only
    wrong = 0
    for name, made in ARCHITECTURES.items():
        if only in (None, name):
            found = _found(made)
            print(f"{name}: {found}", flush=True)
            page.write(name, found)
            if not made.differs and found.get("worst", 0.0) >= TOLERANCE:
                print(f"{name}: differs by {TOLERANCE} or more", file=sys.stderr)
                wrong = 1
    return wrong


def _found(made: Architecture) -> dict[str, Any]:
    said: dict[str, Any] = {"day": f"{datetime.now(UTC):%Y-%m-%d}", "vllm": "vLLM"}
    try:
        with tempfile.TemporaryDirectory(prefix="sandgate-truth-") as folder:
            model = checkpoint(made, Path(folder) / "model")
            with another(FLAGS, model=model) as vllm:
                with urllib.request.urlopen(f"{vllm.url}/version", timeout=20) as answer:
                    said["vllm"] = str(json.load(answer)["version"])
                return asdict(asyncio.run(hold(vllm))) | said
    except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001 - the page says which, and why
        return {"why_not": _why(str(error))} | said


def _why(error: str) -> str:
    """Its last line that names an error."""
    lines = [line.strip() for line in error.splitlines() if "Error" in line]
    return (lines[-1][-150:] if lines else error[:150]).replace("|", "/")


if __name__ == "__main__":
    sys.exit(main())
