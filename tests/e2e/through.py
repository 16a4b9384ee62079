"""`python through.py ORIGIN PROGRAM...`: an agent as it is, with its model calls led through the recorder at ORIGIN."""

from __future__ import annotations

import os
import sys
from urllib.parse import urlsplit


def main(origin: str, *program: str) -> None:
    """Becomes the program."""
    gateway = urlsplit(os.environ["OPENAI_BASE_URL"])
    os.environ["OPENAI_BASE_URL"] = f"{origin}/to/{gateway.port}{gateway.path}"
    os.execvp(program[0], program)


if __name__ == "__main__":
    main(*sys.argv[1:])
