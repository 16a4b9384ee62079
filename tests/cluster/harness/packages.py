"""What a whole cluster takes from Debian."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

COMMANDS = {
    "runc": "runc",
    "buildah": "buildah",
    "nft": "nftables",
    "iptables": "iptables",
    "debootstrap": "debootstrap",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "nsenter": "util-linux",
    "openssl": "openssl",
}
"""Command -> package."""
CNI_PLUGINS = Path("/usr/lib/cni")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def missing_packages() -> list[str]:
    """Not here yet."""
    found = [package for command, package in COMMANDS.items() if not shutil.which(command, path=SYSTEM_PATH)]
    if not (CNI_PLUGINS / "ptp").exists():
        found.append("containernetworking-plugins")
    return found


def install_packages() -> None:
    """With apt, when some are missing. Raises CalledProcessError."""
    if packages := missing_packages():
        quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update", "-q"], ["install", "-q", "-y", "--no-install-recommends", *packages]):
            subprocess.run(["apt-get", *command], check=True, env=quiet, stdout=sys.stderr)
