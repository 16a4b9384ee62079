"""How long sessions' keys last, and whether keys that were made earlier last for a session that begins now. (pure)"""

from __future__ import annotations

from sandgate.operator.cluster.job_state import JobState
from sandgate.operator.plan.session import WAITS_S

KEY_MARGIN_S = 86_400.0
"""Keys outlive their session's longest life by this: a gateway may be away, a group may wait for its verifier."""
AT_LEAST_S = WAITS_S
"""The same of keys that a session finds: less, so that siblings that are opened one after the other share them."""


def key_life(at: JobState) -> float:
    """Seconds that keys made now are good for."""
    return KEY_MARGIN_S + _session(at)


def outlive(at: JobState, expires_at: float) -> bool:
    """Whether keys that expire then (unix seconds) outlive a session that begins now."""
    return expires_at >= at.now() + AT_LEAST_S + _session(at)


def _session(at: JobState) -> float:
    limits = at.job.spec.limits
    return limits.start_seconds + limits.session_seconds
