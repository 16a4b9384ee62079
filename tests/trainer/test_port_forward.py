"""Port-forward through an API server: bytes both ways, and no descriptor or thread left when either side ends.

The server speaks `v4.channel.k8s.io` as a kubelet does. docs/adr/0012-own-kubernetes-client.md says what other clients
do in the same cases.
"""

from __future__ import annotations

import logging
import os
import resource
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from kubernetes import client
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import Server, ServerConnection, serve

from sandgate.trainer.client.port_forward import Forward
from tests.support.waiting import until_now

PORT = 8000
WHOLE = b"hello" * 100_000


class Kubelet:
    """Answers in capitals. `bye` is answered by `last` and the end, `refuse` by the error of a port that is closed."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.over = threading.Semaphore(0)

    def __call__(self, connection: ServerConnection) -> None:
        assert connection.request is not None
        self.paths.append(connection.request.path)
        try:
            for channel in (b"\0", b"\1"):
                connection.send(channel + struct.pack("<H", PORT))
            self._serve(connection)
        except ConnectionClosed:
            pass
        finally:
            self.over.release()

    def _serve(self, connection: ServerConnection) -> None:
        for frame in connection:
            assert isinstance(frame, bytes)
            if frame[1:] == b"refuse":
                connection.send(b"\1an error occurred: connection refused")
                return
            if frame[1:] == b"bye":
                connection.send(b"\0last")
                return
            connection.send(b"\0" + frame[1:].upper())


@pytest.fixture
def kubelet() -> Kubelet:
    return Kubelet()


@pytest.fixture
def forward(kubelet: Kubelet) -> Iterator[Forward]:
    with ExitStack() as stack:
        server: Server = stack.enter_context(
            serve(kubelet, "127.0.0.1", 0, subprotocols=["v4.channel.k8s.io"], max_size=None)  # type: ignore[list-item]
        )
        accepting = threading.Thread(target=server.serve_forever)
        accepting.start()
        stack.callback(accepting.join)
        stack.callback(server.shutdown)
        configuration = client.Configuration()
        configuration.host = f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        yield stack.enter_context(Forward(configuration, "lab", "pod", PORT))


def dialled(forward: Forward) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(forward.origin.rpartition(":")[2])), timeout=20)


def read(ours: socket.socket) -> bytes:
    """All that comes until the end."""
    got = b""
    while data := ours.recv(1 << 20):
        got += data
    return got


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_bytes_pass_both_ways_and_the_pod_sees_our_end(forward: Forward, kubelet: Kubelet) -> None:
    with dialled(forward) as ours:
        ours.sendall(WHOLE)
        got = b""
        while len(got) < len(WHOLE):
            got += ours.recv(1 << 20)
    assert got == WHOLE.upper()
    assert kubelet.over.acquire(timeout=20)
    assert kubelet.paths == [f"/api/v1/namespaces/lab/pods/pod/portforward?ports={PORT}"]


def test_when_the_pod_ends_we_are_told_and_nothing_is_left_open(forward: Forward, kubelet: Kubelet) -> None:
    before = descriptors()
    with dialled(forward) as ours:
        ours.sendall(b"bye")
        assert read(ours) == b"last"
    assert kubelet.over.acquire(timeout=20)
    until_now(lambda: descriptors() <= before, what="no descriptor is left")


def test_a_port_that_does_not_answer_is_logged_in_the_servers_words(
    forward: Forward, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), dialled(forward) as ours:
        ours.sendall(b"refuse")
        assert read(ours) == b""
    forward.close()
    assert "connection refused" in caplog.text


def test_it_works_with_more_than_1024_descriptors_open(forward: Forward, tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))
    with ExitStack() as stack:
        stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(1100):
            stack.enter_context(Path(os.devnull).open())
        ours = stack.enter_context(dialled(forward))
        ours.sendall(b"hello")
        assert ours.recv(99) == b"HELLO"


def test_it_ends_while_a_connection_waits_for_a_place(forward: Forward) -> None:
    while forward._slots.acquire(blocking=False):
        pass  # as 64 connections that are open, and stay so
    before = descriptors()
    with dialled(forward):
        until_now(lambda: descriptors() == before + 2, what="both ends are open")
        closing = threading.Thread(target=forward.close, daemon=True)
        closing.start()
        closing.join(20)
        assert not closing.is_alive()


def test_after_a_moment_without_descriptors_connections_are_taken_again(
    forward: Forward, caplog: pytest.LogCaptureFixture
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with caplog.at_level(logging.WARNING), socket.socket() as lost, socket.socket() as ours:
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
        try:
            for one in (lost, ours):  # Linux has given the first one its descriptor already
                one.settimeout(20)
                one.connect(("127.0.0.1", int(forward.origin.rpartition(":")[2])))
            until_now(lambda: "takes no connection" in caplog.text, what="it says why")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        ours.sendall(b"hello")
        assert ours.recv(99) == b"HELLO"
