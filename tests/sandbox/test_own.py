"""What a process that is forked off keeps of its parent's pipes and locks: nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.forked import over
from tests.support.waiting import until_now

GUARDS = """
import subprocess, time
from sandgate.sandbox.process import Guard

guard = Guard()
group = subprocess.Popen(["sleep", "600"], start_new_session=True, stdout=subprocess.DEVNULL)
guard.add(group.pid, "")
worker = fork()
"""
LOCKS = """
import fcntl
from sandgate.sandbox.own import OwnFile

def held():
    look = os.open(sys.argv[1], os.O_RDONLY)
    try:
        fcntl.flock(look, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False

own = OwnFile(Path(sys.argv[1]), os.O_RDWR | os.O_CREAT)
fcntl.flock(own, fcntl.LOCK_EX)
"""
GUARD = {
    "is closed": "guard.close()\nprint(group.wait(), lives(worker))",
    "is left by a kill": "print(group.pid, True, flush=True)\ndie()",
}
LOCK = {
    "a worker leaves its parent the lock, and keeps none": (
        "worker = fork()\nprint(held())\nown.close()\nprint(held(), lives(worker))",
        ["True", "False", "True"],
    ),
    "a lock is let go, whoever has a copy of its file": (
        "copy = os.dup(own.number)\nworker = fork()\nown.release()\nprint(held())",
        ["False"],
    ),
    "one that is closed already closes no other file of its number": (
        "number = own.number\nown.close()\nread, write = os.pipe()\nassert number in (read, write)\n"
        "own.close()\nworker = fork()\nos.fstat(number)\nprint(own.closed)",
        ["True"],
    ),
    "one that nobody has any more is closed": ("worker = fork()\ndel own\nprint(held())", ["False"]),
}


@pytest.mark.parametrize("end", GUARD.values(), ids=GUARD.keys())
def test_a_guard_kills_what_it_guards_while_a_worker_lives_when_it(end: str) -> None:
    with over(GUARDS + end) as (group, lives):
        assert lives == "True"
        if int(group) > 0:
            until_now(lambda: not Path(f"/proc/{group}").exists(), what="the group is killed")


@pytest.mark.parametrize(("program", "found"), LOCK.values(), ids=LOCK.keys())
def test_a_lock(program: str, found: list[str], tmp_path: Path) -> None:
    with over(LOCKS + program, str(tmp_path / "lock")) as said:
        assert said == found
