"""Decides whether a session that a person applied may be opened, and at which gateway. (pure)"""

from __future__ import annotations

from dataclasses import dataclass

from sandgate.contract.choices import RewardSource
from sandgate.contract.names import gateway_name, is_derived
from sandgate.operator.plan.actions import (
    Action,
    HoldRemote,
    JobObserved,
    JobWant,
    OpenRemote,
    Provided,
    Ref,
)
from sandgate.operator.plan.conditions import is_over
from sandgate.operator.plan.ends import why_stop


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt at a sample, by an agent elsewhere."""

    name: str
    attempt: int
    failed: bool = False
    """On infrastructure: another one may be made."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteObserved:
    """An AgentSession with `remote: true` that is not open, and what is known of its place."""

    ref: Ref
    gateway: str = ""
    """Named in its spec."""
    home: str = ""
    """Where the other sessions of its task are."""
    own: bool = False
    """The job runs that task itself."""
    newest: Attempt | None = None
    """Of its sample."""


def plan_remote(want: JobWant, seen: JobObserved, one: RemoteObserved, now: float) -> list[Action]:
    """Open it, or say why not. Pure: `now` is unix seconds. What holds it up is the job's and its gateways' state:
    whoever changes that plans again."""
    if why := _refusal(want, seen, one):
        return [HoldRemote(one.ref, why, final=True)]
    if why := _waits(want, seen, one, now):
        return [HoldRemote(one.ref, why, final=False)]
    gateways = seen.gateways
    place = one.home or one.gateway or min(gateways, key=lambda name: (gateways[name], name))
    return [OpenRemote(one.ref, place)]


def _refusal(want: JobWant, seen: JobObserved, one: RemoteObserved) -> str:
    ref, spec = one.ref, want.spec
    if is_over(seen.status):
        return f"spec.jobName: {ref.job} is over"
    if is_derived(ref.job, ref.called):
        return "metadata.name: names of this form are those of the job's own sessions; use another"
    if spec.reward.source is RewardSource.EXIT_CODE:
        return (
            f"spec.jobName: {ref.job} rewards exit codes, and that of an agent elsewhere is not seen; use a job whose"
            " reward.source is agent, verifier or trainer"
        )
    if ref.sample >= spec.group_size:
        return f"spec.sampleIndex: {ref.sample} is beyond the job's groupSize {spec.group_size}"
    known = [gateway_name(ref.job, index) for index in range(spec.gateway.replicas)]
    if one.gateway and one.gateway not in known:
        return f"spec.gateway: {one.gateway} is none of the job's gateways"
    if one.own:
        return f"spec.taskUid: the job runs task {ref.uid!r} itself; use one that it has not"
    if one.home and one.gateway and one.gateway != one.home:
        return f"spec.gateway: the other sessions of task {ref.uid!r} are at {one.home}"
    last = one.newest
    if last is None or last.name == ref.name:
        return ""
    if not last.failed:
        return f"spec.sampleIndex: AgentSession {last.name} is there for this sample of task {ref.uid!r}"
    if ref.attempt <= last.attempt:
        return f"spec.attempt: must be more than {last.attempt}, that of AgentSession {last.name}"
    return ""


def _waits(want: JobWant, seen: JobObserved, one: RemoteObserved, now: float) -> str:
    if (stop := why_stop(want.spec, seen, now)) is not None:
        return stop.detail
    if seen.more and want.spec.tasks.queue is None:
        return f"the job's tasks are not known yet{seen.problem and ': '}{seen.problem}"
    if why := want.taken or want.unprovided:
        return f"the job's objects cannot be made: {why}"
    if not seen.gateways or seen.provided is Provided.NOTHING:
        return "no gateway takes sessions"
    place = one.home or one.gateway
    if place and place not in seen.gateways:
        return f"gateway {place} takes no sessions"
    return ""
