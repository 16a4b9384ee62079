"""Reads Linux's /proc: which processes belong to a sandbox, how much memory they hold. Empty answers elsewhere."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
PAGE = os.sysconf("SC_PAGE_SIZE")
ENVIRON_BYTES_MAX = 1 << 20
"""Bytes of a process's environment that are read."""


def pids() -> Iterator[int]:
    """All processes now."""
    with suppress(OSError):
        for name in os.listdir(PROC):
            if name.isdigit():
                yield int(name)


def parents() -> dict[int, tuple[int, int]]:
    """Process -> (its parent, its resident bytes)."""
    processes: dict[int, tuple[int, int]] = {}
    for pid in pids():
        with suppress(OSError, ValueError, IndexError):
            raw = (PROC / str(pid) / "stat").read_bytes()
            # The command name, in brackets, may hold anything; after it the fields are numbers (proc(5)).
            fields = raw[raw.rindex(b")") + 2 :].split()
            processes[pid] = int(fields[1]), int(fields[21]) * PAGE
    return processes


def below(root: int) -> list[int]:
    """All descendants of a process now, itself not among them."""
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in parents().items():
        children.setdefault(parent, []).append(pid)
    descendants, waiting = [], [root]
    while waiting:
        born = children.pop(waiting.pop(), [])
        descendants += born
        waiting += born
    return descendants


def tree_memory(roots: Collection[int]) -> dict[int, int]:
    """Each of `roots` -> resident bytes of its descendants. Shared pages count once for each: an upper bound."""
    processes, totals = parents(), dict.fromkeys(roots, 0)
    for pid, (parent, size) in processes.items():
        for _ in range(len(processes)):
            if parent in totals:
                totals[parent] += size
                break
            if parent not in processes or parent == pid:
                break
            parent = processes[parent][0]
    return totals


def tree_memory_exact(root: int) -> int:
    """Resident bytes of its descendants, shared pages divided among those that share them (PSS)."""
    total = 0
    for pid in below(root):
        with suppress(OSError, ValueError, IndexError):
            for line in (PROC / str(pid) / "smaps_rollup").read_bytes().splitlines():
                if line.startswith(b"Pss:"):
                    total += int(line.split()[1]) * 1024
    return total


def marked(marks: Iterable[bytes]) -> list[int]:
    """Processes (not this one) whose environment holds one of `marks` (`NAME=value`): also those that left their
    group, as daemons do."""
    wanted, matches = set(marks), []
    for pid in pids():
        if pid == os.getpid():
            continue
        with suppress(OSError):
            with open(PROC / str(pid) / "environ", "rb") as file:
                environ = file.read(ENVIRON_BYTES_MAX)
            if not wanted.isdisjoint(environ.split(b"\0")):
                matches.append(pid)
    return matches


def kill_group(group: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Sends a signal to every process of the group, which may have none. Never to our own group."""
    if group > 1 and group != os.getpgrp():
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(group, number)


def kill_marked(marks: Iterable[bytes]) -> int:
    """Sends SIGKILL to the processes that `marked` finds. Returns how many."""
    targets = marked(marks)
    for pid in targets:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return len(targets)


def oom_kills() -> int:
    """Processes that the kernel killed for memory since it started; -1 where it does not say."""
    with suppress(OSError, ValueError):
        for line in (PROC / "vmstat").read_bytes().splitlines():
            if line.startswith(b"oom_kill "):
                return int(line.split()[1])
    return -1
