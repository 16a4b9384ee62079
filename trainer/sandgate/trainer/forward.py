"""A pod's port on this machine's loopback, through the API server, as `kubectl port-forward` does it.

For people and trainers outside the cluster. Inside it, a gateway's own name is shorter and faster.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from kubernetes import client
from kubernetes.stream import portforward

log = logging.getLogger(__name__)

CHUNK = 1 << 18
"""Bytes moved at once."""
CONNECTIONS_MAX = 64
"""At once; each is a WebSocket at the API server and a thread here."""


class Forward:
    """Listens on a free port of 127.0.0.1 until closed; every connection becomes one to the pod's port."""

    def __init__(self, configuration: client.Configuration, namespace: str, pod: str, port: int) -> None:
        self._configuration, self._where = configuration, (namespace, pod, port)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=CONNECTIONS_MAX)
        self._slots = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self._closed = threading.Event()
        self._open: set[socket.socket] = set()
        self._thread = threading.Thread(target=self._accept, name=f"forward {pod}", daemon=True)
        self._thread.start()

    @property
    def origin(self) -> str:
        """What to use instead of the pod's own origin."""
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
        # A thread that waits in accept() does not notice that its socket is closed; a connection wakes it.
        with socket.create_connection(self._listener.getsockname()):
            self._thread.join()
        self._listener.close()
        for one in tuple(self._open):
            _shut(one)

    def _accept(self) -> None:
        while True:
            ours, _ = self._listener.accept()
            if self._closed.is_set():
                ours.close()
                return
            self._slots.acquire()  # more connections wait in the kernel
            self._open.add(ours)
            threading.Thread(target=self._serve, args=(ours,), daemon=True).start()

    def _serve(self, ours: socket.socket) -> None:
        namespace, pod, port = self._where
        try:
            # An ApiClient of its own: portforward() swaps a method of the one it is given while it connects.
            with client.ApiClient(self._configuration) as api:
                theirs = portforward(
                    client.CoreV1Api(api).connect_get_namespaced_pod_portforward,
                    pod,
                    namespace,
                    ports=str(port),
                )
                try:
                    pump(ours, theirs.socket(port))
                finally:
                    theirs.close()
                    if not theirs.connected:  # the server has closed it: then nobody else closes the socket
                        theirs.websocket.shutdown()
        except (client.ApiException, OSError) as error:
            log.warning("port-forward to %s/%s: %s", namespace, pod, str(error).partition("\n")[0])
        finally:
            self._open.discard(ours)
            ours.close()
            self._slots.release()


def pump(one: Any, other: Any) -> None:
    """Carry bytes both ways until either side ends. The other side is not half-closed: Kubernetes' protocol cannot
    say that, and HTTP does not need it."""
    with selectors.DefaultSelector() as ready:
        one.setblocking(True)
        other.setblocking(True)
        ready.register(one.fileno(), selectors.EVENT_READ, (one, other))
        ready.register(other.fileno(), selectors.EVENT_READ, (other, one))
        while True:
            for key, _ in ready.select():
                source, target = key.data
                try:
                    data = source.recv(CHUNK)
                except OSError:
                    return
                if not data:
                    return
                target.sendall(data)


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):  # it ended by itself
        sock.shutdown(socket.SHUT_RDWR)
