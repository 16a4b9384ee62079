"""Decides what a queue's answer means for a job, and what the queue is told of it. (pure)

To the rest of the plan a job that its queue holds is a suspended one: `JobWant.spec` says so, `JobWant.held` says why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from sandgate.contract.conditions import JobReason
from sandgate.contract.job import RolloutJobSpec
from sandgate.contract.status import JobCondition, RolloutJobStatus
from sandgate.operator.plan.actions import (
    Action,
    GroupObserved,
    JobObserved,
    JobWant,
    Provided,
    SampleState,
    TendWorkload,
)
from sandgate.operator.plan.conditions import find, is_over, is_true
from sandgate.operator.plan.kueue import (
    GATEWAYS,
    SANDBOXES,
    AskQuota,
    DropWorkload,
    FinishWorkload,
    GiveBack,
    Hold,
    QueueSeen,
    QueueStep,
    QuotaAsk,
    SwitchQuota,
    TellWorkload,
    WorkloadSeen,
)
from sandgate.operator.plan.retries import retryable
from sandgate.operator.plan.settling import settled
from sandgate.operator.plan.standing import busy, made

UNKNOWN = Hold(JobReason.QUEUED_BY_KUEUE, "its queue was not asked yet")


def is_done(status: RolloutJobStatus | None) -> bool:
    """The job is over and nothing of it is owed to anybody: it needs no quota any more."""
    return is_over(status) and is_true(status, JobCondition.COLLECTED)


def hold(ask: QuotaAsk | None, seen: QueueSeen | None, *, done: bool = False) -> Hold | None:
    """Why nothing of the job may stand now; None: it may."""
    if ask is None or done:
        return None
    if seen is None:
        return UNKNOWN
    if seen.trouble:
        return Hold(JobReason.KUEUE_MISSING, seen.trouble)
    found = seen.workload
    if found is None:
        return Hold(JobReason.QUEUED_BY_KUEUE, seen.refused or "its Workload is not made yet")
    if not found.may_run:
        return Hold(JobReason.QUEUED_BY_KUEUE, seen.refused or found.words or "it waits for quota")
    return None if covers(found, ask) else Hold(JobReason.QUEUED_BY_KUEUE, _more(found, ask))


def covers(found: WorkloadSeen, ask: QuotaAsk) -> bool:
    """The quota that it has is enough for what the job asks now. Sandboxes beyond it wait: see `within`."""
    return _as_large(found, ask) and (
        found.counts.keys() == ask.counts.keys()
        and all(ask.counts[name] <= count for name, count in found.counts.items() if name != SANDBOXES)
    )


def _as_large(found: WorkloadSeen, ask: QuotaAsk) -> bool:
    return found.takes in ("", ask.takes)


def _more(found: WorkloadSeen, ask: QuotaAsk) -> str:
    if not _as_large(found, ask):
        return "the job asks for pods of another size, or elsewhere, than it was admitted with: it is queued anew"
    asked, has = (", ".join(f"{n} {c}" for n, c in sorted(one.counts.items())) for one in (ask, found))
    return f"the job asks for other pods ({asked}) than it was admitted with ({has}): it is queued anew"


def within(spec: RolloutJobSpec, held: Hold | None, seen: QueueSeen | None) -> RolloutJobSpec:
    """The job's spec as far as its quota goes: suspended while it has none; no more sessions at once than sandboxes."""
    if held is not None:
        return spec if spec.suspend else replace(spec, suspend=True)
    found = None if seen is None else seen.workload
    if found is None or SANDBOXES not in found.counts:
        return spec
    left = found.counts[SANDBOXES] - found.reclaimable.get(SANDBOXES, 0)
    most = max(1, min(left, found.assigned.get(SANDBOXES, left)))
    return spec if most >= spec.parallelism else replace(spec, parallelism=most)


def tend(want: JobWant, seen: JobObserved, *, over: bool) -> Iterator[Action]:
    """What the queue is to be told now."""
    for step in _steps(want, seen, over=over):
        yield TendWorkload(step)


def _steps(want: JobWant, seen: JobObserved, *, over: bool) -> Iterator[QueueStep]:
    if seen.queue is None or seen.queue.trouble:
        return
    found, ask = seen.queue.workload, want.ask
    if found is not None and (found.deleting or found.finished):
        return
    if ask is None:
        if found is not None:
            yield DropWorkload()
    elif is_done(seen.status):
        if found is not None and rests(seen):
            yield _finish(seen)
    elif found is None:
        if rests(seen):
            yield AskQuota()
    else:
        yield from _asked(want, ask, seen, found, over=over)


def _finish(seen: JobObserved) -> FinishWorkload:
    failed = find(seen.status, JobCondition.FAILED)
    well = is_true(seen.status, JobCondition.COMPLETE)
    return FinishWorkload(well, "every sample ended" if well or failed is None else failed.message)


def _asked(
    want: JobWant, ask: QuotaAsk, seen: JobObserved, found: WorkloadSeen, *, over: bool
) -> Iterator[QueueStep]:
    if not found.reserved and found.digest != ask.digest:
        yield AskQuota()  # before it may be admitted as it was
    elif found.stopped != ask.stopped or (ask.stopped and found.active):
        yield SwitchQuota(active=not ask.stopped)
    elif not found.reserved:
        pass
    elif found.evicted or not found.active:
        if rests(seen):
            yield GiveBack()
    elif not covers(found, ask):
        if rests(seen):
            yield DropWorkload()
    elif want.held is None:
        ready = found.ready if want.unprovided else is_true(seen.status, JobCondition.READY)
        told = TellWorkload(_spare(want, seen, found), ready)
        if over:  # that engines are gone is no trouble
            told = TellWorkload(_spare_at_end(seen, found), found.ready)
        if told != TellWorkload(found.reclaimable, found.ready):
            yield told


def rests(seen: JobObserved) -> bool:
    """Nothing of the job stands, as far as the operator knows; its pods may still be ending."""
    if seen.provided is Provided.IDLE:
        return True
    return seen.provided is Provided.NOTHING and not made(seen.status) and not busy(seen)


def _spare(want: JobWant, seen: JobObserved, found: WorkloadSeen) -> Mapping[str, int]:
    """Pods that the job will not need again. Kueue takes no such word back, so it never gets less."""
    before = found.reclaimable
    if seen.more or seen.owed is None or SANDBOXES not in found.counts:
        return before
    needed = len(seen.fresh) * want.spec.group_size
    needed += sum(_open(group, want.spec) for group in seen.groups.values())
    spare = max(before.get(SANDBOXES, 0), found.counts[SANDBOXES] - needed)
    return {**before, SANDBOXES: spare} if spare > 0 else before


def _spare_at_end(seen: JobObserved, found: WorkloadSeen) -> Mapping[str, int]:
    """Of a job that is over, gateways go on until a trainer has everything."""
    if seen.provided is not Provided.STOPPED or busy(seen):
        return found.reclaimable
    return {name: count for name, count in found.counts.items() if name != GATEWAYS}


def _open(group: GroupObserved, spec: RolloutJobSpec) -> int:
    """Samples of it that run, or may run again."""
    if settled(group):
        return 0
    return sum(one.state is not SampleState.ENDED or retryable(one, spec) for one in group.samples)
