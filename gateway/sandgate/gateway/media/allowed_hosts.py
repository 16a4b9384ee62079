"""Addresses of images: how an agent's URL is read, whether its host is listed, and where a host's name may lead. (pure)

A URL is taken apart here only, and put together again of these parts: what is checked is what is asked for.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from hashlib import blake2b
from urllib.parse import quote

from sandgate.contract.errors import InvalidBody, Unsupported
from sandgate.contract.media_hosts import PORTS, Origin, origin_of, plain

CHARS_MAX = 4096
"""Of an address; signed ones of object stores have up to 2,000."""
_URL = re.compile(r"(https?)://([^/?#\\]*)([^#]*)(#.*)?", re.IGNORECASE)
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:@%\s]+)(?::([0-9]{1,5}))?")
_UNPRINTABLE = re.compile(r"[\x00-\x20\x7f-\x9f\\]")
_KEPT = "%/?:@!$&'()*+,;=-._~[]|"
"""Of path and query; the rest is percent-encoded."""
METADATA = frozenset(
    map(ipaddress.ip_address, ("100.100.100.200", "168.63.129.16", "192.0.0.192", "fd00:ec2::254"))
)
"""Of clouds, where they are not link-local."""
_NAT64 = ipaddress.ip_network("64:ff9b::/96")
_SHARED = ipaddress.ip_network("100.64.0.0/10")
Ip = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Address:
    """Where an image is."""

    origin: Origin
    target: str
    """Path and query, as they are sent."""

    def __str__(self) -> str:
        return f"{self.origin}{self.target}"

    @property
    def key(self) -> bytes:
        """The same for every spelling of it."""
        return blake2b(str(self).encode(), digest_size=16).digest()


def is_address(url: str) -> bool:
    """Whether the URL names a place on the net, rather than having its data in it."""
    return url[:8].lower().startswith(("http://", "https://"))


def address_of(url: str, field: str) -> Address:
    """The address. Raises InvalidBody with this field: no http(s) URL, or one with a user, a fragment of a host, or
    control characters."""
    if len(url) > CHARS_MAX:
        raise InvalidBody(f"{field}: an address has at most {CHARS_MAX} characters", field=field)
    parts = None if _UNPRINTABLE.search(url) else _URL.fullmatch(url)
    authority = parts and _AUTHORITY.fullmatch(parts[2])
    if parts is None or authority is None:
        raise InvalidBody(
            f"{field} is no address of the form https://images.example.com/a.png (no user, no blanks, no backslashes)",
            field=field,
        )
    scheme = parts[1].lower()
    port = int(authority[2]) if authority[2] else PORTS[scheme]
    path = parts[3] if parts[3].startswith("/") else f"/{parts[3]}"
    try:
        return Address(Origin(scheme, _host(authority[1]), port), quote(path, safe=_KEPT))
    except (ValueError, UnicodeError):
        raise InvalidBody(f"{field}: its host is no name, and no address", field=field) from None


def _host(text: str) -> str:
    """The host's one spelling: lower case, international names as xn--. Raises ValueError."""
    if text.startswith("["):
        return plain(text[1:-1])
    return text.lower() if text.isascii() else text.encode("idna").decode().lower()


@dataclass(frozen=True, slots=True)
class AllowedHosts:
    """Which addresses are fetched."""

    origins: frozenset[Origin] = frozenset()
    private: bool = False
    """Names may lead to private addresses."""

    def check(self, address: Address, field: str) -> None:
        """Raises Unsupported with this field: nothing is fetched from there."""
        if address.origin not in self.origins:
            raise Unsupported(
                f"{field}: no image is fetched from {str(address.origin)[:300]}, which spec.gateway.media.allowedHosts "
                "(media.allowed_hosts in a gateway's own settings) does not list; send the image as a data URL "
                "(data:image/png;base64,...)",
                field=field,
            )

    def refused(self, ips: Iterable[str]) -> str | None:
        """The first of these addresses, which a name stands for, that is not connected to."""
        return next((ip for ip in ips if not _open(ipaddress.ip_address(ip), self.private)), None)


def allowed_hosts(entries: Iterable[str], *, private: bool = False) -> AllowedHosts:
    """Of a configuration. Raises ValueError."""
    return AllowedHosts(frozenset(map(origin_of, entries)), private)


def _open(ip: Ip, private: bool) -> bool:
    """Whether a name may lead there. An address that has another one in it leads to that."""
    if isinstance(ip, ipaddress.IPv6Address):
        inner = ip.ipv4_mapped or ip.sixtofour or (ip.teredo[1] if ip.teredo else None)
        if ip in _NAT64:
            inner = ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
        if inner is not None:
            return _open(inner, private)
        if ip.scope_id:
            return False
    if ip in METADATA or ip.is_multicast or ip.is_loopback or ip.is_link_local or ip.is_unspecified:
        return False
    if ip.is_global:
        return True
    inside = ip.is_private or (isinstance(ip, ipaddress.IPv4Address) and ip in _SHARED)
    return private and inside and not ip.is_reserved
