"""Certificates and kubeconfigs of a test cluster: one CA, a client certificate for each component."""

from __future__ import annotations

import base64
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.cluster.harness.flavour import flavour

DAYS = "30"
CONTEXT = flavour.context
"""The context's name in every kubeconfig written here."""


class Pki:
    """A folder of NAME.crt and NAME.key."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, file: str) -> Path:
        return self.folder / file

    def ca(self, name: str) -> None:
        """A certificate authority of its own."""
        usage = ["-addext", "keyUsage=critical,keyCertSign,cRLSign"]
        self._openssl(name, f"/CN={name}", ["-addext", "basicConstraints=critical,CA:TRUE", *usage])

    def cert(self, name: str, subject: str, *, ca: str = "ca", server: Sequence[str] = ()) -> None:
        """For a client; with `server` (`DNS:...`, `IP:...`) for a server of these names too."""
        usage = "clientAuth" + (",serverAuth" if server else "")
        extensions = ["-addext", "basicConstraints=CA:FALSE", "-addext", f"extendedKeyUsage={usage}"]
        if server:
            extensions += ["-addext", "subjectAltName=" + ",".join(server)]
        signer = ["-CA", str(self.path(f"{ca}.crt")), "-CAkey", str(self.path(f"{ca}.key"))]
        self._openssl(name, subject, [*signer, *extensions])

    def service_account_keys(self) -> None:
        """sa.key signs tokens of pods, sa.pub proves them."""
        key = ["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256"]
        openssl(*key, "-out", str(self.path("sa.key")))
        openssl("pkey", "-in", str(self.path("sa.key")), "-pubout", "-out", str(self.path("sa.pub")))
        self.path("sa.key").chmod(0o600)

    def kubeconfig(self, user: str, server: str, file: Path) -> Path:
        """With everything inline."""
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": CONTEXT,
                    "cluster": {"server": server, "certificate-authority-data": self._data("ca.crt")},
                }
            ],
            "users": [
                {
                    "name": user,
                    "user": {
                        "client-certificate-data": self._data(f"{user}.crt"),
                        "client-key-data": self._data(f"{user}.key"),
                    },
                }
            ],
            "contexts": [{"name": CONTEXT, "context": {"cluster": CONTEXT, "user": user}}],
            "current-context": CONTEXT,
        }
        file.touch(mode=0o600)
        file.write_text(json.dumps(config, indent=1))  # JSON is YAML
        return file

    def _data(self, file: str) -> str:
        return base64.b64encode(self.path(file).read_bytes()).decode()

    def _openssl(self, name: str, subject: str, options: Sequence[str]) -> None:
        key = [
            "-newkey",
            "ec",
            "-pkeyopt",
            "ec_paramgen_curve:P-256",
            "-nodes",
            "-keyout",
            str(self.path(f"{name}.key")),
        ]
        out = ["-out", str(self.path(f"{name}.crt")), "-days", DAYS]
        openssl("req", "-x509", "-config", "/dev/null", "-subj", subject, *key, *out, *options)
        self.path(f"{name}.key").chmod(0o600)


def openssl(*args: str) -> None:
    subprocess.run(["openssl", *args], check=True, capture_output=True)
