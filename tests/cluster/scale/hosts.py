"""Names of the cluster on this host: an /etc/hosts that only the processes started here see. Needs root.

The operator and the gateways are started as in their pods, and find each other by the names that they have there.
"""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Sequence
from pathlib import Path

PORT = 8000
"""Of everything that speaks HTTP in a job."""
ADDRESSES = 250
_ENTER = 'mount --bind "$0" /etc/hosts && exec setpriv --pdeathsig KILL -- "$@"'


def why_no_hosts() -> str:
    """Empty: processes can have names of their own here."""
    if os.geteuid() != 0:
        return "names of its own need root"
    allowed = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    return "" if allowed.returncode == 0 else "names of its own need mount namespaces"


class Hosts:
    """Addresses of loopback, a network of its own each, so that several may have port 8000."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.file.write_text("127.0.0.1 localhost\n")
        self._network = f"127.{secrets.randbelow(254) + 1}.{secrets.randbelow(256)}"
        self._known: dict[str, str] = {}

    def address(self, name: str) -> str:
        """The address that has this name from now on, also for processes that run."""
        if name not in self._known:
            assert len(self._known) < ADDRESSES, "a network has so many addresses"
            self._known[name] = f"{self._network}.{len(self._known) + 2}"
            with self.file.open("a") as file:  # not replaced: it is mounted elsewhere
                file.write(f"{self._known[name]} {name}\n")
        return self._known[name]

    def command(self, argv: Sequence[str]) -> list[str]:
        """`argv` where these names are known; it ends with this thread."""
        return ["unshare", "--mount", "sh", "-c", _ENTER, str(self.file), *argv]
