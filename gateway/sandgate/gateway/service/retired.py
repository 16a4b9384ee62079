"""Retired sessions: the line that stays of each in the journal, and the session as the line tells it. (pure)"""

from __future__ import annotations

from sandgate.gateway.journal.records import RETIRED_DETAIL_CHARS, Retired, Sealed
from sandgate.gateway.service.session import Session, SessionPhase

FLAGS_MAX, FLAG_CHARS_MAX = 4, 32
"""Of metadata in a line: anybody may have chosen it."""


def line_of(session: Session, *, acked: bool) -> Retired:
    """Of an ended session."""
    spec, sealed = session.spec, session.sealed
    flags = (name for name, value in (spec.get("metadata") or {}).items() if value is True)
    return Retired(
        schema=11,
        at=session.changed_at,
        job=spec.get("job") or "",
        uid=spec.get("uid") or "",
        sample=int(spec.get("sample_index") or 0),
        attempt=int(spec.get("attempt") or 0),
        size=int(spec.get("group_size") or 1),
        opened=session.opened_at,
        aborted=session.phase is SessionPhase.ABORTED,
        acked=acked,
        turns=session.turns,
        tokens=session.tokens,
        reward=session.reward,
        failure_class=sealed.failure_class if sealed else None,
        failure_reason=sealed.failure_reason if sealed else None,
        detail=sealed.detail[:RETIRED_DETAIL_CHARS] if sealed else "",
        flags=tuple(name for name in flags if len(name) <= FLAG_CHARS_MAX)[:FLAGS_MAX],
    )


def session_of(session_id: str, line: Retired) -> Session:
    """It has ended, and has no turns to show."""
    sealed = Sealed(
        at=line.at,
        aborted=line.aborted,
        failure_class=line.failure_class,
        failure_reason=line.failure_reason,
        detail=line.detail,
        reward=line.reward,
    )
    return Session(
        session_id,
        spec={
            "job": line.job,
            "uid": line.uid,
            "sample_index": line.sample,
            "attempt": line.attempt,
            "group_size": line.size,
            "metadata": dict.fromkeys(line.flags, True),
        },
        opened_at=line.opened,
        changed_at=line.at,
        phase=SessionPhase.ABORTED if line.aborted else SessionPhase.FINALIZED,
        sealed=sealed,
        turns=line.turns,
        tokens=line.tokens,
        evicted=True,
        retired=line,
    )
