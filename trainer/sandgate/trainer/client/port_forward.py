"""Port-forward to a pod through the API server, as `kubectl port-forward` does it.

For people and trainers outside the cluster. Inside it, a gateway's own name is shorter and faster.
"""

from __future__ import annotations

import logging
import selectors
import socket
import ssl
import threading
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from kubernetes import client
from kubernetes.stream.ws_client import create_websocket, get_websocket_url
from websocket import ABNF, WebSocket, WebSocketException

log = logging.getLogger(__name__)

CHUNK = 1 << 18
"""Bytes moved at once."""
CONNECTIONS_MAX = 64
"""Connections open at a time; each is a WebSocket at the API server and a thread here."""
NO_ROOM_S = 0.5
"""Until the next try where this process has no descriptor left for a connection."""
WAKE_S = 1.0
DATA = b"\0"
"""The channel of the port's bytes."""


class Forward:
    """Listens on a free port of 127.0.0.1 until closed; every connection becomes one to the pod's port."""

    def __init__(self, configuration: client.Configuration, namespace: str, pod: str, port: int) -> None:
        self._configuration, self._where = configuration, (namespace, pod, port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=CONNECTIONS_MAX)
        self._slots = threading.Semaphore(CONNECTIONS_MAX)
        self._closed = threading.Event()
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, name=f"forward {pod}", daemon=True)
        self._thread.start()

    @property
    def origin(self) -> str:
        """The origin to use here instead of the pod's own."""
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cut every connection and stop listening. Idempotent."""
        if self._closed.is_set():
            return
        self._closed.set()
        self._slots.release()  # the thread may wait for one
        # A thread that waits in accept() does not notice that its socket is closed; a connection wakes it. Where there
        # is no room for one, it does not wait there.
        with suppress(OSError):
            socket.create_connection(self._listener.getsockname(), timeout=WAKE_S).close()
        self._thread.join()
        self._listener.close()
        for one in tuple(self._open):
            _shut(one)

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                ours, _ = self._listener.accept()
            except OSError as error:  # the others wait in the kernel, and would do so for ever
                log.warning("port-forward to %s/%s takes no connection: %s", *self._where[:2], error)
                self._closed.wait(NO_ROOM_S)
                continue
            self._slots.acquire()  # more connections wait in the kernel
            if self._closed.is_set():
                ours.close()
                return
            self._open.add(ours)
            threading.Thread(target=self._serve, args=(ours,), daemon=True).start()

    def _serve(self, ours: socket.socket) -> None:
        try:
            theirs = dial(self._configuration, *self._where)
            try:
                pump(ours, theirs)
            finally:
                theirs.shutdown()
        except ConnectionError as error:  # cut by one of them: the other is told by its own connection
            log.info("port-forward to %s/%s: %s", *self._where[:2], error)
        except (WebSocketException, OSError) as error:
            log.warning("port-forward to %s/%s: %s", *self._where[:2], str(error).partition("\n")[0])
        finally:
            self._open.discard(ours)
            ours.close()
            self._slots.release()


def dial(configuration: client.Configuration, namespace: str, pod: str, port: int) -> WebSocket:
    """A connection to the port of a pod: binary frames whose first byte is 0 for data and 1 for what went wrong.

    Not `kubernetes.stream.portforward`: a thread of its own owns the socket there, and leaves it open when the server
    ends the connection.
    """
    auth: Mapping[str, Any] = configuration.auth_settings()
    headers = {one["key"]: one["value"] for one in auth.values()}
    url = f"{configuration.host}/api/v1/namespaces/{namespace}/pods/{pod}/portforward"
    made: WebSocket = create_websocket(configuration, get_websocket_url(url, [("ports", str(port))]), headers)
    return made


def pump(ours: socket.socket, theirs: WebSocket) -> None:
    """Carry bytes both ways until either side ends. The other side is not half-closed: Kubernetes' protocol cannot
    say that, and HTTP does not need it. Raises OSError with the API server's words for a port that does not answer."""
    greeted: set[int] = set()  # a channel begins with a frame that holds its port's number
    with selectors.DefaultSelector() as ready:
        ready.register(ours, selectors.EVENT_READ)
        ready.register(theirs, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj is ours:
                    data = ours.recv(CHUNK)
                    if not data:
                        return
                    theirs.send_binary(DATA + data)
                elif not _received(ours, theirs, greeted):
                    return


def _received(ours: socket.socket, theirs: WebSocket, greeted: set[int]) -> bool:
    """Carry what has come from the pod. False: it has ended the connection."""
    while True:
        opcode, frame = theirs.recv_data_frame(control_frame=True)
        if opcode == ABNF.OPCODE_CLOSE:
            return False
        if opcode == ABNF.OPCODE_BINARY and frame.data:
            channel, data = frame.data[0], frame.data[1:]
            if channel not in greeted:
                greeted.add(channel)
            elif channel == DATA[0]:
                ours.sendall(data)
            elif data:
                raise OSError(data.decode(errors="replace"))
        if not (isinstance(theirs.sock, ssl.SSLSocket) and theirs.sock.pending()):
            return True


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):  # it ended by itself
        sock.shutdown(socket.SHUT_RDWR)
