"""The programs of the cluster, from pinned Go sources. Cold, all of it takes 13 minutes on two idle cores."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from tests.cluster.harness.cache import HERE, Part, cache

KUBERNETES = "1.35.4"
LINK = "-s -w"
COMPILE = "all=-dwarf=false"
"""Nor what a debugger wants before it is linked: a tenth of the compilers' time. Stack traces need none of it."""
CONTROL_PLANE = ("etcd", "kubectl", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
COMPONENTS = (*CONTROL_PLANE, "kubelet", "kube-proxy", "fake-gpu-plugin")
CONTAINERD = tuple(
    f"github.com/containerd/containerd/v2/cmd/{name}"
    for name in ("containerd", "containerd-shim-runc-v2", "ctr")
)
REGISTRY = "github.com/distribution/distribution/v3/cmd/registry"
"""The reference registry of OCI, over a folder."""
VERSITYGW = "github.com/versity/versitygw/cmd/versitygw"
"""An S3 server over a folder."""
KUEUE = "sigs.k8s.io/kueue"
KUEUE_FILES = ("config/components/crd/bases", "config/components/webhook/manifests.yaml")
"""Of its module: what is applied beside the program."""

BOX, PROGRAMS = "box", "programs"
"""Our modules (below tests/cluster). What programs of one module share is compiled once, at one version, which is in
its go.mod: Kueue stands beside the Kubernetes that it is made for, the others have a newer one."""
GATEWAY_API = "sigs.k8s.io/gateway-api@v1.6.1"
GATEWAY_API_FILE = "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml"
"""Of its module, which has no program."""


def go(*args: str, cwd: Path) -> str:
    """The go command with a build cache of its own, which is larger than the results and may be deleted at any time.
    What it prints."""
    own = {
        "GOCACHE": str(cache() / "gocache"),
        "GOMODCACHE": str(cache() / "gomod"),
        "CGO_ENABLED": "0",
        "GOFLAGS": "-buildvcs=false",
        "GOGC": "400",  # a tenth less of the compilers' time, for memory that is there
    }
    command = ["nice", "-n", "10", "go", *args]
    done = subprocess.run(
        command, check=True, cwd=cwd, env={**os.environ, **own}, stdout=subprocess.PIPE, text=True
    )
    return done.stdout


def built(module: str, *packages: str, link: str = "", tags: str = "") -> Callable[[Path], None]:
    """Packages of the Go module in tests/cluster/`module`, or that it needs, each a program of its folder's name."""

    def make(folder: Path) -> None:
        flags = ["-trimpath", "-gcflags", COMPILE, "-ldflags", f"{LINK} {link}".strip(), "-tags", tags]
        go("build", *flags, "-o", f"{folder}/", *packages, cwd=HERE / module)

    return make


def program(name: str, *packages: str, inputs: tuple[str, ...] = (), tags: str = "") -> Part:
    """A part of the module of programs."""
    versions = (f"{PROGRAMS}/go.mod", f"{PROGRAMS}/go.sum")
    return Part(
        name,
        built(PROGRAMS, *packages, tags=tags),
        pins=(*packages, tags, COMPILE, LINK),
        inputs=(*versions, *inputs),
    )


def make_kubebox(folder: Path) -> None:
    package = "k8s.io/component-base/version"
    major, minor, _ = KUBERNETES.split(".")
    # What clients ask the server for, and charts check.
    stamps = {"gitVersion": f"v{KUBERNETES}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    link = " ".join(f"-X {package}.{name}={value}" for name, value in stamps.items())
    built(BOX, ".", link=link)(folder)
    for component in COMPONENTS:
        (folder / component).symlink_to("box")


def make_kueue(folder: Path) -> None:
    """Its manager, and what its module has for the API server."""
    built(BOX, f"{KUEUE}/cmd/kueue")(folder)
    source = Path(go("list", "-m", "-f", "{{.Dir}}", KUEUE, cwd=HERE / BOX).strip())
    for name in KUEUE_FILES:
        if (source / name).is_dir():
            shutil.copytree(source / name, folder / "crds")
            (folder / "crds").chmod(0o755)  # a module's folders cannot be written, and so not removed
        else:
            shutil.copyfile(source / name, folder / "webhooks.yaml")


def make_gateway_api(folder: Path) -> None:
    """Its definition of HTTPRoute, alone."""
    go("mod", "download", GATEWAY_API, cwd=folder)
    shutil.copyfile(cache() / "gomod" / GATEWAY_API / GATEWAY_API_FILE, folder / "httproutes.yaml")


PARTS = {
    part.name: part
    for part in (
        Part("kubebox", make_kubebox, pins=(KUBERNETES, COMPILE, LINK), inputs=(BOX,)),
        Part("pause", built("pause", "."), inputs=("pause",)),
        program("netpol", "./netpol", inputs=(f"{PROGRAMS}/netpol",)),
        program("containerd", *CONTAINERD),
        program("coredns", "github.com/coredns/coredns"),
        Part("gateway-api", make_gateway_api, pins=(GATEWAY_API, GATEWAY_API_FILE)),
        program("local-path-provisioner", "github.com/rancher/local-path-provisioner"),
        program("helm", "helm.sh/helm/v4/cmd/helm"),
        program("kwok", "sigs.k8s.io/kwok/cmd/kwok"),
        Part("kueue", make_kueue, pins=(KUEUE, *KUEUE_FILES), inputs=(f"{BOX}/go.mod", f"{BOX}/go.sum")),
        # Without the clients of all the clouds whose machines Prometheus finds: half of the time.
        program("promtool", "github.com/prometheus/prometheus/cmd/promtool", tags="remove_all_sd"),
        program("registry", REGISTRY),
        program("versitygw", VERSITYGW),
    )
}
IN = {
    **dict.fromkeys(COMPONENTS, "kubebox"),
    **dict.fromkeys(("containerd", "containerd-shim-runc-v2", "ctr"), "containerd"),
}
"""Program -> part, where the names differ."""


def binary(name: str) -> Path:
    """A program of the cluster, built when it is missing; and helm, kwok, kueue, promtool, registry, versitygw."""
    return PARTS[IN.get(name, name)].ensure() / name
