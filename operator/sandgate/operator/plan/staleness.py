"""Decides how many groups may begin before the trainer's next weights (`spec.staleness`). (pure)"""

from __future__ import annotations

from sandgate.contract.job import RolloutJobSpec
from sandgate.operator.plan.actions import JobObserved


def admitted(spec: RolloutJobSpec, seen: JobObserved) -> int | None:
    """New groups: the trainer will be at most `maxVersionsBehind` versions ahead when it gets them. None: any number.

    One batch is begun for the weights that there are and for each version that may come meanwhile; then a batch for
    each version that was published. The version is what says that a batch was consumed, as a trainer may acknowledge
    many batches at once, at its checkpoints. But no version opens more than the trainer has taken: one that is
    published again after a restart, or another number than the next, consumed nothing. And what was acknowledged by the
    time of a version was consumed, however many versions there were: groups that it dropped as too old bring none.
    """
    if spec.staleness is None:
        return None
    batch = spec.staleness.batch_size
    consumed = min(max(seen.published * batch, seen.done or 0), seen.taken)
    return max(0, (spec.staleness.max_versions_behind + 1) * batch + consumed - seen.begun)


def held_by_staleness(spec: RolloutJobSpec, seen: JobObserved) -> str:
    """Why no new group begins, for people; empty: not for this."""
    if spec.staleness is None or not seen.fresh or admitted(spec, seen):
        return ""
    waiting = seen.begun - len(seen.groups) - seen.taken
    groups = f"{seen.begun} group{'' if seen.begun == 1 else 's'} begun"
    if waiting > 0:
        groups += f", {waiting} of them not taken by the trainer yet"
    limits = f"maxVersionsBehind {spec.staleness.max_versions_behind}, batchSize {spec.staleness.batch_size}"
    return (
        f"no new group begins before the trainer's next policy version: {groups}, version {seen.policy_version}, "
        f"spec.staleness {limits}"
    )
