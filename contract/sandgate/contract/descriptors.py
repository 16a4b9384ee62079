"""File descriptors of this process: how many it may have, and had when it began. Many systems give 1,024, and let a
program raise that by itself; they do not raise it for all, as select() cannot name a descriptor of 1,024 or more."""

from __future__ import annotations

import resource

_before: dict[int, int] = {}
"""A soft limit that was set here -> what it was at first."""


def raise_to(needed: int) -> int:
    """Raises the soft limit of this process to what is needed, as far as the hard one lets it. Returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if not _enough(soft, needed):
        first, soft = given(), needed if _enough(hard, needed) else hard
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        _before[soft] = first
    return soft


def most() -> int | None:
    """How many this process may have at most; None: no limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def given() -> int:
    """The soft limit that this process had before it raised it: what programs that it starts expect."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _before.get(soft, soft)


def _enough(limit: int, needed: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= needed
