"""A process that kills a driver's sandboxes when the driver dies, also by kill -9; it reads them from stdin.

PR_SET_PDEATHSIG reaches only direct children and needs code between fork and exec, which is not safe in a process
with threads. This small process has a socket whose other end is the driver's alone: whatever ends the driver ends it.
It is no child of the driver's: Ray, for one, kills the children of a worker that it ends.
Lines: `+GROUP MARK` (a process group, and a NAME=value of its environment) and `-GROUP`.
"""

from __future__ import annotations

import os
import signal

from sandgate.sandbox.procfs import kill_group, kill_marked

ROUNDS = 3
"""A process that forks while it is being killed is caught by a later round."""


def follow(lines: list[str], groups: dict[int, bytes]) -> None:
    """Takes lines in: adds process groups that are to be killed, and drops those that ended."""
    for line in lines:
        number, _, mark = line[1:].partition(" ")
        if line[:1] == "+":
            groups[int(number)] = mark.encode()
        elif line[:1] == "-":
            groups.pop(int(number), None)


def main() -> None:
    """Says its process id, reads until its line ends, then kills. The driver waits for the end of stdout."""
    if os.fork():
        os._exit(0)
    os.write(1, f"{os.getpid()}\n".encode())
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    groups: dict[int, bytes] = {}
    rest = b""
    while chunk := os.read(0, 65536):
        *lines, rest = (rest + chunk).split(b"\n")
        follow([line.decode() for line in lines if line], groups)
    for _ in range(ROUNDS):
        for group in groups:
            kill_group(group)
        if not groups or not kill_marked(mark for mark in groups.values() if mark):
            break
