"""Stands over one sandbox: what its program starts stays below, however it hides, and is gone before its end is told.

A process whose parent died goes to the nearest ancestor that asked for such (Linux, PR_SET_CHILD_SUBREAPER). This one
asks. So a daemon with a session and an environment of its own is its child at last, and never init's. A keeper of its
own for each program: orphans of two programs under one roof could not be told apart.

stdin is a pipe from the driver: when it ends, the driver has, and everything below is killed. What to run comes as JSON
(`argv`, `env`, `cwd`) in the file `plan`; lines of JSON go to the pipe `tell`: `{"pid"}` or `{"failed", "errno"}`, then
`{"code", "at", "alive"}`: like Popen's returncode, unix seconds, and how many processes would not end.
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
"""How long what is killed may take to go: one that waits for a disk goes when the disk answers."""
PAUSE_S = 0.002
DEFAULTS = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGCHLD,
    signal.SIGPIPE,
    signal.SIGXFSZ,
)
"""What the program finds as any program does; we ignore some of them, and an ignored signal outlives exec."""


def main(plan: int, tell: int) -> None:
    """Run the plan to its end."""
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
    at = time.time()
    say(tell, {"code": code, "at": at, "alive": end_all()})


def say(tell: int, words: dict[str, Any]) -> None:
    """One line; nobody may listen any more."""
    with suppress(BrokenPipeError):
        os.write(tell, json.dumps(words).encode() + b"\n")


def start(wanted: dict[str, Any]) -> tuple[int, dict[str, Any] | None]:
    """(pid, the word to say of it if it could not be started)."""
    read, write = os.pipe()  # closed by a successful exec
    pid = os.fork()
    if pid == 0:
        become(wanted, write)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        said = file.read()
    if not said:
        return pid, None
    os.waitpid(pid, 0)
    failed: dict[str, Any] = json.loads(said)
    return pid, failed


def become(wanted: dict[str, Any], write: int) -> NoReturn:
    """The program, or a word why not."""
    try:
        signal.set_wakeup_fd(-1)
        for number in DEFAULTS:
            signal.signal(number, signal.SIG_DFL)
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(wanted["cwd"])
        os.execve(wanted["argv"][0], wanted["argv"], wanted["env"])
    except OSError as error:
        say(write, {"failed": error.strerror or str(error), "errno": error.errno or 0})
    except ValueError as error:
        say(write, {"failed": str(error), "errno": 0})
    finally:
        os._exit(127)


def wait(pid: int, news: int) -> int:
    """Its end, like Popen's returncode; those that it left are buried meanwhile. When the driver ends, so does it."""
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
    """Every child that has ended; how `wanted` did, if it is one of them."""
    found = None
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            if pid == wanted:
                found = os.waitstatus_to_exitcode(status)
    return found


def end_all() -> int:
    """Kill everything below until nothing is left; how many would not go."""
    until = time.monotonic() + END_S
    while has_children():
        left = below(os.getpid())
        for number in (
            signal.SIGSTOP,
            signal.SIGKILL,
        ):  # who is stopped makes no more while its siblings are killed
            for pid in left:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
        bury(0)
        if time.monotonic() > until:
            return len(left)
        time.sleep(PAUSE_S)
    return 0


def has_children() -> bool:
    """Also such as have ended and are not buried."""
    try:
        bury(0)
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True
