"""A process that forked a worker off, as a DataLoader does, and is over. In a Python of its own: pytest has threads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

FORKS = """
import os, signal, sys
from pathlib import Path

def fork():
    read, write = os.pipe()
    if worker := os.fork():
        print(worker, flush=True)
        os.read(read, 1)
        return worker
    os.close(1)
    os.write(write, b".")
    signal.alarm(60)
    signal.pause()

def lives(worker):
    return os.waitpid(worker, os.WNOHANG)[0] == 0

def die():
    os.kill(os.getpid(), signal.SIGKILL)

"""


@contextmanager
def over(program: str, *argv: str) -> Iterator[list[str]]:
    """What it printed. It has called `fork()` once, and that worker lives on."""
    words = [sys.executable, "-c", FORKS + program, *argv]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        try:
            said = process.stdout.read().split()
            process.wait()
            yield said
        finally:
            if process.poll() is None:
                process.kill()
            os.kill(worker, signal.SIGKILL)
