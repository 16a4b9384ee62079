"""The core time that a thread's work took, without looks at the whole heap: these are nobody's work."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any


class _Collecting(threading.local):
    began = 0.0
    total_s = 0.0


_collecting = _Collecting()


def core_s() -> float:
    """Seconds of a core that this thread has used so far. Only differences mean something. Python's collector of cycles
    walks all objects of the process now and then, in the thread that happens to make the next one: longer the more
    sessions there are, so that does not count here. Looks at young objects do: whoever makes many of them causes
    these."""
    return time.thread_time() - _collecting.total_s


def _note(phase: str, info: dict[str, Any]) -> None:
    if info["generation"] < 2:
        return
    if phase == "start":
        _collecting.began = time.thread_time()
    else:
        _collecting.total_s += time.thread_time() - _collecting.began


gc.callbacks.append(_note)
