"""Daemons that outlive the Python that starts them, and are ended only when they are surely ours."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.support.waiting import until_now

ENDS_WITHIN_S = 10.0
"""SIGKILL to gone. A process in an uninterruptible write to a busy disk takes seconds."""


@dataclass(frozen=True)
class Proc:
    """A process, known by its number and the moment it began: a number that was used again is another process."""

    pid: int
    began: str

    @staticmethod
    def of(pid: int) -> Proc | None:
        """None: no such process, or it ended and only waits to be reaped."""
        try:
            # The name in parentheses may hold anything; fields are counted from behind it.
            fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        if fields[0] in "ZX":
            return None
        return Proc(pid, f"{boot()}/{fields[19]}")

    def alive(self) -> bool:
        """Whether this process, and no other of its number, runs."""
        return Proc.of(self.pid) == self

    def signal(self, number: signal.Signals) -> None:
        """To this process if it still runs; never to another."""
        if self.alive():
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


_unreaped: set[int] = set()
"""Children of this Python, some of which only exist until their end is asked for."""


def reap() -> None:
    """Let those of our children that ended be gone."""
    for pid in list(_unreaped):
        with suppress(ChildProcessError):
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                continue
        _unreaped.discard(pid)


def boot() -> str:
    """Which life of the machine this is; pids and start times begin anew in each."""
    return Path("/proc/sys/kernel/random/boot_id").read_text("utf-8").strip()


def inherited() -> list[int]:
    """Files that our own parent left open for us and all below: `flock FILE pytest` leaves the lock, and a daemon that
    has it holds it when the tests are over."""
    found = []
    for number in map(int, os.listdir("/proc/self/fd")):
        with suppress(OSError):  # that of the listing itself is closed by now
            if number > 2 and os.get_inheritable(number):
                found.append(number)
    return found


def spawn(
    argv: Sequence[str], log: Path, *, env: Mapping[str, str] | None = None, stdin: int | None = None
) -> Proc:
    """Start in a session of its own, output to the end of `log`, no open file of ours inherited but `stdin`.

    Returns at once; `argv[0]` must exec (nsenter does) for the pid to be the daemon's.
    """
    program = shutil.which(argv[0])
    assert program, f"{argv[0]} is not installed"
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    pid = os.posix_spawn(
        program,
        list(argv),
        os.environ if env is None else env,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
            if stdin is None
            else (os.POSIX_SPAWN_DUP2, stdin, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), append, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
            *((os.POSIX_SPAWN_CLOSE, number) for number in inherited()),
        ],
        setsid=True,
    )
    _unreaped.add(pid)
    return Proc.of(pid) or Proc(pid, "ended at once")


def kill(processes: Iterable[Proc]) -> None:
    """SIGKILL, and wait until they are gone. State of a test is thrown away: nobody needs a graceful end."""
    doomed = list(processes)
    for process in doomed:
        process.signal(signal.SIGKILL)
    until_now(lambda: not any(p.alive() for p in doomed), what="killed processes end", within_s=ENDS_WITHIN_S)
    reap()


class Ledger:
    """The processes of one cluster by name, as files: also after the Python that started them died."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, name: str, process: Proc) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / name).write_text(json.dumps(asdict(process)))

    def get(self, name: str) -> Proc | None:
        """None: never started."""
        try:
            return Proc(**json.loads((self.folder / name).read_text("utf-8")))
        except FileNotFoundError:
            return None

    def all(self) -> list[Proc]:
        names = sorted(path.name for path in self.folder.glob("*"))
        return [process for name in names if (process := self.get(name)) is not None]

    def kill(self, *names: str) -> None:
        """The named, or everything."""
        kill(p for name in names if (p := self.get(name)) is not None) if names else kill(self.all())
