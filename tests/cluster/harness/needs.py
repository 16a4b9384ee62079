"""Whether this machine can run a test's Kubernetes, and why not."""

from __future__ import annotations

import shutil
import sys

from tests.cluster.harness.build import folder_of

TOOLS = ("openssl", "setpriv", "nice")


def why_no_api_server() -> str:
    """Empty: an API server can be had here."""
    if sys.platform != "linux":
        return "a real kube-apiserver is started on Linux only"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if not folder_of("kubebox").exists() and shutil.which("go") is None:
        missing.append("go")
    return f"a real kube-apiserver needs {', '.join(missing)}" if missing else ""
