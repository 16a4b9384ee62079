"""What a trainer started ends with it, also if it is killed."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sandgate.trainer.areal import kept

TRAINER = """
import subprocess, sys
subprocess.Popen([sys.executable, *sys.argv[1:]], stdin=subprocess.PIPE)
print("started", flush=True)
sys.stdin.read()
"""
CHILD = """
import signal, sys, threading
signal.signal(signal.SIGINT, lambda *_: (print("told", flush=True), sys.exit(0)))
print("runs", flush=True)
threading.Event().wait()
"""


@pytest.mark.timeout(60)
def test_a_command_is_stopped_when_the_trainer_is_killed() -> None:
    words = [str(Path(kept.__file__)), sys.executable, "-c", CHILD]
    trainer = subprocess.Popen(
        [sys.executable, "-c", TRAINER, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with trainer:
        assert trainer.stdout is not None
        assert {trainer.stdout.readline().strip() for _ in range(2)} == {"started", "runs"}
        trainer.send_signal(signal.SIGKILL)
        assert trainer.stdout.readline().strip() == "told"
        assert trainer.stdout.read() == "", "and is gone"
