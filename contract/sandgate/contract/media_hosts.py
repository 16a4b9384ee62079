"""Hosts from which gateways may fetch images: how a manifest writes them, and what each entry allows. (pure)"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sandgate.contract.kinds import PORT

PORTS: Final = {"https": 443, "http": 80}
_OCTET: Final = r"(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_LABEL: Final = r"[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?"
_LAST: Final = r"[A-Za-z]([A-Za-z0-9-]*[A-Za-z0-9])?"
"""A name's last label begins with a letter, so that no other spelling of an address (127.1, 2130706433) is a name."""
PATTERN: Final = (
    rf"^(https?://)?(\[[0-9A-Fa-f:.]{{2,45}}\]|{_OCTET}(\.{_OCTET}){{3}}|({_LABEL}\.)*{_LAST})(:({PORT}))?$"
)
SAYS: Final = (
    "a host such as images.example.com, with :PORT if it is not 443, and http:// in front if it has no TLS"
)
_ENTRY: Final = re.compile(PATTERN.removeprefix("^").removesuffix("$"))


@dataclass(frozen=True, slots=True)
class Origin:
    """One host, port and scheme."""

    scheme: str
    host: str
    """In lower case; of an IPv6 address its shortest form, without brackets."""
    port: int

    @property
    def ip(self) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
        """The address, where the host is one."""
        try:
            return ipaddress.ip_address(self.host)
        except ValueError:
            return None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}" + ("" if self.port == PORTS[self.scheme] else f":{self.port}")


def origin_of(entry: str) -> Origin:
    """What an entry allows. Raises ValueError."""
    if _ENTRY.fullmatch(entry) is None:
        raise ValueError(f"{entry[:100]!r} is not {SAYS}")
    scheme, _, rest = entry.rpartition("://")
    scheme = scheme or "https"
    host, _, port = (
        rest[1:].partition("]")
        if rest.startswith("[")
        else (rest.partition(":")[0], "", rest.partition(":")[2])
    )
    return Origin(scheme, plain(host), int(port.removeprefix(":") or PORTS[scheme]))


def plain(host: str) -> str:
    """A host's one spelling. Raises ValueError for an IPv6 address that is none."""
    return str(ipaddress.IPv6Address(host)) if ":" in host else host.lower()


def first_wrong(entries: Sequence[str]) -> tuple[str, str] | None:
    """(which entry, what is wrong with it), or None."""
    for index, entry in enumerate(entries):
        try:
            origin_of(entry)
        except ValueError as error:
            return f"[{index}]", str(error)
    return None
