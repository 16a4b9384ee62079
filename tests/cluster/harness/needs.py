"""Whether this machine can run a test's Kubernetes, and why not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

from tests.cluster.harness.cache import Part
from tests.cluster.harness.images import COREDNS_IMAGE, PAUSE_IMAGE, PYTHON_IMAGE
from tests.cluster.harness.packages import missing_packages
from tests.cluster.harness.programs import PARTS

PROGRAMS = ("kubebox", "pause", "netpol", "containerd", "coredns")


def why_no_api_server() -> str:
    """Empty: an API server can be had here."""
    return why_not("kube-apiserver", ("openssl", "setpriv"), [PARTS["kubebox"]])


def why_no_cluster() -> str:
    """Empty: a cluster can be had here, if it takes minutes to build."""
    parts = [*(PARTS[name] for name in PROGRAMS), PAUSE_IMAGE, COREDNS_IMAGE, PYTHON_IMAGE]
    if why := why_not("cluster", (), parts):
        return why
    if os.geteuid() != 0:
        return "a real cluster needs root"
    allowed = subprocess.run(
        ["unshare", "--net", "--mount", "--pid", "--fork", "true"], capture_output=True, check=False
    )
    if allowed.returncode != 0:
        return f"a real cluster needs namespaces: {allowed.stderr.decode('utf-8', 'replace').strip()}"
    packages = missing_packages()
    if packages and shutil.which("apt-get") is None:
        return f"a real cluster needs {', '.join(packages)}"
    return ""


def why_not(what: str, tools: tuple[str, ...], parts: list[Part]) -> str:
    if sys.platform != "linux":
        return f"a real {what} runs on Linux only"
    missing = [tool for tool in tools if shutil.which(tool) is None]
    if shutil.which("go") is None and not all(part.folder.exists() for part in parts):
        missing.append("go")
    return f"a real {what} needs {', '.join(missing)}" if missing else ""
