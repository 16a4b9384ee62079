"""File descriptors of this process: how many it may have, and had when it began. Many systems give 1,024, and let a
program raise that by itself; they do not raise it for all, as select() cannot name a descriptor of 1,024 or more."""

from __future__ import annotations

import resource

_given = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
"""The soft limit when this was loaded: what others set later is theirs."""


def raise_to(needed: int) -> int:
    """Raises the soft limit of this process to what is needed, as far as the hard one lets it. Returns it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if not _enough(soft, needed):
        soft = needed if _enough(hard, needed) else hard
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return soft


def most() -> int | None:
    """How many this process may have at most; None: no limit."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    return None if hard == resource.RLIM_INFINITY else hard


def given() -> int:
    """The soft limit that this process was given, whoever raised it since: what programs that it starts expect. The
    hard one may be lower by now."""
    return _given


def _enough(limit: int, needed: int) -> bool:
    return limit == resource.RLIM_INFINITY or limit >= needed
