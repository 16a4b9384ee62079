"""Access to an API server: as a pod of the cluster, or by a kubeconfig."""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sandgate.contract.errors import BadManifest, SandgateError, Unsupported
from sandgate.contract.kinds import BASE_URL

Json = Any

MISREAD = (ValueError, TypeError, LookupError, AttributeError, RecursionError)
"""What PyYAML raises of a value that is not what it is tagged as, and of nesting without an end."""

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_S = 60.0
"""A token file is read again after this long: the kubelet renews projected tokens at 80 % of their life, an hour at
most, and the old one is still good then."""
REFUSED = ("exec", "auth-provider", "username", "password")
"""Ways of a kubeconfig's user that need a helper program, or that no API server takes any more."""
REFUSED_CLUSTER = ("proxy-url", "tls-server-name")


@dataclass(slots=True)
class Token:
    """A bearer token: a text, or a file that somebody renews. Neither: no token."""

    text: str = field(default="", repr=False)
    path: Path | None = None
    _read: float = 0.0

    def value(self) -> str:
        """The token to send now, empty for none. A file that cannot be read leaves the last one standing; raises
        OSError if there never was one."""
        if self.path is None or (self.text and time.monotonic() - self._read < TOKEN_S):
            return self.text
        try:
            self.text = self.path.read_text(encoding="ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            if not self.text:
                raise OSError(f"{self.path}: {error}") from error
        self._read = time.monotonic()
        return self.text

    def forget(self) -> None:
        """It was refused: read the file again before the next use."""
        self._read = float("-inf")


@dataclass(frozen=True, slots=True)
class Access:
    """One API server and who we are to it. Certificates are read once; a token file again and again."""

    server: str
    """Origin, without a slash at the end."""
    tls: ssl.SSLContext | None = None
    """None for http://, as of `kubectl proxy`."""
    token: Token = field(default_factory=Token)
    namespace: str = "default"
    """Where we live, or the context's."""


def find(kubeconfig: Path | None = None) -> Access:
    """The file, if one is named; else the pod's service account; else $KUBECONFIG or ~/.kube/config.

    Raises BadManifest or Unsupported naming the field, SandgateError where there is nothing to be found.
    """
    if kubeconfig is not None:
        return from_kubeconfig([kubeconfig])
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster(os.environ)
    said = os.environ.get("KUBECONFIG", "")
    files = [Path(one) for one in said.split(os.pathsep) if one] or [Path.home() / ".kube" / "config"]
    return from_kubeconfig(files)


def in_cluster(environ: Mapping[str, str], folder: Path = SERVICE_ACCOUNT) -> Access:
    """As the service account of the pod we run in. Raises SandgateError when its token is not mounted."""
    host = environ["KUBERNETES_SERVICE_HOST"]
    origin = f"https://[{host}]" if ":" in host else f"https://{host}"
    token = Token(path=folder / "token")
    try:
        token.value()
        tls = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        namespace = (folder / "namespace").read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise SandgateError(f"service account in {folder}: {error}") from error
    return Access(f"{origin}:{environ.get('KUBERNETES_SERVICE_PORT', '443')}", tls, token, namespace)


def from_kubeconfig(files: Sequence[Path]) -> Access:
    """The current context of these files together, where the first that names something wins."""
    merged = _Merged()
    for path in files:
        merged.add(path)
    if not merged.read:
        raise SandgateError(f"no kubeconfig: {', '.join(map(str, files))} not found, and not in a pod")
    context, _ = merged.entry("contexts", "context", merged.current)
    name = str(context.get("cluster") or "")
    cluster, base = merged.entry("clusters", "cluster", name)
    user_name = str(context.get("user") or "")
    user, user_base = merged.entry("users", "user", user_name) if user_name else ({}, Path())
    _refuse(cluster, f"clusters[{name}].cluster", REFUSED_CLUSTER)
    _refuse(user, f"users[{user_name}].user", REFUSED)
    server = str(cluster.get("server") or "").rstrip("/")
    if (wrong := BASE_URL.wrong(server)) is not None:
        field_name = f"clusters[{name}].cluster.server"
        raise BadManifest(f"kubeconfig: {field_name}: {wrong}", field=field_name)
    token = Token(text=str(user.get("token") or ""))
    if not (token.text.isascii() and token.text.isprintable()):  # no header could carry it
        field_name = f"users[{user_name}].user.token"
        raise BadManifest(f"kubeconfig: {field_name}: holds a character that no token has", field=field_name)
    if not token.text and user.get("tokenFile"):
        token = Token(path=user_base / str(user["tokenFile"]))
    tls = _tls(cluster, base, user, user_base) if server.startswith("https://") else None
    return Access(server, tls, token, str(context.get("namespace") or "default"))


@dataclass(slots=True)
class _Merged:
    """Several kubeconfig files as one."""

    current: str = ""
    read: int = 0
    found: dict[tuple[str, str], tuple[dict[str, Json], Path]] = field(default_factory=dict)

    def add(self, path: Path) -> None:
        try:
            said = yaml.safe_load(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return
        except (OSError, yaml.YAMLError, *MISREAD) as error:
            raise BadManifest(f"kubeconfig {path}: {error}") from error
        if not isinstance(said, dict):
            raise BadManifest(f"kubeconfig {path}: must be an object")
        self.read += 1
        self.current = self.current or str(said.get("current-context") or "")
        for section in ("contexts", "clusters", "users"):
            listed = said.get(section) or []
            if not isinstance(listed, list):
                raise BadManifest(f"kubeconfig {path}: {section}: must be a list", field=section)
            for one in listed:
                if isinstance(one, dict):
                    self.found.setdefault((section, str(one.get("name") or "")), (one, path.parent))

    def entry(self, section: str, inner: str, name: str) -> tuple[dict[str, Json], Path]:
        """The named entry's content, and the folder that its relative paths begin at."""
        if not name:
            raise BadManifest(
                "kubeconfig: no current-context, or it names no cluster", field="current-context"
            )
        one, base = self.found.get((section, name), ({}, Path()))
        content = one.get(inner)
        if not isinstance(content, dict):
            raise BadManifest(f"kubeconfig: {section} has no {name!r}", field=f"{section}[{name}]")
        return content, base


def _refuse(said: Mapping[str, Json], where: str, names: Sequence[str]) -> None:
    for name in names:
        if said.get(name):
            raise Unsupported(
                f"kubeconfig: {where}.{name} is not supported: use a client certificate, token or tokenFile"
                " (`kubectl create token`), or run in the cluster",
                field=f"{where}.{name}",
            )


def _tls(
    cluster: Mapping[str, Json], base: Path, user: Mapping[str, Json], user_base: Path
) -> ssl.SSLContext:
    authority = _pem(cluster, base, "certificate-authority")
    certificate, key = _pem(user, user_base, "client-certificate"), _pem(user, user_base, "client-key")
    if bool(certificate) != bool(key):
        raise BadManifest("kubeconfig: client-certificate and client-key go together", field="client-key")
    try:
        context = ssl.create_default_context(cadata=authority or None)
        if certificate:
            with (
                _file(certificate) as first,
                _file(key) as second,
            ):  # the ssl module takes them from files only
                context.load_cert_chain(first, second)
    except (ssl.SSLError, ValueError) as error:
        raise BadManifest(f"kubeconfig: a certificate or key is damaged: {error}") from error
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def _pem(said: Mapping[str, Json], base: Path, name: str) -> str:
    """Inline data goes before a file, as in kubectl."""
    try:
        if said.get(f"{name}-data"):
            return base64.b64decode(str(said[f"{name}-data"]), validate=True).decode("ascii")
        return (base / str(said[name])).read_text(encoding="ascii") if said.get(name) else ""
    except (OSError, binascii.Error, UnicodeDecodeError) as error:
        raise BadManifest(f"kubeconfig: {name}: {error}", field=name) from error


@contextmanager
def _file(text: str) -> Iterator[str]:
    with tempfile.NamedTemporaryFile("w", encoding="ascii", suffix=".pem") as file:
        file.write(text)
        file.flush()
        yield file.name
