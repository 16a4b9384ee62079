"""Plans a job: what stands for it, what is stopped and closed, and when to look again. (pure)

Which sessions start is said in session_starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.job import RolloutJobSpec
from sandgate.operator.plan.actions import (
    Action,
    CloseGroup,
    DeleteJob,
    GroupObserved,
    JobObserved,
    JobWant,
    Provide,
    Provided,
    Ref,
    SampleObserved,
    SampleState,
    Stop,
    StopAttempt,
    WakeAt,
    WriteStatus,
)
from sandgate.operator.plan.conditions import is_over
from sandgate.operator.plan.ends import OVER, deleted_at, ending, turning_points, untold, why_stop
from sandgate.operator.plan.queueing import tend
from sandgate.operator.plan.retries import retry_at, retryable
from sandgate.operator.plan.session_starts import starts
from sandgate.operator.plan.settling import cut_at, decided, lives, settled
from sandgate.operator.plan.standing import idle_at, standing
from sandgate.operator.plan.status import job_status


def plan_job(want: JobWant, seen: JobObserved, now: float) -> list[Action]:
    """Next actions for one job. Pure: `now` is unix seconds; no I/O, clock or randomness.

    Carrying out the plan and planning again at the same `now` gives []. Live attempts never exceed `parallelism`,
    those that are starting `startBurst`, beside such as no gateway takes; a group's siblings are on one gateway; a
    sample that ended well enough is never begun again.
    """
    if want.ask is not None and seen.queue is None:
        return []  # whether it may run is not known yet: what runs goes on
    over = is_over(seen.status)
    # What is cheap and urgent comes first: objects and queues may keep a plan waiting for as long as a call is tried.
    actions = _tell(want, seen, now)
    objects = [*_provide(want, seen, now, over=over), *tend(want, seen, over=over)]
    if over:  # only what the trainer has acknowledged still grows
        return [
            *actions,
            *_stop_groups(want, seen, OVER),
            *_close(seen, untold(seen.groups.values(), seen.status)),
            *objects,
            *_expire(want, seen, now),
        ]
    stop = why_stop(want.spec, seen, now)
    if stop is not None:
        actions += _stop_all(want, seen, stop)
        end = ending(want.spec, seen, now)
        if end is not None and end.closes:
            actions += _close_all(seen)
    else:
        actions += _cut(want, seen, now)
    actions += objects
    if stop is None:
        actions += starts(want, seen, now)
    times = [*_times(want.spec, seen, now, stopped=stop is not None)]
    if seen.provided is Provided.STOPPED and (at := idle_at(want, seen, over=False)) is not None and at > now:
        times.append(at)
    return [*actions, *_wake(seen, min(times, default=None))]


def _provide(want: JobWant, seen: JobObserved, now: float, *, over: bool) -> Iterator[Action]:
    """Another spec is another set of objects."""
    if seen.provided is None:
        return
    wanted = standing(want, seen, now, over=over)
    if wanted is not None and (seen.provided is not wanted or seen.provided_for != want.generation):
        yield Provide(wanted)


def _tell(want: JobWant, seen: JobObserved, now: float) -> list[Action]:
    status = job_status(want, seen, now)
    return [] if status == seen.status else [WriteStatus(status)]


def _expire(want: JobWant, seen: JobObserved, now: float) -> list[Action]:
    at = deleted_at(want.spec, seen)
    if at is not None and now >= at:
        return [DeleteJob()]
    idle = idle_at(want, seen, over=True) if seen.provided is Provided.STOPPED else None
    return _wake(seen, min((one for one in (at, idle) if one is not None and one > now), default=None))


def _wake(seen: JobObserved, at: float | None) -> list[Action]:
    return [] if at is None or at == seen.wake_at else [WakeAt(at)]


def _live(want: JobWant, group: GroupObserved) -> Iterator[tuple[Ref, SampleObserved]]:
    for index, sample in enumerate(group.samples):
        if sample.state is SampleState.LIVE:
            yield Ref(want.name, group.uid, index, sample.attempt), sample


def _stop_groups(want: JobWant, seen: JobObserved, stop: Stop) -> Iterator[Action]:
    for group in seen.groups.values():
        for ref, sample in _live(want, group):
            if not sample.stopping:
                yield StopAttempt(ref, stop)


def _stop_all(want: JobWant, seen: JobObserved, stop: Stop) -> Iterator[Action]:
    yield from _stop_groups(want, seen, stop)
    for one in seen.remote:
        if one.stop is None:
            yield StopAttempt(one.ref, stop)


def _close_all(seen: JobObserved) -> Iterator[Action]:
    """Past the deadline: what ended well may still be had."""
    yield from _close(
        seen, (group for group in seen.groups.values() if not group.closed and not lives(group))
    )


def _close(seen: JobObserved, groups: Iterable[GroupObserved]) -> Iterator[Action]:
    return (CloseGroup(one.uid, one.gateway) for one in groups if one.gateway in seen.gateways)


def _cut(want: JobWant, seen: JobObserved, now: float) -> Iterator[Action]:
    """Stragglers of groups that have their quorum; groups that are decided but not whole."""
    for group in seen.groups.values():
        cut = cut_at(group, want.spec)
        if cut is not None and now >= cut:
            stop = Stop(FailureReason.STRAGGLER, "the group has its quorum")
            yield from (StopAttempt(ref, stop) for ref, sample in _live(want, group) if not sample.stopping)
        if group.gateway in seen.gateways and not settled(group) and decided(group, want.spec, now):
            yield CloseGroup(group.uid, group.gateway)


def _times(spec: RolloutJobSpec, seen: JobObserved, now: float, *, stopped: bool) -> Iterator[float]:
    """When something changes by itself."""
    yield from turning_points(spec, seen, now)
    if stopped:
        return
    if not seen.proved and seen.proves_at is not None and now < seen.proves_at:
        yield seen.proves_at
    for group in seen.groups.values():
        cut = cut_at(group, spec)
        if cut is not None and now < cut:
            yield cut
        if not seen.draining and not group.closed:
            for sample in group.samples:
                if retryable(sample, spec) and now < retry_at(sample):
                    yield retry_at(sample)
