"""What of a job runs next, and where. (pure)"""

from __future__ import annotations

from collections.abc import Iterator

from sandgate.contract.errors import FailureReason
from sandgate.contract.job import RolloutJobSpec
from sandgate.contract.status import JobCondition
from sandgate.operator.plan.actions import (
    Action,
    CloseGroup,
    GroupObserved,
    JobObserved,
    JobWant,
    OpenSession,
    Ref,
    SampleObserved,
    SampleState,
    Stop,
    StopAttempt,
    WakeAt,
    WriteStatus,
)
from sandgate.operator.plan.groups import cut_at, decided, retry_at, retryable, settled
from sandgate.operator.plan.status import is_over, job_status


def plan_job(want: JobWant, seen: JobObserved, now: float) -> list[Action]:
    """Next actions for one job. Pure: `now` is unix seconds; no I/O, clock or randomness.

    Carrying out the plan and planning again at the same `now` gives []. Live attempts never exceed `parallelism`,
    those that are starting `startBurst`; a group's siblings are on one gateway; a sample that ended well enough is
    never begun again.
    """
    over = is_over(seen.status, JobCondition.FAILED) or is_over(seen.status, JobCondition.COMPLETE)
    if over:  # only what the trainer has acknowledged still grows
        return _tell(want, seen, now)
    stop = _stop(want, seen, now)
    actions: list[Action] = []
    if stop is not None:
        actions += _stop_all(want, seen, stop)
        if late(want.spec, seen, now):
            actions += _close_all(seen)
    else:
        actions += _cut(want, seen, now)
        actions += _start(want, seen, now)
    actions += _tell(want, seen, now)
    at = min(_times(want.spec, seen, now), default=None)
    if at is not None and at != seen.wake_at:
        actions.append(WakeAt(at))
    return actions


def _tell(want: JobWant, seen: JobObserved, now: float) -> list[Action]:
    status = job_status(want, seen, now, late=late(want.spec, seen, now))
    return [] if status == seen.status else [WriteStatus(status)]


def late(spec: RolloutJobSpec, seen: JobObserved, now: float) -> bool:
    """The job's deadline has passed."""
    limit = spec.active_deadline_seconds
    return limit is not None and now >= seen.started_at + limit


def _stop(want: JobWant, seen: JobObserved, now: float) -> Stop | None:
    if want.spec.suspend:
        return Stop(FailureReason.ABORTED, "the job is suspended")
    if late(want.spec, seen, now):
        return Stop(FailureReason.ABORTED, "activeDeadlineSeconds of the job passed")
    return None


def _live(want: JobWant, group: GroupObserved) -> Iterator[tuple[Ref, SampleObserved]]:
    for index, sample in enumerate(group.samples):
        if sample.state is SampleState.LIVE:
            yield Ref(want.name, group.uid, index, sample.attempt), sample


def _stop_all(want: JobWant, seen: JobObserved, stop: Stop) -> Iterator[Action]:
    for group in seen.groups.values():
        for ref, sample in _live(want, group):
            if not sample.stopping:
                yield StopAttempt(ref, stop)


def _close_all(seen: JobObserved) -> Iterator[Action]:
    """Past the deadline: what ended well may still be had."""
    for group in seen.groups.values():
        if not group.closed and all(sample.state is not SampleState.LIVE for sample in group.samples):
            yield CloseGroup(group.uid, group.gateway)


def _cut(want: JobWant, seen: JobObserved, now: float) -> Iterator[Action]:
    """Stragglers of groups that have their quorum; groups that are decided but not whole."""
    for group in seen.groups.values():
        cut = cut_at(group, want.spec)
        if cut is not None and now >= cut:
            stop = Stop(FailureReason.STRAGGLER, "the group has its quorum")
            yield from (StopAttempt(ref, stop) for ref, sample in _live(want, group) if not sample.stopping)
        if not settled(group) and decided(group, want.spec, now):
            yield CloseGroup(group.uid, group.gateway)


def _start(want: JobWant, seen: JobObserved, now: float) -> Iterator[Action]:
    """Retries and begun groups first, so that groups become whole; then new groups, each on one gateway."""
    if seen.draining or not seen.gateways:
        return
    samples = [sample for group in seen.groups.values() for sample in group.samples]
    live = sum(sample.state is SampleState.LIVE for sample in samples)
    starting = sum(sample.state is SampleState.LIVE and sample.starting for sample in samples)
    burst = want.spec.start_burst or want.spec.parallelism
    slots = min(want.spec.parallelism - live, burst - starting)
    for action in _wanted(want, seen, now):
        if slots <= 0:
            return
        slots -= 1
        yield action


def _wanted(want: JobWant, seen: JobObserved, now: float) -> Iterator[OpenSession]:
    for group in seen.groups.values():
        cut = cut_at(group, want.spec)
        if group.closed or (cut is not None and now >= cut):
            continue
        for index, sample in enumerate(group.samples):
            again = retryable(sample, want.spec) and now >= retry_at(sample)
            if sample.state is SampleState.WAITING or again:
                yield OpenSession(Ref(want.name, group.uid, index, sample.attempt + 1), group.gateway)
    load = dict(seen.gateways)
    size = want.spec.group_size
    for number, uid in enumerate(seen.fresh):
        if number >= _allowed(want.spec, seen):
            return
        gateway = min(load, key=lambda name: (load[name], name))
        load[gateway] += size
        for index in range(size):
            yield OpenSession(Ref(want.name, uid, index, 0), gateway)


def _allowed(spec: RolloutJobSpec, seen: JobObserved) -> int:
    """New groups that staleness admits: the trainer will be at most `maxVersionsBehind` ahead when it gets them."""
    if spec.staleness is None:
        return len(seen.fresh)
    ahead = spec.staleness.max_versions_behind + seen.policy_version + 1
    return max(0, ahead * spec.staleness.batch_size - seen.begun)


def _times(spec: RolloutJobSpec, seen: JobObserved, now: float) -> Iterator[float]:
    """When something changes by itself."""
    if spec.active_deadline_seconds is not None and not late(spec, seen, now):
        yield seen.started_at + spec.active_deadline_seconds
    if spec.suspend:
        return
    for group in seen.groups.values():
        cut = cut_at(group, spec)
        if cut is not None and now < cut:
            yield cut
        if not seen.draining and not group.closed:
            for sample in group.samples:
                if retryable(sample, spec) and now < retry_at(sample):
                    yield retry_at(sample)
