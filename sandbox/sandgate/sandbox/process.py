"""A sandbox as a local process: the same environment, limits and results as in a pod, without its isolation.

**No isolation**: the program runs with this user's rights, sees this machine's files and network, and can read the
memory of the user's other processes. Use it for agents you trust.

No process outlives its sandbox: a keeper (keeper.py) is the parent of each program, and the program's result is read
only when all processes that it started have ended. If a program kills its keeper, its exit says so (`escaped`), and
nothing that it left is read.

Memory: the resident memory of all processes of a sandbox is read every MEMORY_POLL_S. Over the limit all of them are
killed, and the exit says OOMKilled. Why not rlimits: they count reserved address space, of which JavaScript and CUDA
programs reserve hundreds of GB; they bound each process alone; and they end in an exception in the agent, not in a fact
of its sandbox. Why not cgroups: an ordinary user may not make them everywhere.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import select
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from sandgate.contract import descriptors
from sandgate.contract.session import OUTCOME_BYTES_MAX
from sandgate.sandbox import procfs
from sandgate.sandbox.logs import Log
from sandgate.sandbox.own import opening

log = logging.getLogger(__name__)

MEMORY_POLL_S: Final = 0.1
GRACE_S: Final = 5.0
"""Seconds between SIGTERM and SIGKILL."""
KEEPER_S: Final = 20.0
"""Seconds after a kill until a keeper that has not reported the end is killed itself: it was stopped."""
GUARD_S: Final = 10.0
"""Seconds that a guard may take to end. It needs milliseconds, unless somebody else holds its line."""
READ_TRIES: Final = 5
READ_PAUSE_S: Final = 0.2
"""What a program left is read so often, with such pauses, while it is the machine that fails."""
DRAIN_S: Final = 1.0
"""Seconds that output is still read after the process ended: a process that left the group may hold the pipe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """The program to run. It inherits nothing but what is given here."""

    argv: Sequence[str]
    env: Mapping[str, str] = field(repr=False)
    cwd: Path
    log: Path
    """File for stdout and stderr."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Texts that are never written to the log."""
    mark: str = ""
    """`NAME=value` of `env` that identifies the program's processes, also those that leave the process group."""
    memory_bytes: int | None = None
    termination: Path | None = None
    """File in which the program may leave a result."""
    log_bytes: int = 8 << 20
    """Size limit of the log; the rest is dropped, and the log says so."""
    pass_fds: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessExit:
    """How a program ended."""

    code: int | None
    """Exit code; None if a signal killed the program."""
    signal: int | None
    oom: bool
    """The sandbox had more than `memory_bytes`."""
    message: bytes
    """Content of the termination file; 4096 bytes at most, as in Kubernetes."""
    at: float
    """When it ended, in unix seconds."""
    tail: str
    """End of the output, for people; without secrets."""
    errors: str = ""
    """End of stderr."""
    escaped: bool = False
    """A process of the sandbox may still run: it would not end, or the keeper was killed. No result was read."""
    machine_oom: bool = False
    """Killed while the kernel was killing for memory: the machine had none left."""
    unread: str = ""
    """Why the machine could not read the termination file, if it could not: `message` says nothing then."""


class StartFailed(Exception):
    """The program could not be started."""


class ProgramMissing(StartFailed):
    """The program is not found or not executable, or its working directory is missing. It is not this machine's fault:
    another try would fail, too."""


MACHINES_FAULT = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.ENOSPC, errno.EIO})
"""Errors of a start that are the machine's fault, not the program's."""
CANNOT_READ = frozenset({errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors of reading what a program left that are the machine's fault, too. A program cannot choose them, and so another
try instead of its reward: EMFILE counts the files of this process; ENFILE and ENOMEM are of the whole machine, and what
the program held of that is free, as all its processes have ended; EIO is the disk's word on a plain file. Any other
error is no result, as a program can bring it about (ENOENT, ELOOP, ENXIO, ENOTDIR, EACCES, EPERM, ENAMETOOLONG; EAGAIN
by a lease, ENOKEY by a key that it threw away, ENOTCONN by a file system of its own that ended with it)."""


@contextmanager
def _line() -> Iterator[tuple[socket.socket, socket.socket]]:
    """To a process that is started inside: our end, whose end it hears when this process dies, and its own, for stdin.
    A socket, as sandboxes run with our rights: they could open a pipe of ours by /proc/PID/fd, hold it, and write."""
    with opening() as own:
        ours, its = socket.socketpair()
        own(ours)
        try:
            yield ours, its
        except BaseException:
            ours.close()
            raise
        finally:
            its.close()


class Guard:
    """The guard process (guard.py): it kills all registered process groups when our line to it ends."""

    def __init__(self) -> None:
        # Without site-packages it is up in 20 ms and holds 8 MB.
        run = "import sys; sys.path.insert(0, sys.argv[1]); from sandgate.sandbox.guard import main; main()"
        with _line() as (self._line, its):
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", run, str(Path(__file__).resolve().parents[2])],
                stdin=its.fileno(),
                stdout=subprocess.PIPE,
                start_new_session=True,
                cwd="/",
                env={"LANG": "C.UTF-8"},
            )
        assert self._process.stdout is not None
        self.pid = int(self._process.stdout.readline())
        self._process.wait()  # what we started; the guard is its child

    def add(self, group: int, mark: str) -> None:
        """Registers a process group, which is killed when we die."""
        self._tell(f"+{group} {mark}\n")

    def remove(self, group: int) -> None:
        """Unregisters a process group that ended."""
        self._tell(f"-{group}\n")

    def _tell(self, line: str) -> None:
        if self._line.fileno() < 0:
            return
        # Somebody may have killed the guard; nothing else depends on it.
        with suppress(BrokenPipeError, ConnectionResetError):
            self._line.sendall(line.encode())

    def close(self) -> None:
        """Ends the guard, which kills the process groups that are still registered."""
        assert self._process.stdout is not None
        self._line.close()
        if not self._process.stdout.closed:
            end = select.poll()
            end.register(self._process.stdout, select.POLLIN)
            if not end.poll(GUARD_S * 1000):
                log.warning("guard %d has not ended: another process holds its line", self.pid)
            self._process.stdout.close()


class _Keeper:
    """The keeper process of one program (keeper.py): it starts the program and reports its end."""

    def __init__(self, argv: Sequence[str], spec: ProcessSpec, stdout: int, stderr: int) -> None:
        """Starts the keeper. Raises OSError, ValueError."""
        run = (
            "import sys; sys.path.insert(0, sys.argv[1]);"
            " from sandgate.sandbox.keeper import main; main(int(sys.argv[2]), int(sys.argv[3]))"
        )
        plan = os.memfd_create("plan")
        self._told, tell = socket.socketpair()
        try:
            wanted = {
                "argv": list(argv),
                "env": dict(spec.env),
                "cwd": str(spec.cwd),
                "files": descriptors.given(),
            }
            os.write(plan, json.dumps(wanted).encode())
            os.lseek(plan, 0, os.SEEK_SET)
            home = str(Path(__file__).resolve().parents[2])
            with _line() as (self._line, its):
                self.popen = subprocess.Popen(
                    [sys.executable, "-I", "-S", "-c", run, home, str(plan), str(tell.fileno())],
                    env={"LANG": "C.UTF-8"},
                    cwd="/",
                    stdin=its.fileno(),
                    stdout=stdout,
                    stderr=stderr,
                    start_new_session=True,
                    pass_fds=(plan, tell.fileno(), *spec.pass_fds),
                )
        except BaseException:
            self._told.close()
            raise
        finally:
            os.close(plan)
            tell.close()
        self._told.setblocking(False)
        self._rest = b""

    async def says(self) -> dict[str, Any] | None:
        """The keeper's next report; None if it ended without one."""
        while b"\n" not in self._rest:
            await _readable(self._told.fileno())
            chunk = self._told.recv(4096)
            if not chunk:
                return None
            self._rest += chunk
        line, _, self._rest = self._rest.partition(b"\n")
        word: dict[str, Any] = json.loads(line)
        return word

    async def gone(self) -> bool:
        """Waits until the keeper has ended. Returns whether it ended by itself, and none of its descendants lived."""
        code = await _exit_code(self.popen)
        self.close()
        self._told.close()
        return code == 0

    def close(self) -> None:
        """Makes the keeper kill all its descendants."""
        self._line.close()


class SandboxProcess:
    """A running program: own session and process group, own environment, bounded log, known end."""

    def __init__(self, spec: ProcessSpec, pid: int, keeper: _Keeper, log: Log, guard: Guard | None) -> None:
        self.spec, self.pid = spec, pid
        self.started_at = time.time()
        self._keeper, self._log, self._guard = keeper, log, guard
        self._oom = False
        self._oom_before = procfs.oom_kills()
        self._ended: asyncio.Future[ProcessExit] = asyncio.get_running_loop().create_future()
        self._run = asyncio.get_running_loop().create_task(self._follow())

    @classmethod
    async def start(cls, spec: ProcessSpec, guard: Guard | None = None) -> SandboxProcess:
        """Starts a program; when this returns, its exec has succeeded. Raises StartFailed, which says why."""
        argv = [resolve(spec.argv[0], spec.env, spec.cwd), *spec.argv[1:]]
        log = Log(spec.log, spec.secrets, spec.log_bytes)
        (read, write), (read_errors, write_errors) = _pipes(log)
        try:
            keeper = _Keeper(argv, spec, write, write_errors)
        except (OSError, ValueError) as error:
            os.close(read)
            os.close(read_errors)
            log.close()
            raise StartFailed(f"its keeper: {getattr(error, 'strerror', None) or error}") from error
        finally:
            os.close(write)
            os.close(write_errors)
        log.follow(read, read_errors)
        try:
            report = await keeper.says()
        except asyncio.CancelledError:  # nobody will ask for it
            keeper.close()
            await asyncio.shield(_let_go(keeper, log))
            raise
        if report is None or "pid" not in report:
            await _let_go(keeper, log)
            raise _not_started(spec.argv[0], report, log.tail)
        if guard is not None:
            guard.add(report["pid"], spec.mark)
        return cls(spec, report["pid"], keeper, log, guard)

    @property
    def keeper(self) -> int:
        """Pid of the keeper, the ancestor of all processes of the sandbox."""
        return self._keeper.popen.pid

    async def wait(self) -> ProcessExit:
        """Waits for the end. All processes that the program started are gone then, and its log is whole."""
        return await asyncio.shield(self._ended)

    @property
    def exited(self) -> bool:
        return self._ended.done()

    async def stop(self, grace_s: float = GRACE_S) -> ProcessExit:
        """Sends SIGTERM to the group, and SIGKILL after `grace_s`. Repeating it is harmless."""
        if not self._ended.done():
            procfs.kill_group(self.pid, signal.SIGTERM)
            try:
                async with asyncio.timeout(grace_s):
                    return await self.wait()
            except TimeoutError:
                self.kill()
        return await self.wait()

    def kill(self) -> None:
        """Sends SIGKILL to the group; the keeper kills the other descendants."""
        if not self._ended.done():
            procfs.kill_group(self.pid)
            asyncio.get_running_loop().call_later(KEEPER_S, self._no_word)

    def _no_word(self) -> None:
        if not self._ended.done():
            self._keeper.popen.kill()

    def out_of_memory(self) -> None:
        """Kills the sandbox, which `watch_memory` found over its limit."""
        if not self._ended.done():
            self._oom = True
            self.kill()

    async def _follow(self) -> None:
        try:
            self._ended.set_result(await self._end(await self._last_word()))
        except Exception as error:
            self._ended.set_exception(error)
            raise
        finally:
            if not self._ended.done():  # nobody waits for what nobody follows
                self._keeper.close()
                self._ended.cancel()

    async def _last_word(self) -> dict[str, Any] | None:
        """The keeper's report of the end. A loop that ends cancels this, as it does those who wait for the program: it
        is killed, and they are told."""
        try:
            return await self._keeper.says()
        except asyncio.CancelledError:
            self._keeper.close()
            self.kill()
            return await self._keeper.says()

    async def _end(self, report: dict[str, Any] | None) -> ProcessExit:
        at = time.monotonic() if report is None else float(report["at"])
        alone = await self._keeper.gone()
        code = -signal.SIGKILL if report is None else int(report["code"])
        escaped = report is None or not alone
        if escaped:  # processes that can still be found are killed
            procfs.kill_group(self.pid)
            if self.spec.mark:
                await asyncio.to_thread(procfs.kill_marked, [self.spec.mark.encode()])
        await self._log.drain(DRAIN_S)
        if self._guard is not None:
            self._guard.remove(self.pid)
        killed = code == -signal.SIGKILL
        message, unread = b"", ""
        if not escaped:
            try:
                message = await read_result(self.spec.termination)
            except OSError as error:
                unread = error.strerror or str(error)
        return ProcessExit(
            code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            oom=self._oom,
            message=message,
            at=time.time() - (time.monotonic() - at),  # by the clock as it is now
            tail=self._log.tail,
            errors=self._log.errors,
            escaped=escaped,
            machine_oom=killed and -1 < self._oom_before < procfs.oom_kills(),
            unread=unread,
        )


def _pipes(log: Log) -> tuple[tuple[int, int], tuple[int, int]]:
    """Pipes for stdout and stderr, each (read, write). Raises StartFailed; then `log` is closed."""
    made: list[tuple[int, int]] = []
    try:
        made += [os.pipe()]
        return made[0], os.pipe()
    except OSError as error:
        for end in made[0] if made else ():
            os.close(end)
        log.close()
        raise StartFailed(f"no pipe for its output: {error.strerror}") from error


def _not_started(program: str, report: Mapping[str, Any] | None, tail: str) -> StartFailed:
    """The error that the keeper's report means; None: the keeper died without one."""
    if report is None:
        return StartFailed(f"{program}: {tail or 'it was killed'}")
    kind = StartFailed if report["errno"] in MACHINES_FAULT else ProgramMissing
    return kind(f"{program}: {report['failed']}")


async def _let_go(keeper: _Keeper, log: Log) -> None:
    await keeper.gone()
    await log.drain(DRAIN_S)


async def _readable(pipe: int) -> None:
    ready = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(pipe, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(pipe)


async def _exit_code(popen: subprocess.Popen[bytes]) -> int:
    """The exit code of a process, like Popen's: -N for signal N. Waits without a thread (pidfd), or with one where the
    kernel has no pidfd."""
    loop = asyncio.get_running_loop()
    try:
        handle = os.pidfd_open(popen.pid)
    except (AttributeError, OSError):
        return await loop.run_in_executor(None, popen.wait)
    try:
        await _readable(handle)
    finally:
        os.close(handle)
    return popen.wait()


def resolve(program: str, env: Mapping[str, str], cwd: Path) -> str:
    """The path of a program, from its own PATH, not ours; a name with a slash is relative to `cwd`. Raises
    ProgramMissing."""
    if "/" in program:
        places = [str(cwd / program)]
    else:
        places = [str(Path(part or ".") / program) for part in env.get("PATH", os.defpath).split(os.pathsep)]
    for place in places:
        if os.access(place, os.X_OK) and not os.path.isdir(place):
            return os.path.abspath(place)
    why = "is not an executable file" if "/" in program else "is not on PATH"
    raise ProgramMissing(f"{program} {why}")


def read_termination(path: Path | None) -> bytes:
    """The content of a termination file, cut to the 4096 bytes that Kubernetes keeps. Empty if it is not a plain file:
    a program may put a link or a pipe there. Raises OSError where the machine cannot read it (CANNOT_READ)."""
    if path is None:
        return b""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            return os.read(handle, OUTCOME_BYTES_MAX) if stat.S_ISREG(os.fstat(handle).st_mode) else b""
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno in CANNOT_READ:
            raise
        return b""


async def read_result(path: Path | None) -> bytes:
    """The same, tried READ_TRIES times. Raises OSError."""
    for _ in range(READ_TRIES - 1):
        try:
            return read_termination(path)
        except OSError:
            await asyncio.sleep(READ_PAUSE_S)
    return read_termination(path)


async def watch_memory(
    running: Callable[[], Sequence[SandboxProcess]], poll_s: float = MEMORY_POLL_S
) -> None:
    """Kills, for ever, those of `running` that have more memory than their limit. One scan of /proc serves all."""
    while True:
        await asyncio.sleep(poll_s)
        limited = [
            (sandbox, limit)
            for sandbox in running()
            if (limit := sandbox.spec.memory_bytes) and not sandbox.exited
        ]
        if not limited:
            continue
        resident = await asyncio.to_thread(procfs.tree_memory, [sandbox.keeper for sandbox, _ in limited])
        for sandbox, limit in limited:
            # The quick sum counts shared pages more than once: measure exactly before killing.
            if resident[sandbox.keeper] > limit:
                exact = await asyncio.to_thread(procfs.tree_memory_exact, sandbox.keeper)
                if exact > limit:
                    sandbox.out_of_memory()
