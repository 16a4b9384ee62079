"""How long keys last: sessions' keys, those made earlier of sessions that begin now, and trainers'."""

from __future__ import annotations

from math import ceil, inf
from zlib import crc32

from sandgate.operator.cluster.job_state import JobState
from sandgate.operator.plan.session import WAITS_S, longest_start

KEY_MARGIN_S = 86_400.0
"""Keys outlive their session's longest life by this: a gateway may be away, a group may wait for its verifier."""
AT_LEAST_S = WAITS_S + 3_600.0
"""The same of keys that a session or a verifier finds: less, so that siblings that are opened one after the other share
them; more than a pod waits for room."""


def key_life(at: JobState) -> float:
    """Seconds that keys made now are good for."""
    return KEY_MARGIN_S + _session(at)


def session_needs(at: JobState) -> float:
    """When keys of a session that begins now may expire, in unix seconds, and not before."""
    return at.now() + AT_LEAST_S + _session(at)


def verifier_needs(at: JobState) -> float:
    """The same of a verifier that begins now: it may be days after its agent, as its operator was away."""
    verifier = at.job.spec.reward.verifier
    return (
        at.now() + AT_LEAST_S + longest_start(at.job.spec) + (verifier.seconds if verifier is not None else 0)
    )


def spread(job_uid: str) -> float:
    """In [0, 1), another for each job: so that not all do something at once."""
    return crc32(job_uid.encode()) / 2**32


def trainer_key_span(job_uid: str, seconds: int, now: float) -> tuple[float, float]:
    """Of a trainer's key that is made at `now`: when it expires, and when the next is to be made, in unix seconds.

    Both are the same for half of `seconds`, so that making it again makes the same key: it is good for half of that to
    all of it. Each job changes at a time of its own. (0.0, inf) for `seconds` 0: one that never expires."""
    if not seconds:
        return 0.0, inf
    half = seconds / 2
    shift = spread(job_uid) * half
    turn = (now - shift) // half
    return ceil(shift + (turn + 2) * half), shift + (turn + 1) * half


def _session(at: JobState) -> float:
    return longest_start(at.job.spec) + at.job.spec.limits.session_seconds
