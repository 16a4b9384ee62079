"""On which machines engines are, as the operator says, to count the turns that cross no network. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit


class SameNode(StrEnum):
    """Whether an engine is on its gateway's machine."""

    TRUE = "true"
    FALSE = "false"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class EngineNodes:
    """Of one gateway. Nothing is decided by it, so that it is in no journal: after a restart it is told again."""

    own: str = ""
    """The gateway's node; empty = not known."""
    of: dict[str, str] = field(default_factory=dict)
    """Engine's URL -> its node."""

    def told(self, nodes: Mapping[str, str]) -> None:
        """All that is known from now on."""
        self.of = {url.rstrip("/"): node for url, node in nodes.items() if node}

    def same(self, url: str) -> SameNode:
        """Whether the engine at `url` is here. Unknown also for a turn that was cut, which names no engine."""
        node = self.of.get(url)
        if node and self.own:
            return SameNode.TRUE if node == self.own else SameNode.FALSE
        return SameNode.TRUE if _loopback(url) else SameNode.UNKNOWN


@lru_cache(1_024)
def _loopback(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
