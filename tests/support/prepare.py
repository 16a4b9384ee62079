"""`python -m tests.support.prepare [NAME...]`: makes what tests need, all of it by default, and says what became of it.

A test run starts this by itself, in the background. It tells `--status FILE` in lines of JSON, and people on stderr.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.support.needs import NEEDS

LAST_LINES = 15
"""Of what a failed build said."""


class Builder:
    """Makes one thing after the other; what fails does not keep the rest from being made."""

    def __init__(self, status: Path | None) -> None:
        self.status = status
        self.failed = False

    def make(self, name: str) -> None:
        need = NEEDS[name]
        if need.ready():
            self.say(name, "ready")
            return
        if why := need.lacks():
            self.say(name, "lacks", why)
            return
        self.say(name, "making", need.what)
        began = time.monotonic()
        try:
            need.make()
        except (OSError, ValueError, subprocess.SubprocessError, AssertionError, SystemExit) as error:
            self.failed = True
            self.say(name, "failed", f"{name} could not be made: {_words(error)}")
        else:
            self.say(name, "ready", f"after {time.monotonic() - began:.0f} s")

    def say(self, name: str, state: str, words: str = "") -> None:
        print(f"# {name}: {state}{f': {words}' if words else ''}", file=sys.stderr, flush=True)
        if self.status is not None:
            with self.status.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"name": name, "state": state, "words": words}) + "\n")


def _words(error: BaseException) -> str:
    """One line; what a program printed is in the log already."""
    if isinstance(error, subprocess.CalledProcessError):
        return f"{' '.join(map(str, error.cmd))[:200]} failed with exit code {error.returncode}"
    return " ".join(f"{type(error).__name__ if not isinstance(error, SystemExit) else ''} {error}".split())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.support.prepare", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(NEEDS)}")
    parser.add_argument("--status", type=Path, metavar="FILE")
    said = parser.parse_args()
    if unknown := [name for name in said.names if name not in NEEDS]:
        parser.error(f"there is no {unknown[0]}; there are: {', '.join(NEEDS)}")
    os.chdir(Path(__file__).resolve().parents[2])
    builder = Builder(said.status)
    for name in said.names or NEEDS:
        builder.make(name)
    return int(builder.failed)


if __name__ == "__main__":
    sys.exit(main())
