"""What a test cluster is made of, built from source once for each state of its inputs and cached outside the clone.

`ensure(NAME)` gives the folder of one part and builds it when it is missing. Several processes may ask at once: one
builds, the others wait for it. Cold, on two cores, a whole cluster takes about twenty minutes; then milliseconds.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parents[1]
KUBERNETES = "1.35.4"
GO_LINK = "-s -w"
APT = {
    "runc": "runc",
    "buildah": "buildah",
    "nft": "nftables",
    "iptables": "iptables",
    "debootstrap": "debootstrap",
    "conntrack": "conntrack",
    "socat": "socat",
    "ip": "iproute2",
}
"""Command -> Debian package. CNI plugins have no command of their own on PATH: see `missing_packages`."""
CNI_PLUGINS = Path("/usr/lib/cni")
COMPONENTS = (
    "etcd kubectl kube-apiserver kube-controller-manager kube-scheduler kubelet kube-proxy fake-gpu-plugin"
).split()


def cache() -> Path:
    """Everything that was built; safe to delete while no cluster runs."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "sandgate" / "cluster"


@dataclass(frozen=True)
class Part:
    """`make(folder)` fills the folder. A change of `pins` or of the text of `inputs` makes a new one."""

    make: Callable[[Path], None]
    pins: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    needs: tuple[str, ...] = field(default=())

    def key(self) -> str:
        """Of the parts it is made from too."""
        digest = hashlib.sha256("\0".join(self.pins).encode())
        for path in sorted(file for name in self.inputs for file in files(HERE / name)):
            digest.update(f"\0{path.relative_to(HERE)}\0".encode() + path.read_bytes())
        for name in self.needs:
            digest.update(PARTS[name].key().encode())
        return digest.hexdigest()[:12]


def files(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    yield from (file for file in path.rglob("*") if file.is_file())


def folder_of(name: str) -> Path:
    """Where a part is, or will be."""
    return cache() / f"{name}-{PARTS[name].key()}"


def ensure(name: str) -> Path:
    """The folder of a part, built now when it is missing. Raises CalledProcessError; what was said is on stderr."""
    folder = folder_of(name)
    if folder.exists():
        return folder
    for other in PARTS[name].needs:
        ensure(other)
    with locked(cache() / f"{name}.lock"):
        if not folder.exists():
            print(f"building {name} for the test cluster: {folder}", file=sys.stderr, flush=True)
            unfinished = folder.with_name(f"{folder.name}.unfinished")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir(parents=True)
            PARTS[name].make(unfinished)
            unfinished.rename(folder)
    return folder


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time; the lock ends with the process, however it ends."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def go(*args: str, cwd: Path, **extra: str) -> None:
    """The go command with a build cache of its own, which is larger than the results and may be deleted at any time."""
    environment = {
        **os.environ,
        "GOCACHE": str(cache() / "gocache"),
        "CGO_ENABLED": "0",
        "GOFLAGS": "-buildvcs=false",
        **extra,
    }
    subprocess.run(["nice", "-n", "10", "go", *args], check=True, cwd=cwd, env=environment, stdout=sys.stderr)


def go_build(module: str, link: str = "") -> Callable[[Path], None]:
    """Build the module in folder `module` of this folder into a binary of that name."""

    def make(folder: Path) -> None:
        flags = ["-trimpath", "-ldflags", f"{GO_LINK} {link}".strip()]
        go("build", *flags, "-o", str(folder / module), ".", cwd=HERE / module)

    return make


def go_install(*packages: str) -> Callable[[Path], None]:
    """Install `package@version`, each a binary, without a module of ours."""

    def make(folder: Path) -> None:
        for package in packages:
            go("install", "-trimpath", "-ldflags", GO_LINK, package, cwd=folder, GOBIN=str(folder))

    return make


def kubebox(folder: Path) -> None:
    version = "k8s.io/component-base/version"
    major, minor, _ = KUBERNETES.split(".")
    stamps = {
        "gitVersion": f"v{KUBERNETES}",
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
    }
    go_build("box", " ".join(f"-X {version}.{name}={value}" for name, value in stamps.items()))(folder)
    for component in COMPONENTS:
        (folder / component).symlink_to("box")


CONTAINERD = tuple(
    f"github.com/containerd/containerd/v2/cmd/{name}@v2.4.2"
    for name in ("containerd", "containerd-shim-runc-v2", "ctr")
)
COREDNS = "github.com/coredns/coredns@v1.15.0"
HELM = "helm.sh/helm/v4/cmd/helm@v4.3.1"
KWOK = "sigs.k8s.io/kwok/cmd/kwok@v0.8.0"

PARTS = {
    "kubebox": Part(kubebox, pins=(KUBERNETES, GO_LINK), inputs=("box",)),
    "pause": Part(go_build("pause"), inputs=("pause",)),
    "containerd": Part(go_install(*CONTAINERD), pins=CONTAINERD),
    "coredns": Part(go_install(COREDNS), pins=(COREDNS,)),
    "helm": Part(go_install(HELM), pins=(HELM,)),
    "kwok": Part(go_install(KWOK), pins=(KWOK,)),
}


def binary(name: str) -> Path:
    """A program of the cluster, built when it is missing."""
    for part, programs in PROGRAMS.items():
        if name in programs:
            return ensure(part) / name
    raise KeyError(name)


PROGRAMS = {
    "kubebox": COMPONENTS,
    "pause": ["pause"],
    "containerd": ["containerd", "containerd-shim-runc-v2", "ctr"],
    "coredns": ["coredns"],
    "helm": ["helm"],
    "kwok": ["kwok"],
}


def missing_packages() -> list[str]:
    """Debian packages that a whole cluster needs and that are not here."""
    found = [package for command, package in APT.items() if shutil.which(command, path=SYSTEM_PATH) is None]
    if not (CNI_PLUGINS / "bridge").exists():
        found.append("containernetworking-plugins")
    return found


SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def install_packages() -> None:
    """With apt, when some are missing. Raises CalledProcessError."""
    if packages := missing_packages():
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update", "-q"], ["install", "-q", "-y", "--no-install-recommends", *packages]):
            subprocess.run(["apt-get", *command], check=True, env=quiet, stdout=sys.stderr)
