"""Decides when a job stops, and why: suspended, out of time, its trainer silent or gone. (pure)"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf

from sandgate.contract.conditions import JobReason
from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.job import RolloutJobSpec, TrainerSpec
from sandgate.contract.status import JobCondition, RolloutJobStatus
from sandgate.operator.plan.actions import GroupObserved, JobObserved, Stop
from sandgate.operator.plan.conditions import find, is_over, is_true
from sandgate.operator.plan.settling import lives, settled

COLLECT_S = float(TrainerSpec().collect_seconds)
"""How long trajectories wait for a trainer where the job has no trainer block."""
CLOSING = frozenset((JobReason.DEADLINE_EXCEEDED, JobReason.TRAINER_LOST, JobReason.ALL_FAILED))
"""Reasons of condition Failed with which every group is closed: see `Ending.closes`."""

AWAY_S = 600.0
"""A job that gives up waits so long for gateways that are away: they close their groups."""
LIVES_AWAY_S = 86_400.0
"""And so long for one with sessions that live: a verifier may wait most of a day for a node. What was away for a moment
must not end them."""
OVER = Stop(FailureReason.ABORTED, "the job is over")
"""For sessions that an operator which starts anew finds half begun."""


@dataclass(frozen=True, slots=True)
class Ending:
    """The job gives up. `reason` is that of its condition Failed."""

    reason: str
    message: str
    closes: bool = True
    """What ended well may still be had: its groups are closed. Else there is nothing to be had, and groups stay open
    for a driver that goes on once the cause is mended."""
    at: float = inf
    """Since when, in unix seconds; not said of one without hope, which waits for all that runs."""


def stamp(now: float) -> str:
    """RFC 3339, whole seconds, as Kubernetes writes it."""
    return datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds(text: str) -> float:
    """The unix seconds of a stamp; 0 for what is none."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return 0.0


def ending(spec: RolloutJobSpec, seen: JobObserved, now: float) -> Ending | None:
    """Why nothing of the job will ever run again, though not everything ended."""
    if seen.hopeless is not None:
        return Ending(seen.hopeless.reason, seen.hopeless.message, closes=False)
    if (at := _deadline(spec, seen)) is not None and now >= at:
        words = f"activeDeadlineSeconds {spec.active_deadline_seconds} passed"
        return Ending("DeadlineExceeded", words, at=at)
    trainer = spec.trainer
    if trainer is not None and not spec.suspend and _unheard(seen, trainer.collect_seconds, now):
        words = f"nothing heard of the trainer for collectSeconds {trainer.collect_seconds}"
        return Ending("TrainerLost", words, at=(seen.heard_at or 0.0) + trainer.collect_seconds)
    return None


def given_up(why: Ending, seen: JobObserved, now: float) -> bool:
    """Nothing of it runs any more, and its groups are closed: so the job has failed. Groups of a gateway that stays
    away are closed when it comes back (`untold`), which may be never."""

    def done(group: GroupObserved) -> bool:
        living = lives(group)
        if not living and (settled(group) or not why.closes):
            return True
        patience = LIVES_AWAY_S if living else AWAY_S
        return group.gateway not in seen.gateways and now >= why.at + patience

    return not seen.remote and all(map(done, seen.groups.values()))


def silent(spec: RolloutJobSpec, seen: JobObserved, now: float) -> bool:
    """The trainer gave no sign of life for `heartbeatSeconds`."""
    return spec.trainer is not None and _unheard(seen, spec.trainer.heartbeat_seconds, now)


def why_stop(spec: RolloutJobSpec, seen: JobObserved, now: float) -> Stop | None:
    """What running sessions are stopped for: none of it is their fault."""
    if spec.suspend:
        return Stop(FailureReason.ABORTED, "the job is suspended")
    if (why := ending(spec, seen, now)) is not None:
        return Stop(FailureReason.ABORTED, why.message)
    if silent(spec, seen, now):
        return Stop(FailureReason.ABORTED, "the trainer is silent")
    return None


def turning_points(spec: RolloutJobSpec, seen: JobObserved, now: float) -> Iterator[float]:
    """When one of these answers changes by itself."""
    times = []
    if (deadline := _deadline(spec, seen)) is not None:
        times.append(deadline)
    if spec.trainer is not None and seen.heard_at is not None and not spec.suspend:
        times.append(seen.heard_at + spec.trainer.heartbeat_seconds)
        times.append(seen.heard_at + spec.trainer.collect_seconds)
    if (why := ending(spec, seen, now)) is not None and any(
        group.gateway not in seen.gateways for group in seen.groups.values()
    ):
        times += [why.at + AWAY_S, why.at + LIVES_AWAY_S]
    yield from (at for at in times if now < at < inf)


def deleted_at(spec: RolloutJobSpec, seen: JobObserved) -> float | None:
    """When a job that is over deletes itself; None: never, or not the plan's business.

    Trajectories win over the ttl: it runs from the end, but while a trainer is owed trajectories the job stays until
    nothing was heard of a trainer, awaited or not, for `collectSeconds`. So a job whose trainer is gone is collected in
    the end too. One that writes files stays until they are written: no trainer will come for what is missing.
    """
    ttl = spec.ttl_seconds_after_finished
    if ttl is None or seen.status is None or seen.provided is None:
        return None
    done = seconds(seen.status.completion_time)
    complete = find(seen.status, JobCondition.COMPLETE)
    lost = (
        complete is not None and complete.reason == JobReason.GROUPS_LOST
    )  # a trainer may not have heard of it yet
    # What was collected stays so while its gateways were not asked.
    if (seen.owed == 0 and not (lost and spec.output.parquet is None)) or (
        seen.owed is None and is_true(seen.status, JobCondition.COLLECTED)
    ):
        return done + ttl
    if spec.output.parquet is not None:
        return None
    patience = COLLECT_S if spec.trainer is None else float(spec.trainer.collect_seconds)
    heard = max(done, seen.heard_at or 0.0, seen.trainer_at or 0.0, seen.since)
    return max(done + ttl, heard + patience)


def untold(groups: Iterable[GroupObserved], status: RolloutJobStatus | None) -> Iterator[GroupObserved]:
    """Of a job that is over every group was whole or closed: one that is not, was lost since, with its gateway's
    journal. It is not sampled again, so whoever waits for it must be told. Where the job gave up for a cause that can
    be mended (`Ending.closes`), groups stay open. An operator that starts anew does not know of every group that it
    was closed: such a one is closed again, which changes nothing."""
    failed = find(status, JobCondition.FAILED)
    if is_over(status) and (
        not is_true(status, JobCondition.FAILED) or (failed and failed.reason in CLOSING)
    ):
        yield from (group for group in groups if not group.closed and not lives(group))


def _deadline(spec: RolloutJobSpec, seen: JobObserved) -> float | None:
    """Counted from when it began, or went on after it was suspended."""
    waits = spec.suspend or (seen.status is not None and not seen.status.start_time)
    limit = spec.active_deadline_seconds
    return None if waits or limit is None else seen.started_at + limit


def _unheard(seen: JobObserved, limit: float, now: float) -> bool:
    """Without a gateway nobody is silent: there is none by which a trainer could be heard."""
    return bool(seen.gateways) and seen.heard_at is not None and now >= seen.heard_at + limit
