"""Reads all sessions that a gateway holds of a job, and remembers no more of each than is needed, within a bound."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Protocol

from sandgate.contract.errors import InvalidBody
from sandgate.contract.session import SessionSummary
from sandgate.operator.observed.remotes import METADATA, is_remote

KEPT_MAX = 4 << 30
"""Bytes of one listing, about: five million sessions. A gateway that somebody took over tells of more, or of such as
take more, and the memory is that of all jobs."""
EACH = 700
"""Of them for a session beside its texts."""


class Client(Protocol):
    """A gateway's."""

    def sessions(self, *, job: str) -> AsyncIterator[SessionSummary]: ...


async def all_sessions(client: Client, job: str) -> list[SessionSummary]:
    """In order of id. Raises InvalidBody where it is more than a gateway holds."""
    found: list[SessionSummary] = []
    kept = 0
    async for said in client.sessions(job=job):
        said = _slim(said, job) if said.retired else said
        kept += EACH + _texts(said)
        if kept > KEPT_MAX:
            raise InvalidBody(f"a list of {len(found)} sessions and more is refused", field="sessions")
        found.append(said)
    return found


def _slim(said: SessionSummary, job: str) -> SessionSummary:
    """Of one that is retired only the end counts; what is alike in all of them is kept once."""
    return replace(
        said,
        job=job if said.job == job else said.job,
        forks=_NOTHING,
        metadata=_REMOTE if is_remote(said) else _NOTHING,
        complete_info=None,
    )


def _texts(said: SessionSummary) -> int:
    if not said.retired:
        return len(repr(said))
    return len(said.session_id) + len(said.uid) + len(said.failure_detail) + len(said.engine_error)


_NOTHING: dict[str, int] = {}
_REMOTE = dict(METADATA)
