"""The programs of the cluster, from pinned Go sources. Cold, all of it takes under twenty minutes on two cores."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.cluster.harness.cache import HERE, Part, cache

KUBERNETES = "1.35.4"
LINK = "-s -w"
CONTROL_PLANE = ("etcd", "kubectl", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
COMPONENTS = (*CONTROL_PLANE, "kubelet", "kube-proxy", "fake-gpu-plugin")
CONTAINERD = tuple(
    f"github.com/containerd/containerd/v2/cmd/{name}@v2.4.2"
    for name in ("containerd", "containerd-shim-runc-v2", "ctr")
)
COREDNS = "github.com/coredns/coredns@v1.15.0"
HELM = "helm.sh/helm/v4/cmd/helm@v4.3.1"
KWOK = "sigs.k8s.io/kwok/cmd/kwok@v0.8.0"
PROMTOOL = "github.com/prometheus/prometheus/cmd/promtool"
"""Its version is in promtool/go.mod. (Its own go.mod excludes modules, and `go install` takes none that does.)"""
REGISTRY = "github.com/distribution/distribution/v3/cmd/registry@v3.1.2"
"""The reference registry of OCI, over a folder."""
VERSITYGW = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"
"""An S3 server over a folder."""
KUEUE = "sigs.k8s.io/kueue@v0.17.0"
KUEUE_FILES = ("config/components/crd/bases", "config/components/webhook/manifests.yaml")
"""Of its module: what is applied beside the program."""

LOCAL_PATH = "github.com/rancher/local-path-provisioner@v0.0.30"
GATEWAY_API = "sigs.k8s.io/gateway-api@v1.6.1"
GATEWAY_API_FILE = "config/crd/standard/gateway.networking.k8s.io_httproutes.yaml"
"""Of its module, which has no program."""


def go(*args: str, cwd: Path, **extra: str) -> None:
    """The go command with a build cache of its own, which is larger than the results and may be deleted at any time."""
    own = {
        "GOCACHE": str(cache() / "gocache"),
        "GOMODCACHE": str(cache() / "gomod"),
        "CGO_ENABLED": "0",
        "GOFLAGS": "-buildvcs=false",
        **extra,
    }
    command = ["nice", "-n", "10", "go", *args]
    subprocess.run(command, check=True, cwd=cwd, env={**os.environ, **own}, stdout=sys.stderr)


def built(module: str, link: str = "") -> Callable[[Path], None]:
    """The Go module in tests/cluster/`module`, as a program of that name."""

    def make(folder: Path) -> None:
        flags = ["-trimpath", "-ldflags", f"{LINK} {link}".strip()]
        go("build", *flags, "-o", str(folder / module), ".", cwd=HERE / module)

    return make


def installed(*packages: str) -> Callable[[Path], None]:
    """`package@version`, each a program, without a module of ours."""

    def make(folder: Path) -> None:
        for package in packages:
            go("install", "-trimpath", "-ldflags", LINK, package, cwd=folder, GOBIN=str(folder))

    return make


def make_promtool(folder: Path) -> None:
    """Without the clients of all the clouds whose machines Prometheus finds: half of the time."""
    flags = ["-tags", "remove_all_sd", "-trimpath", "-ldflags", LINK]
    go("build", *flags, "-o", str(folder / "promtool"), PROMTOOL, cwd=HERE / "promtool")


def make_kubebox(folder: Path) -> None:
    package = "k8s.io/component-base/version"
    major, minor, _ = KUBERNETES.split(".")
    # What clients ask the server for, and charts check.
    stamps = {"gitVersion": f"v{KUBERNETES}", "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    built("box", " ".join(f"-X {package}.{name}={value}" for name, value in stamps.items()))(folder)
    for component in COMPONENTS:
        (folder / component).symlink_to("box")


def make_kueue(folder: Path) -> None:
    """Its manager, and what its module has for the API server."""
    module, _, version = KUEUE.partition("@")
    installed(f"{module}/cmd/kueue@{version}")(folder)
    source = cache() / "gomod" / KUEUE
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
        Part("kubebox", make_kubebox, pins=(KUBERNETES, LINK), inputs=("box",)),
        Part("pause", built("pause"), inputs=("pause",)),
        Part("netpol", built("netpol"), inputs=("netpol",)),
        Part("containerd", installed(*CONTAINERD), pins=CONTAINERD),
        Part("coredns", installed(COREDNS), pins=(COREDNS,)),
        Part("gateway-api", make_gateway_api, pins=(GATEWAY_API, GATEWAY_API_FILE)),
        Part("local-path-provisioner", installed(LOCAL_PATH), pins=(LOCAL_PATH,)),
        Part("helm", installed(HELM), pins=(HELM,)),
        Part("kwok", installed(KWOK), pins=(KWOK,)),
        Part("kueue", make_kueue, pins=(KUEUE, *KUEUE_FILES)),
        Part("promtool", make_promtool, pins=(PROMTOOL, LINK), inputs=("promtool",)),
        Part("registry", installed(REGISTRY), pins=(REGISTRY,)),
        Part("versitygw", installed(VERSITYGW), pins=(VERSITYGW,)),
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
