"""Restarts: what a new driver concludes about sessions that it finds at a gateway. (pure)"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace

from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.session import SessionSummary
from sandgate.operator.observed.events import Recalled
from sandgate.operator.observed.remotes import is_remote
from sandgate.operator.plan.actions import (
    GroupObserved,
    JobWant,
    Ref,
    SampleObserved,
    SampleState,
    SessionObserved,
)

Recall = Callable[[Ref, SessionSummary], SessionObserved | None]
"""What is known of it; None for one that needs nothing any more."""


def lost(ref: Ref, said: SessionSummary) -> SessionObserved | None:
    """What had not ended is lost."""
    if said.state.ended:
        return None
    return SessionObserved(ref=ref, opened_at=said.created_at, summary=said, lost=True)


def of_job(want: JobWant, listed: Iterable[SessionSummary]) -> Iterator[tuple[Ref, SessionSummary]]:
    """Those that are the job's, attempt after attempt; what a person applied is `called` by its own name."""
    for said in sorted(listed, key=lambda one: (one.uid, one.sample_index, one.attempt)):
        if said.job != want.name:
            continue
        if is_remote(said):
            yield Ref(said.job, said.uid, said.sample_index, said.attempt, said.session_id), said
            continue
        ref = Ref(said.job, said.uid, said.sample_index, said.attempt)
        if 0 <= said.sample_index < want.spec.group_size and said.session_id == ref.name:
            yield ref, said


def recalled(want: JobWant, listed: Iterable[SessionSummary], recall: Recall = lost) -> tuple[Recalled, ...]:
    """The job's sessions of those that a gateway lists, and what is known of each."""
    return tuple(Recalled(ref, said, recall(ref, said)) for ref, said in of_job(want, listed))


def regained(group: GroupObserved, again: Collection[tuple[str, int]]) -> GroupObserved:
    """The group as a new driver goes on with it: those of its samples (uid, index) that are to be tried `again`, as if
    they had not failed yet, their attempts counted on; closed, if stragglers were cut."""
    samples = tuple(
        SampleObserved(attempt=one.attempt)
        if one.state is SampleState.ENDED and (group.uid, index) in again
        else one
        for index, one in enumerate(group.samples)
    )
    cut = any(one.reason is FailureReason.STRAGGLER for one in samples)
    return replace(group, samples=samples, closed=group.closed or cut)
