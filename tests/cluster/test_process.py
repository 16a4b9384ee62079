"""Only what is ours is killed, and bytes that were sent arrive."""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cluster.harness import forward
from tests.cluster.harness.process import Ledger, Proc, kill, spawn

LASTS = [sys.executable, "-c", "import signal; signal.pause()"]


def test_a_number_that_was_used_again_is_not_killed(tmp_path: Path) -> None:
    ours = spawn(LASTS, tmp_path / "log")
    ledger = Ledger(tmp_path / "pids")
    ledger.add("earlier", replace(ours, began="another life"))
    ledger.kill()
    assert ours.alive()
    ledger.add("this", ours)
    ledger.kill("this")
    assert not ours.alive()
    assert Proc.of(ours.pid) is None


def test_what_was_killed_is_no_zombie(tmp_path: Path) -> None:
    ours = spawn(LASTS, tmp_path / "log")
    kill([ours])
    with pytest.raises(ProcessLookupError):
        os.kill(ours.pid, signal.Signals.SIGCONT)


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_a_daemon_does_not_hold_a_lock_under_which_it_was_started(tmp_path: Path) -> None:
    """As under `flock FILE pytest`, which leaves the locked file open for all below."""
    lock = tmp_path / "lock"
    with lock.open("w") as file:
        os.set_inheritable(file.fileno(), True)
        fcntl.flock(file, fcntl.LOCK_EX)
        ours = spawn(LASTS, tmp_path / "log")
    try:
        with lock.open() as again:
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        kill([ours])


@pytest.mark.skipif(os.geteuid() != 0, reason="network namespaces need root")
def test_a_forward_passes_all_bytes_and_the_end_of_each_side(tmp_path: Path) -> None:
    data = os.urandom(1 << 20)
    with socket.create_server(("127.0.0.1", 0)) as there, socket.create_server(("127.0.0.1", 0)) as listener:
        argv = [
            sys.executable,
            "-I",
            forward.__file__,
            "/proc/self/ns/net",
            "127.0.0.1",
            str(there.getsockname()[1]),
        ]
        process = spawn(argv, tmp_path / "log", stdin=listener.fileno())
        with socket.create_connection(listener.getsockname()) as client:
            client.shutdown(socket.SHUT_WR)
            server, _ = there.accept()
            with server, server.makefile("rb") as said:
                assert said.read() == b""  # the client's end, while the server still has all to say
                server.sendall(data)
            with client.makefile("rb") as said:
                assert said.read() == data
        kill([process])
    assert (tmp_path / "log").read_text() == ""
