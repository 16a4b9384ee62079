"""No input costs more of a core than an event loop may stall."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

STALL_S = 0.1


class TooSlow(Exception):
    """An input took longer."""


@contextmanager
def quick() -> Iterator[None]:
    """Counts the thread's own seconds: how busy the machine is makes no difference, nor what else the heap holds."""
    gc.disable()
    began = time.thread_time()
    try:
        yield
    finally:
        took = time.thread_time() - began
        gc.enable()
    if took > STALL_S:
        raise TooSlow(f"{took * 1e3:.0f} ms")
