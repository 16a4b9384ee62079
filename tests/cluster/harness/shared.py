"""One cluster for all test runs of a machine: whoever comes first starts it, whoever leaves last ends it.

A cluster of `make cluster-up` belongs to the person who typed it: runs use it and leave it on.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import IO

from tests.cluster.harness.cache import locked
from tests.cluster.harness.machines import STATE, Machines
from tests.support.waiting import until_now

CHANGES = STATE.with_name(f"{STATE.name}.lock")
"""Held by who starts or ends it."""
USERS = STATE.with_name(f"{STATE.name}.users")
"""Shared by the runs that use it; the kernel lets go for those that die."""
BREAKS = STATE.with_name(f"{STATE.name}.breaks")
"""Shared by tests that need whole machines."""
OTHERS_S = 600.0
"""A test is given three minutes; who waits longer than a few of them is told for whom."""
OWNER = STATE / "owner.json"
BROKEN = f"the cluster of `make cluster-up` is not healthy (logs: {STATE}): make cluster-down cluster-up"


def start_for_make() -> None:
    """What test runs use now is left as it is, and stays when they end."""
    with locked(CHANGES):
        if not (owner() and in_use()) and not (owner() and Machines().healthy()):
            Machines().up()
        OWNER.write_text(json.dumps("make"))


def stop_for_make() -> None:
    """Also of what a crashed run left."""
    with locked(CHANGES):
        if in_use():
            raise SystemExit("test runs use the cluster now")
        Machines().down()


@contextmanager
def peace(*, broken: bool) -> Iterator[None]:
    """For the time of one test. `broken`: it breaks machines, and waits until no other test, of any run, needs them."""
    mode = fcntl.LOCK_EX if broken else fcntl.LOCK_SH
    with BREAKS.open("a") as file:
        until_now(
            partial(taken, file, mode),
            what=f"tests of other runs let go of the machines (`grep {os.fstat(file.fileno()).st_ino} /proc/locks`)",
            within_s=OTHERS_S,
        )
        yield


@contextmanager
def shared() -> Iterator[Machines]:
    """The cluster that runs, or one that ends with its last user. Of one that died as a whole only files are left."""
    with USERS.open("a") as users:
        with locked(CHANGES):
            machines = Machines()
            if owner() == "make" and machines.alive():
                assert machines.healthy(), BROKEN
            elif not (owner() == "tests" and in_use() and machines.healthy()):
                machines.up(in_memory=True)
                OWNER.write_text(json.dumps("tests"))
            fcntl.flock(users, fcntl.LOCK_SH)
        try:
            yield machines
        finally:
            with locked(CHANGES):
                fcntl.flock(users, fcntl.LOCK_UN)
                if owner() == "tests" and not in_use():
                    machines.down()


def owner() -> str:
    """`make`, `tests`, or empty: there is none, or its start never ended."""
    try:
        found: str = json.loads(OWNER.read_text("utf-8"))
    except FileNotFoundError:
        return ""
    return found


def in_use() -> bool:
    """Whether a test run holds it. Only while CHANGES is held does the answer stay true."""
    with USERS.open("a") as file:
        return not taken(file, fcntl.LOCK_EX)


def taken(file: IO[str], mode: int) -> bool:
    """Whether we have the lock now."""
    try:
        fcntl.flock(file, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
