"""What a gateway says of its engines: how many take turns, and why none does. (pure)"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from sandgate.contract.exits import one_line

SAID_MAX = 3
"""Engines whose error a status names."""


class Answering(NamedTuple):
    """What a gateway says of its engines."""

    urls: set[str]
    """The set that it has."""
    healthy: int
    """How many of them answer."""
    why: str
    """Why none does; empty if one does."""
    nodes: dict[str, str] | None = None
    """Engine -> node, as it was told; None: a gateway of an older version, which does not say."""


def answering(status: Mapping[str, Any]) -> Answering:
    """From a gateway's GET /v1/status."""
    listed = [one for one in status.get("engines") or () if isinstance(one, Mapping)]
    healthy = sum(bool(one.get("healthy")) for one in listed)
    says = all("node" in one for one in listed)
    nodes = {str(one.get("url")): str(one["node"]) for one in listed if one["node"]} if says else None
    return Answering({str(one.get("url")) for one in listed}, healthy, "" if healthy else _why(listed), nodes)


def weights_missing(status: Mapping[str, Any]) -> bool:
    """Its engines answer, and none is used before a trainer has made its weight update: they were started anew."""
    listed = [one for one in status.get("engines") or () if isinstance(one, Mapping)]
    return bool(listed) and all(one.get("unlabelled") for one in listed)


def _why(listed: Sequence[Mapping[str, Any]]) -> str:
    if not listed:
        return "no engine's pod is ready"
    said = [f"{one.get('url')}: {one.get('detail') or 'not asked yet'}" for one in listed[:SAID_MAX]]
    more = len(listed) - len(said)
    return one_line("; ".join([*said, f"and {more} more"] if more else said))
