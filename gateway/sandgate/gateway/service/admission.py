"""Admission of turns: limits on generations in flight, per process and per session; none while draining. (pure)"""

from __future__ import annotations

from dataclasses import dataclass

from sandgate.contract.errors import Draining, Overloaded

RETRY_AFTER_S = 1.0
"""Seconds until a refused client may ask again: a turn takes about a second on a busy engine; sooner only adds load."""


@dataclass(slots=True)
class Load:
    """Counts that turns reserve before their first await and release on every path."""

    in_flight: int = 0
    draining: bool = False
    paused: bool = False


def refuse(load: Load, *, limit: int, session_in_flight: int, session_limit: int, asked: int) -> None:
    """Raises Draining or Overloaded if `asked` more generations may not start; a pause holds, it does not refuse."""
    if load.draining:
        raise Draining("the gateway is shutting down", retry_after=2.0)
    if load.in_flight + asked > limit:
        raise Overloaded(f"{load.in_flight} generations in flight, limit {limit}", retry_after=RETRY_AFTER_S)
    if session_in_flight + asked > session_limit:
        raise Overloaded(
            f"{session_in_flight} generations in flight in this session, limit {session_limit}",
            retry_after=RETRY_AFTER_S,
        )
