"""What ends with this process, while threads can still be used.

`atexit` is too late for it: Python first waits for the threads of all executors, and lets none begin. A thread that
waits for what a call of `atexit` would end keeps the process for ever, and a call that needs an executor fails.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread  # noqa: F401 - registers its wait; what is registered after it is called before it
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress

log = logging.getLogger(__name__)

_calls: list[Callable[[], object]] = []


def at_exit(call: Callable[[], object]) -> None:
    """Call it when the main thread is done, the last one first; not in processes that are forked off. What it raises is
    logged, and ends no other."""
    _calls.append(call)


def not_at_exit(call: Callable[[], object]) -> None:
    """Take it back, if it is there."""
    with suppress(ValueError):
        _calls.remove(call)


def _exit() -> None:
    while _calls:
        call = _calls.pop()
        try:
            call()
        except Exception:
            log.exception("at the end of this process: %r", call)


os.register_at_fork(after_in_child=_calls.clear)
# Python's own executors end by it (3.9 to 3.14); where it is gone, late is better than never.
getattr(threading, "_register_atexit", atexit.register)(_exit)
