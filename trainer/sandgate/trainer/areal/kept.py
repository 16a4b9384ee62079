"""Run a command for as long as whoever started this holds the other end of its standard input.

python -m sandgate.trainer.areal.kept COMMAND...

A trainer that is killed cannot end what it started; its end of the pipe closes all the same.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress

STOP_S = 30.0
"""For the command to end, each time it is told."""


def main(words: list[str]) -> int:
    """The command's exit code."""
    child = subprocess.Popen(words, stdin=subprocess.DEVNULL)
    threading.Thread(target=_stop_at_the_end, args=(child,), daemon=True).start()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: child.send_signal(number))
    return child.wait()


def _stop_at_the_end(child: subprocess.Popen[bytes]) -> None:
    while os.read(0, 4096):  # not by sys.stdin: at its end Python aborts where a thread still waits in that
        pass
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGKILL):  # the second aborts what runs
        if child.poll() is not None:
            return
        child.send_signal(number)
        with suppress(subprocess.TimeoutExpired):
            child.wait(STOP_S)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
