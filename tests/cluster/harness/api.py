"""What a test may do with any Kubernetes API server: the one of the `apiserver` fixture, of `cluster`, of kind."""

from __future__ import annotations

import json
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster.harness.control import Control, Place
from tests.cluster.harness.programs import binary
from tests.cluster.harness.rest import Refused, Rest

KUBECTL_S = 120.0


@dataclass(frozen=True)
class Api:
    """An API server and an administrator's way in.

    `kubeconfig` has one context with everything inline. `ca`, `cert`, `key` are PEM files. `audit_log` is JSON lines,
    level Metadata, written before each answer, or None where it is out of reach.
    """

    url: str
    kubeconfig: Path
    ca: Path
    cert: Path
    key: Path
    audit_log: Path | None

    def rest(self, *, token: str = "") -> Rest:
        """As administrator, or as the holder of a token."""
        if token:
            return Rest(self.url, ca=self.ca, token=token)
        return Rest(self.url, ca=self.ca, cert=self.cert, key=self.key)

    def kubectl(self, *args: str, stdin: str | None = None, check: bool = True) -> str:
        """What it printed. Raises AssertionError with its complaint, unless not `check`."""
        command = [str(binary("kubectl")), f"--kubeconfig={self.kubeconfig}", *args]
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=KUBECTL_S, check=False
        )
        assert not check or done.returncode == 0, f"kubectl {' '.join(args)}: {done.stderr.strip()}"
        return done.stdout if check else done.stdout + done.stderr

    def apply(self, *objects: Mapping[str, Any]) -> None:
        """kubectl apply of objects as they are."""
        self.kubectl(
            "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
        )

    def token(self, namespace: str, account: str, *, audience: str = "", seconds: int = 3600) -> str:
        """Of a service account that exists (TokenRequest)."""
        spec: dict[str, Any] = {"expirationSeconds": seconds, "audiences": [audience] if audience else []}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        token: str = self.rest().create(path, body)["status"]["token"]
        return token

    @contextmanager
    def namespace(self, name: str, *, security: str = "restricted") -> Iterator[str]:
        """A namespace with its default service account, gone afterwards (its deletion is not waited for).

        `security`: the Pod Security level it enforces.
        """
        labels = {"pod-security.kubernetes.io/enforce": security}
        rest = self.rest()
        rest.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        try:
            self._default_account(rest, name)
            yield name
        finally:
            rest.call("DELETE", f"/api/v1/namespaces/{name}")

    def _default_account(self, rest: Rest, namespace: str) -> None:
        """Made by the controller manager where one runs; without it no pod can be created."""
        try:
            rest.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "default"}})
        except Refused as refused:
            if refused.status != 409:
                raise

    def audit_mark(self) -> int:
        """Where the audit log ends now: everything answered before is before it."""
        assert self.audit_log is not None, "this cluster's audit log cannot be read"
        return self.audit_log.stat().st_size

    def audit_since(self, mark: int) -> list[dict[str, Any]]:
        """Events written since a mark; see audit.k8s.io/v1 Event."""
        return list(self.audit_each(mark))

    def audit_each(self, mark: int) -> Iterator[dict[str, Any]]:
        """The same one by one: a long run's are gigabytes."""
        assert self.audit_log is not None, "this cluster's audit log cannot be read"
        with self.audit_log.open("rb") as file:
            file.seek(mark)
            for line in file:
                if line.endswith(b"\n"):
                    yield json.loads(line)


def api_of(control: Control) -> Api:
    """The administrator's way into a control plane of ours."""
    pki = control.pki.path
    return Api(
        url=control.url,
        kubeconfig=control.kubeconfig,
        ca=pki("ca.crt"),
        cert=pki("admin.crt"),
        key=pki("admin.key"),
        audit_log=control.audit_log,
    )


@contextmanager
def api_server() -> Iterator[tuple[Api, Control]]:
    """etcd and an API server on free ports of 127.0.0.1, with nothing behind them: objects, validation, access rules.

    No controllers: nothing is scheduled or garbage-collected, and aggregated roles (`view`, `edit`) are empty. Needs no
    root. Both die with this process, however it ends.
    """
    with tempfile.TemporaryDirectory(prefix="sandgate-api-") as name:
        api, etcd, peer = free_ports(3)
        place = Place("127.0.0.1", api, etcd, peer, prefix=("setpriv", "--pdeathsig", "KILL", "--"))
        control = Control(Path(name), place)
        control.make_files([], f"https://127.0.0.1:{control.place.api_port}")
        try:
            control.start_etcd()
            control.start_apiserver()
            yield api_of(control), control
        finally:
            control.stop()


def free_ports(count: int) -> list[int]:
    """Free now. Another process may take one before it is used; nothing better is to be had for programs that bind."""
    sockets = [socket.socket() for _ in range(count)]
    for sock in sockets:
        sock.bind(("127.0.0.1", 0))
    ports = [sock.getsockname()[1] for sock in sockets]
    for sock in sockets:
        sock.close()
    return ports
