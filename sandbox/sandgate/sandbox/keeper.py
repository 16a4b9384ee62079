"""Parent process of one local sandbox: keeps every descendant of its program, and kills them before reporting its end.

A process whose parent died goes to the nearest ancestor that asked for orphans (Linux, PR_SET_CHILD_SUBREAPER). This
one asks. So a daemon with a session and an environment of its own becomes its child, and never init's. Each program has
a keeper of its own: the orphans of two programs could not be told apart.

stdin is a line from the driver: when it ends, the driver has ended, and all descendants are killed. The program comes
as JSON (`argv`, `env`, `cwd`, and `files`, its soft limit of descriptors) in the file `plan`. Lines of JSON go to the
socket `tell`: `{"pid"}` or `{"failed", "errno"}`, then `{"code", "at"}`: like Popen's returncode, and seconds of
CLOCK_MONOTONIC, which is one clock for all processes and is never set. Its own exit says the rest: 0 if none of them
lives, which nobody else can say.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import select
import signal
import time
from contextlib import suppress
from typing import Any, NoReturn

from sandgate.sandbox.procfs import below

SET_DUMPABLE, SET_CHILD_SUBREAPER = 4, 36
"""prctl(2)."""
END_S = 10.0
"""Seconds that killed processes may take to end: one that waits for a disk ends when the disk answers."""
PAUSE_S = 0.002
DEFAULTS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGCHLD,
    signal.SIGPIPE,
    signal.SIGXFSZ,
)
"""Signals that the program gets with their default action: we ignore some of them, and an ignored signal outlives
exec."""


def main(plan: int, tell: int) -> None:
    """Runs the plan's program to its end."""
    os.set_inheritable(tell, False)
    with os.fdopen(plan, "rb") as file:
        wanted = json.load(file)
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        libc.prctl(
            SET_DUMPABLE, 0, 0, 0, 0
        )  # /proc/PID/fd is not for those below: they would tell in our name
    news, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    pid, failed = start(wanted)
    if failed is not None:
        say(tell, failed)
        return
    say(tell, {"pid": pid})
    code = wait(pid, news)
    at = time.monotonic()
    alive = end_all()
    say(tell, {"code": code, "at": at})
    if alive:
        raise SystemExit(1)


def say(tell: int, words: dict[str, Any]) -> None:
    """Writes one line; nobody may read it any more."""
    with suppress(BrokenPipeError, ConnectionResetError):
        os.write(tell, json.dumps(words).encode() + b"\n")


def start(wanted: dict[str, Any]) -> tuple[int, dict[str, Any] | None]:
    """Starts the program: (pid, the line to report if it could not be started)."""
    read, write = os.pipe()  # closed by a successful exec
    pid = os.fork()
    if pid == 0:
        become(wanted, write)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        failure = file.read()
    if not failure:
        return pid, None
    os.waitpid(pid, 0)
    failed: dict[str, Any] = json.loads(failure)
    return pid, failed


def become(wanted: dict[str, Any], write: int) -> NoReturn:
    """Becomes the program, or reports why not."""
    try:
        signal.set_wakeup_fd(-1)
        for number in DEFAULTS:
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(wanted["cwd"])
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[
            1
        ]  # it may have been lowered since the driver began
        limits = [one for one in (wanted["files"], hard) if one != resource.RLIM_INFINITY]
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(limits, default=hard), hard))
        os.execve(wanted["argv"][0], wanted["argv"], wanted["env"])
    except OSError as error:
        say(write, {"failed": error.strerror or str(error), "errno": error.errno or 0})
    except ValueError as error:
        say(write, {"failed": str(error), "errno": 0})
    finally:
        os._exit(127)


def wait(pid: int, news: int) -> int:
    """Waits for the program's end: its exit, like Popen's returncode. Reaps its orphans meanwhile, and kills everything
    when the driver ends."""
    driver = 0
    watched = [driver, news]
    while (code := bury(pid)) is None:
        ready, _, _ = select.select(watched, [], [])
        if news in ready:
            os.read(news, 4096)
        if driver in ready and not os.read(driver, 4096):
            watched.remove(driver)
            end_all()
            return -signal.SIGKILL
    return code


def bury(wanted: int) -> int | None:
    """Reaps every child that has ended. Returns the exit of `wanted`, if it is one of them."""
    code = None
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == wanted:
                code = os.waitstatus_to_exitcode(status)
    return code


def end_all() -> int:
    """Kills all descendants until none is left. Returns how many would not end."""
    until = time.monotonic() + END_S
    while has_children():
        left = below(os.getpid())
        for number in (
            signal.SIGSTOP,
            signal.SIGKILL,
        ):  # a stopped process starts no others while its siblings are killed
            for pid in left:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        bury(0)
        if time.monotonic() > until:
            return len(left)
        time.sleep(PAUSE_S)
    return 0


def has_children() -> bool:
    """Whether there are children, also such as have ended and are not reaped."""
    try:
        bury(0)
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
