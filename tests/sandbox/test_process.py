"""A sandbox as a local process: real programs that exit, crash, hang, fork, eat memory and hide."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.session import OUTCOME_BYTES_MAX
from sandgate.sandbox import guard as guards
from sandgate.sandbox import procfs
from sandgate.sandbox.process import (
    CANNOT_READ,
    READ_TRIES,
    Guard,
    ProcessExit,
    ProcessSpec,
    ProgramMissing,
    SandboxProcess,
    StartFailed,
    read_termination,
    resolve,
    watch_memory,
)
from tests.support.waiting import until

KEY = "sk-sg-very-secret"
FOREVER = "import time; time.sleep(600)"


@pytest.fixture
def mark() -> str:
    return f"SANDGATE_SESSION_ID=test-{os.getpid()}-{time.monotonic_ns()}"


@pytest.fixture
def guard() -> Iterator[Guard]:
    made = Guard()
    yield made
    made.close()


class Box:
    """Starts programs in a folder, and leaves none behind."""

    def __init__(self, folder: Path, mark: str) -> None:
        self.folder, self.mark = folder, mark
        self.begun: list[SandboxProcess] = []

    def spec(self, *argv: str, **more: Any) -> ProcessSpec:
        name, _, value = self.mark.partition("=")
        env = {"PATH": os.environ["PATH"], name: value, **more.pop("env", {})}
        return ProcessSpec(
            argv=argv,
            env=env,
            cwd=self.folder,
            log=self.folder / "log",
            secrets=(KEY,),
            mark=self.mark,
            **more,
        )

    async def start(self, code: str, guard: Guard | None = None, **more: Any) -> SandboxProcess:
        """Python code."""
        made = await SandboxProcess.start(self.spec(sys.executable, "-S", "-c", code, **more), guard)
        self.begun.append(made)
        return made

    async def run(self, code: str, **more: Any) -> ProcessExit:
        return await (await self.start(code, **more)).wait()

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    async def says(self, text: str) -> None:
        async def said() -> bool:
            return text in self.log

        await until(said, what=f"{text!r} in the log")


@pytest.fixture
async def box(tmp_path: Path, mark: str) -> AsyncIterator[Box]:
    made = Box(tmp_path, mark)
    yield made
    for one in made.begun:
        one.kill()
        await one.wait()


def left(mark: str) -> list[int]:
    return procfs.marked([mark.encode()])


EXITS: dict[str, tuple[str, int | None, int | None]] = {
    "exit 0": ("pass", 0, None),
    "exit 3": ("raise SystemExit(3)", 3, None),
    "an exception": ("raise ValueError('no')", 1, None),
    "killed by itself": ("import os; os.kill(os.getpid(), 9)", None, 9),
    "a fault": ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", None, 11),
}


@pytest.mark.parametrize(("code", "exit_code", "number"), EXITS.values(), ids=EXITS)
async def test_how_it_ended(box: Box, code: str, exit_code: int | None, number: int | None) -> None:
    before = time.time()
    end = await box.run(code)
    assert (end.code, end.signal, end.oom) == (exit_code, number, False)
    assert before <= end.at <= time.time()


async def test_the_last_words_of_a_crash_are_told(box: Box) -> None:
    end = await box.run("raise ValueError('no such kiwi')")
    assert end.tail.splitlines()[-1] == "ValueError: no such kiwi"


async def test_what_it_says_on_stderr_is_kept_apart(box: Box) -> None:
    code = "import sys; print('no disk', file=sys.stderr); print('x' * 9_000); print('bye'); sys.exit(3)"
    end = await box.run(code)
    assert end.errors == "no disk"
    assert end.tail.splitlines()[-1] == "bye"
    assert {"no disk", "bye"} < set(box.log.splitlines())


async def test_a_key_on_stderr_is_hidden_too(box: Box) -> None:
    end = await box.run(f"raise SystemExit({KEY!r})")
    assert (end.code, end.errors) == (1, "[key]")
    assert KEY not in box.log


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("no-such-program",), "is not on PATH"),
        (("./no-such-file",), "is not an executable file"),
        (("/etc/passwd",), "is not an executable file"),
        (("/",), "is not an executable file"),
    ],
)
async def test_what_cannot_be_started_says_why(box: Box, argv: tuple[str, ...], says: str) -> None:
    with pytest.raises(ProgramMissing, match=says):
        await SandboxProcess.start(box.spec(*argv))


async def test_a_working_directory_that_is_not_there_is_a_failed_start(box: Box) -> None:
    spec = box.spec(sys.executable, "-c", "pass")
    gone = ProcessSpec(argv=spec.argv, env=spec.env, cwd=box.folder / "gone", log=spec.log)
    with pytest.raises(ProgramMissing, match="No such file"):
        await SandboxProcess.start(gone)


async def test_a_script_that_is_no_program_is_a_failed_start(box: Box) -> None:
    script = box.folder / "script"
    script.write_text("not a program")
    script.chmod(0o755)
    with pytest.raises(ProgramMissing, match="Exec format error"):
        await SandboxProcess.start(box.spec("./script"))


async def test_more_arguments_than_a_program_takes_are_no_fault_of_the_machine(box: Box) -> None:
    with pytest.raises(ProgramMissing, match="Argument list too long"):
        await SandboxProcess.start(box.spec(sys.executable, "-c", "pass", "x" * (1 << 20)))


async def test_a_machine_that_has_no_room_for_it_says_nothing_of_a_program(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> tuple[int, int]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    spec = box.spec(sys.executable, "-c", "pass")
    monkeypatch.setattr(os, "pipe", full)
    with pytest.raises(StartFailed, match="Too many open files") as refused:
        await SandboxProcess.start(spec)
    assert not isinstance(refused.value, ProgramMissing)


def test_programs_are_found_by_their_own_path(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "python"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert resolve("python", {"PATH": f"/nowhere:{tmp_path / 'bin'}:/usr/bin"}, tmp_path) == str(program)
    assert resolve("bin/python", {}, tmp_path) == str(program)


async def test_the_environment_is_only_what_it_was_given(box: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-the-parent")
    code = "import os, json; print(json.dumps(dict(os.environ)))"
    await box.run(code, env={"OPENAI_API_KEY": "mine"})
    assert "of-the-parent" not in box.log
    assert '"OPENAI_API_KEY": "mine"' in box.log
    names = set(json.loads(box.log)) - {"LC_CTYPE"}  # which Python itself sets
    assert names == {"PATH", "SANDGATE_SESSION_ID", "OPENAI_API_KEY"}


async def test_a_key_that_is_printed_is_not_in_the_log(box: Box) -> None:
    code = f"import sys\nfor part in {[KEY[:8], KEY[8:] + ' end']}: sys.stdout.write(part); sys.stdout.flush()\n1/0"
    end = await box.run(code)
    assert KEY not in box.log
    assert "[key] end" in box.log
    assert KEY not in end.tail


async def test_output_without_end_fills_no_disk(box: Box) -> None:
    end = await box.run("for _ in range(2000): print('x' * 1000)", log_bytes=10_000)
    assert end.code == 0
    assert (box.folder / "log").stat().st_size < 10_100


async def test_a_polite_stop_is_heard(box: Box) -> None:
    code = (
        "import signal, sys\nsignal.signal(15, lambda *_: sys.exit(7))\nprint('up', flush=True)\n" + FOREVER
    )
    process = await box.start(code)
    await box.says("up")
    end = await process.stop(grace_s=30.0)
    assert (end.code, end.signal) == (7, None)


async def test_who_does_not_listen_is_killed(box: Box) -> None:
    code = "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint('up', flush=True)\ntime.sleep(600)"
    process = await box.start(code)
    await box.says("up")
    end = await process.stop(grace_s=0.05)
    assert (end.code, end.signal, end.oom) == (None, signal.SIGKILL, False)
    assert (await process.stop()) == end


async def test_a_kill_from_outside_is_a_signal(box: Box) -> None:
    process = await box.start(FOREVER)
    os.kill(process.pid, signal.SIGKILL)
    end = await process.wait()
    assert (end.signal, end.oom) == (signal.SIGKILL, False)


async def test_grandchildren_go_with_their_parent(box: Box) -> None:
    code = (
        f"import subprocess, sys\nsubprocess.Popen([sys.executable, '-S', '-c', {FOREVER!r}])\nprint('born')"
    )
    end = await box.run(code)
    assert end.code == 0
    assert left(box.mark) == []


async def test_a_daemon_that_left_its_group_goes_too(box: Box) -> None:
    code = (
        "import os, time\n"
        "here, there = os.pipe()\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        print('daemon', flush=True); os.write(there, b'x'); time.sleep(600)\n"
        "    os._exit(0)\n"
        "os.read(here, 1)\n"
    )
    end = await box.run(code)
    assert end.code == 0
    assert "daemon" in box.log
    assert left(box.mark) == []


async def test_one_that_eats_memory_is_killed_for_it(box: Box) -> None:
    process = await box.start(
        "x = bytearray(300_000_000)\nimport time; time.sleep(600)", memory_bytes=100_000_000
    )
    watch = asyncio.ensure_future(watch_memory(lambda: [process], poll_s=0.02))
    end = await process.wait()
    watch.cancel()
    assert (end.code, end.signal, end.oom) == (None, signal.SIGKILL, True)


async def test_children_count_for_the_limit(box: Box) -> None:
    child = "x = bytearray(90_000_000); import time; time.sleep(600)"
    code = (
        "import subprocess, sys, time\n"
        f"for _ in range(2): subprocess.Popen([sys.executable, '-S', '-c', {child!r}])\n"
        "time.sleep(600)"
    )
    process = await box.start(code, memory_bytes=150_000_000)
    watch = asyncio.ensure_future(watch_memory(lambda: [process], poll_s=0.02))
    end = await process.wait()
    watch.cancel()
    assert end.oom
    assert left(box.mark) == []


async def test_below_its_limit_it_lives(box: Box) -> None:
    process = await box.start(
        "x = bytearray(20_000_000); print('up', flush=True); input()", memory_bytes=200_000_000
    )
    watch = asyncio.ensure_future(watch_memory(lambda: [process], poll_s=0.01))
    end = await process.wait()
    watch.cancel()
    assert not end.oom
    assert end.code == 1  # stdin is empty


async def test_a_result_is_left_in_the_termination_file(box: Box) -> None:
    file = box.folder / "end"
    end = await box.run(f"open({str(file)!r}, 'w').write('{{\"reward\": 1}}')", termination=file)
    assert end.message == b'{"reward": 1}'


async def test_a_long_result_is_cut_as_kubernetes_cuts_it(box: Box) -> None:
    file = box.folder / "end"
    end = await box.run(f"open({str(file)!r}, 'w').write('x' * 100_000)", termination=file)
    assert end.message == b"x" * OUTCOME_BYTES_MAX


@pytest.mark.parametrize("kind", ["fifo", "link", "folder", "nothing"])
def test_a_termination_file_that_is_a_trap_is_no_result(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "end"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        (tmp_path / "secret").write_text("of another")
        path.symlink_to(tmp_path / "secret")
    elif kind == "folder":
        path.mkdir()
    assert read_termination(path) == b""
    assert read_termination(None) == b""


def ill(monkeypatch: pytest.MonkeyPatch, file: Path, number: int, times: int) -> None:
    """So many readings of the file fail with that error."""
    left, real = iter(range(times)), os.open

    def fails(path: Any, *args: Any, **more: Any) -> int:
        if path == file and next(left, None) is not None:
            raise OSError(number, os.strerror(number), str(path))
        return real(path, *args, **more)

    monkeypatch.setattr(os, "open", fails)


@pytest.mark.parametrize("number", sorted(CANNOT_READ), ids=errno.errorcode.get)
async def test_a_result_that_the_machine_could_not_read_once_is_read(
    box: Box, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    file = box.folder / "end"
    ill(monkeypatch, file, number, 2)
    end = await box.run(f"open({str(file)!r}, 'w').write('{{\"reward\": 1}}')", termination=file)
    assert (end.message, end.unread) == (b'{"reward": 1}', "")


async def test_a_result_that_the_machine_cannot_read_is_not_an_empty_one(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = box.folder / "end"
    ill(monkeypatch, file, errno.EIO, READ_TRIES)
    end = await box.run(f"open({str(file)!r}, 'w').write('{{\"reward\": 1}}')", termination=file)
    assert (end.code, end.message, end.unread) == (0, b"", "Input/output error")


OWN = (
    "ENOENT",
    "ELOOP",
    "ENXIO",
    "ENOTDIR",
    "EACCES",
    "EPERM",
    "ENAMETOOLONG",
    "EAGAIN",
    "ENOKEY",
    "ENOTCONN",
)


@pytest.mark.parametrize("name", OWN)
def test_an_error_that_a_program_can_bring_about_is_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    ill(monkeypatch, tmp_path / "end", getattr(errno, name), 1)
    assert read_termination(tmp_path / "end") == b""


async def test_many_at_once_end_each_for_itself(box: Box) -> None:
    boxes = [Box(box.folder, f"{box.mark}-{code}") for code in range(12)]
    ends = await asyncio.gather(*(one.run(f"raise SystemExit({code})") for code, one in enumerate(boxes)))
    assert [end.code for end in ends] == list(range(12))


# -- the guard -------------------------------------------------------------------------------------------------------


async def test_the_guard_kills_what_is_registered_when_its_pipe_ends(box: Box) -> None:
    guard = Guard()
    code = f"import subprocess, sys\nargs = [sys.executable, '-S', '-c', {FOREVER!r}]\n"
    code += "subprocess.Popen(args, start_new_session=True)\nprint('up', flush=True)\n"
    process = await box.start(code + FOREVER, guard)
    await box.says("up")

    async def both() -> bool:
        """A process that is just becoming its program has no environment yet."""
        return len(left(box.mark)) == 2

    await until(both, what="both are there")
    await asyncio.to_thread(guard.close)
    assert (await process.wait()).signal == signal.SIGKILL
    assert left(box.mark) == []


DRIVER = """
import asyncio, sys
from pathlib import Path
from sandgate.sandbox.process import Guard, ProcessSpec, SandboxProcess

SLEEP = "import time; time.sleep(600)"
CODE = f"import subprocess, sys; subprocess.Popen([sys.executable, '-S', '-c', {SLEEP!r}]); {SLEEP}"

async def main(log, mark):
    name, _, value = mark.partition("=")
    argv = [sys.executable, "-S", "-c", CODE]
    spec = ProcessSpec(argv=argv, env={name: value}, cwd=Path("/"), log=Path(log), mark=mark)
    await (await SandboxProcess.start(spec, Guard())).wait()

asyncio.run(main(*sys.argv[1:]))
"""


def test_a_loop_that_ends_ends_its_programs_and_tells_who_waits_for_one(tmp_path: Path) -> None:
    told: list[ProcessExit] = []

    async def keeps(running: SandboxProcess) -> None:
        try:
            await asyncio.Event().wait()
        finally:  # as whoever supervises it
            told.append(await running.stop())

    async def main() -> asyncio.Task[None]:
        spec = ProcessSpec(argv=[sys.executable, "-c", FOREVER], env={}, cwd=tmp_path, log=tmp_path / "log")
        keeping = asyncio.create_task(keeps(await SandboxProcess.start(spec)))
        await asyncio.sleep(0)
        return keeping

    assert asyncio.run(main()).cancelled()
    assert [(one.signal is not None, one.escaped) for one in told] == [(True, False)]


def _children_of(pid: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.parametrize(
    "children_first", [False, True], ids=["alone", "and its children before, as Ray does"]
)
async def test_a_driver_that_is_killed_leaves_nothing(
    tmp_path: Path, mark: str, children_first: bool
) -> None:
    driver = await asyncio.create_subprocess_exec(sys.executable, "-c", DRIVER, str(tmp_path / "log"), mark)

    async def born() -> bool:
        return len(left(mark)) == 2

    async def gone() -> bool:
        return left(mark) == []

    try:
        await until(born, what="an agent and its child run", within_s=30)
        driver.send_signal(signal.SIGSTOP)  # so that it does not see its children end
        for child in _children_of(driver.pid) if children_first else ():
            os.kill(child, signal.SIGKILL)
    finally:
        driver.kill()
        await driver.wait()
    await until(gone, what="nothing of the dead driver runs", within_s=30)


def test_the_guard_follows_its_lines() -> None:
    groups: dict[int, bytes] = {}
    guards.follow(["+12 A=b c", "+13 ", "-12", "+14 X=y"], groups)
    assert groups == {13: b"", 14: b"X=y"}


async def test_a_guard_that_was_killed_stops_nothing(box: Box) -> None:
    guard = Guard()
    os.kill(guard.pid, signal.SIGKILL)
    process = await box.start("pass", guard)
    assert (await process.wait()).code == 0
    guard.close()


async def test_memory_of_all_below_is_seen(box: Box) -> None:
    process = await box.start(f"print('up', flush=True); {FOREVER}")
    await box.says("up")  # the moment after its exec it holds nothing yet
    held = procfs.tree_memory([process.keeper, 2**30])
    assert held.pop(process.keeper) > 1_000_000
    assert held == {2**30: 0}
    assert procfs.tree_memory_exact(process.keeper) > 1_000_000
    assert procfs.below(process.keeper) == [process.pid]
    assert procfs.oom_kills() >= -1


def test_our_own_group_is_never_killed() -> None:
    procfs.kill_group(os.getpgrp())
    procfs.kill_group(0)
    assert os.getpgrp() > 1


@pytest.mark.parametrize(
    ("wanted", "got"), [(500, "500"), (1_024, "1000"), (resource.RLIM_INFINITY, "1000")], ids=str
)
def test_a_limit_of_descriptors_above_a_hard_one_that_was_lowered_since_is_that_one(
    wanted: int, got: str
) -> None:
    code = f"""
import os, resource
from sandgate.sandbox import keeper
resource.setrlimit(resource.RLIMIT_NOFILE, (900, 1000))
argv = ["/bin/sh", "-c", "ulimit -Sn"]
pid, failed = keeper.start({{"argv": argv, "env": {{}}, "cwd": "/", "files": {wanted}}})
print(failed or "", end="", flush=True)
os.waitpid(pid, 0) if failed is None else None
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30
    )
    assert done.stdout.strip() == got
