"""What a process ends as it ends itself, by whatever: each in a Python of its own."""

from __future__ import annotations

import subprocess
import sys

import pytest

BLOCKED = """
import threading
from concurrent.futures import ThreadPoolExecutor
from sandgate.trainer.client.at_exit import at_exit

over = threading.Event()
ThreadPoolExecutor().submit(over.wait)
"""
"""A thread of an executor waits for what the end of the process brings."""
TABLE = {
    "a thread that waits for it does not keep the process": (
        "at_exit(over.set)\nraise ValueError('the trainer fails')",
        (1, []),
    ),
    "it may use threads": (
        "at_exit(lambda: print(ThreadPoolExecutor().submit(lambda: 'done').result()) or over.set())",
        (0, ["done"]),
    ),
    "the last is called first, and what one raises ends no other": (
        "at_exit(lambda: print('first') or over.set())\nat_exit(lambda: 1 / 0)\nat_exit(lambda: print('last'))",
        (0, ["last", "first"]),
    ),
    "what was taken back is not called": (
        "from sandgate.trainer.client.at_exit import not_at_exit\n"
        "at_exit(over.set)\nat_exit(print)\nnot_at_exit(print)\nnot_at_exit(print)",
        (0, []),
    ),
    "a process that was forked off ends by itself": (
        "import os, sys\nat_exit(lambda: print('here', flush=True) or over.set())\n"
        "child = os.fork()\nif child:\n    print(os.waitpid(child, 0)[1], flush=True)\nelse:\n    sys.exit(0)",
        (0, ["0", "here"]),
    ),
}


@pytest.mark.parametrize(("program", "found"), TABLE.values(), ids=TABLE.keys())
def test_at_its_end(program: str, found: tuple[int, list[str]]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", BLOCKED + program], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.returncode, done.stdout.split()) == found, done.stderr[-2000:]
