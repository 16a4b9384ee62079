"""Makes a job's status: counts and conditions. (pure)"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from sandgate.contract.conditions import JobReason
from sandgate.contract.status import Condition, ConditionStatus, JobCondition, RolloutJobStatus
from sandgate.operator.plan.actions import (
    GroupObserved,
    JobObserved,
    JobWant,
    Provided,
    SampleObserved,
    SampleState,
    SampleTally,
)
from sandgate.operator.plan.conditions import find, is_true
from sandgate.operator.plan.ends import ending, given_up, silent, stamp
from sandgate.operator.plan.fruitless_jobs import fruitless_so_far
from sandgate.operator.plan.retries import retryable
from sandgate.operator.plan.rewards import none_has_one
from sandgate.operator.plan.settling import count, good, retries, settled
from sandgate.operator.plan.staleness import held_by_staleness

Fact = tuple[bool, str, str]
"""(status, reason, message)."""
VERIFIER = "verifier"
NAMED_MAX = 4
"""Gateways that a message names."""
NO_TURN = (
    "no session took a turn, so there is nothing to train on: an agent reaches its model at $OPENAI_BASE_URL or "
    "$ANTHROPIC_BASE_URL"
)


def job_status(want: JobWant, seen: JobObserved, now: float) -> RolloutJobStatus:
    """What is to be told of the job; equal to `seen.status` if nothing changed."""
    groups = seen.groups.values()
    samples = [sample for group in groups for sample in group.samples]
    lively = [sample for sample in samples if sample.state is SampleState.LIVE]
    running_now = [one for one in lively if not one.starting and not one.never_started]
    live, running = (len(some) + len(seen.remote) for some in (lively, running_now))
    tally = seen.tally + sum(map(count, groups), SampleTally())
    idle = not live and all(settled(group) for group in groups)
    old = seen.status or RolloutJobStatus()
    why = ending(want.spec, seen, now)
    # Past the deadline, groups settle because they are closed: that is no completion.
    done = idle and not seen.fresh and not seen.more and why is None
    failed = is_true(old, JobCondition.FAILED)
    facts_failed = _failed_fact(old) if failed else (False, "NotFailed", "")
    if (
        done
        and not failed
        and not is_true(old, JobCondition.COMPLETE)
        and (all_failed := _all_failed(seen, tally))
    ):
        failed, facts_failed = True, (True, "AllFailed", all_failed)
    complete = not failed and (is_true(old, JobCondition.COMPLETE) or done)
    if why is not None and not complete and not failed and given_up(why, seen, now):
        failed, facts_failed = True, (True, why.reason, why.message)
    facts: dict[JobCondition, Fact] = {
        JobCondition.READY: _ready(want, seen),
        JobCondition.SUSPENDED: (suspended := _suspended(want, seen, now, over=complete or failed)),
        JobCondition.PROGRESSING: _progressing(
            seen,
            over=complete or failed,
            suspended=suspended[0],
            live=live,
            running=running,
            refused=want.refused,
            waits_for=waits_for(lively),
            unopened=want.unopened,
            fruitless=fruitless_so_far(seen, want.spec),
            held="" if live else held_by_staleness(want.spec, seen),
        ),
        JobCondition.COMPLETE: _complete_fact(want, seen, tally, old)
        if complete
        else (False, "NotAllEnded", ""),
        JobCondition.FAILED: facts_failed,
        JobCondition.COLLECTED: _collected(seen, tally, over=complete or failed),
    }
    return replace(
        old,
        reason=in_a_word(facts),
        observed_generation=want.generation,
        conditions=tuple(_condition(old, kind, fact, want.generation, now) for kind, fact in facts.items()),
        **_counts(want, seen, running),
        gateways=len(seen.gateways),
        engines=seen.engines or 0,
        **_pace(seen),
        selector=want.selector,
        start_time=_start_time(want, old, now, over=complete or failed),
        completion_time=old.completion_time or (stamp(now) if complete or failed else ""),
    )


def in_a_word(facts: Mapping[JobCondition, Fact]) -> str:
    """Where the job stands: the reason of the condition that matters most."""
    for kind in (JobCondition.FAILED, JobCondition.COMPLETE, JobCondition.SUSPENDED):
        if facts[kind][0]:
            return facts[kind][1]
    ready = facts[JobCondition.READY]
    return facts[JobCondition.PROGRESSING][1] if ready[0] else ready[1]


def _pace(seen: JobObserved) -> dict[str, Any]:
    """What `observed.pace.Pace.of_status` reads back: of one moment."""
    return {
        "policy_version": seen.policy_version,
        "published_versions": seen.published,
        "acknowledged_at_version": seen.done,
    }


def _counts(want: JobWant, seen: JobObserved, running: int) -> dict[str, int]:
    """Before its gateways were asked, what an operator told before this one stands; but nothing runs without any."""
    if seen.owed is None and seen.status is not None:
        return {"running": 0} if seen.provided in (Provided.STOPPED, Provided.IDLE) else {}
    groups = seen.groups.values()
    return {
        "sessions": seen.total,
        "running": running,
        "ended": seen.tally.ended + sum(_ended(group, want) for group in groups),
        "failed": seen.tally.failed + sum(_failed(group, want) for group in groups),
        "retries": seen.tally.retries + sum(retries(group) for group in groups),
        "committed": seen.committed,
    }


def _start_time(want: JobWant, old: RolloutJobStatus, now: float, *, over: bool) -> str:
    """As a Job's: of a job that is suspended there is none, and its deadline is counted anew when it goes on."""
    if over:
        return old.start_time or stamp(now)
    return "" if want.spec.suspend else old.start_time or stamp(now)


def _collected(seen: JobObserved, tally: SampleTally, *, over: bool) -> Fact:
    if over and seen.owed == 0:
        lost = tally.lost or said_lost(seen.status)
        return True, JobReason.GROUPS_LOST if lost else JobReason.ALL_ACKNOWLEDGED, ""
    before = find(seen.status, JobCondition.COLLECTED)
    if over and seen.owed is None and before is not None and is_true(seen.status, JobCondition.COLLECTED):
        return True, before.reason, before.message
    return False, JobReason.NOT_ALL_ACKNOWLEDGED, ""


def _failed_fact(old: RolloutJobStatus) -> Fact:
    """What ended a job stays what it was."""
    before = find(old, JobCondition.FAILED)
    assert before is not None
    return True, before.reason, before.message


def _complete_fact(want: JobWant, seen: JobObserved, tally: SampleTally, old: RolloutJobStatus) -> Fact:
    """With a word on turns and rewards, if there are none: said once, as the job ends, when all of it is known. What is
    lost later is said then: the job stays complete, as nothing of it will run again."""
    if tally.lost > said_lost(old):
        what = "sample was" if tally.lost == 1 else "samples were"
        text = f"{tally.lost} of {seen.total} {what} lost with a gateway's journal before a trainer had them"
        return True, JobReason.GROUPS_LOST, text
    before = find(old, JobCondition.COMPLETE)
    if before is not None and is_true(old, JobCondition.COMPLETE):
        return True, before.reason, before.message
    lessons = tally.ended - tally.fruitless.total + seen.elsewhere
    if lessons and lessons == tally.rowless:
        return True, JobReason.ALL_ENDED, NO_TURN
    others = lessons - tally.unscored
    return True, JobReason.ALL_ENDED, none_has_one(want.spec.reward.source, others, tally.unscored)


def said_lost(status: RolloutJobStatus | None) -> int:
    """Samples that were lost with a journal, as the status says: an operator that starts anew may find fewer, as
    AgentSessions go."""
    found = find(status, JobCondition.COMPLETE)
    if found is None or found.reason != JobReason.GROUPS_LOST:
        return 0
    number = found.message.partition(" ")[0]
    return int(number) if number.isdecimal() else 1


def _all_failed(seen: JobObserved, tally: SampleTally) -> str:
    """Of a job whose samples all ended: that none teaches anything, and why; "" if one does. An agent elsewhere
    may have done its task."""
    if not tally.ended or tally.fruitless.total < tally.ended or seen.elsewhere:
        return ""
    return f"all {tally.ended} samples failed: {tally.fruitless}"


def _ready(want: JobWant, seen: JobObserved) -> Fact:
    if want.taken:
        return False, "NameTaken", want.taken
    if want.unprovided:
        return False, "NotProvided", want.unprovided
    if seen.provided is Provided.NOTHING:
        return False, "NothingMade", "gateways and engine are not made yet"
    if seen.provided is Provided.IDLE:
        return False, "Idle", "nothing is to be done: gateways and engine are at 0 pods"
    if not seen.gateways:
        return False, "NoGateway", _because("no gateway takes sessions", seen.gateway_trouble)
    if seen.engines == 0:
        return False, "NoEngine", _because("no engine answers", seen.engine_trouble)
    return True, "GatewaysReady" if seen.engines is None else "GatewaysAndEnginesReady", ""


def _because(what: str, why: str) -> str:
    return f"{what}: {why}" if why else what


def _suspended(want: JobWant, seen: JobObserved, now: float, *, over: bool) -> Fact:
    if want.held is not None and not (want.ask is not None and want.ask.stopped):
        return True, want.held.reason, want.held.message
    if want.spec.suspend:
        return True, "SpecSuspend", ""
    if not over and want.spec.trainer is not None and silent(want.spec, seen, now):
        text = f"nothing heard of the trainer for heartbeatSeconds {want.spec.trainer.heartbeat_seconds}"
        return True, "TrainerSilent", text
    return False, "NotSuspended", ""


def waits_for(samples: Iterable[SampleObserved]) -> str:
    """What most of their pods that wait, wait for; of several as frequent the first."""
    words = Counter(filter(None, map(_waits_for, samples)))
    return max(words, key=words.__getitem__, default="")


def _waits_for(sample: SampleObserved) -> str:
    """A verifier's begin with its name, as those of its container do unless it has another."""
    if words := sample.verifier_waits_for:
        return words if words.startswith(f"{VERIFIER}: ") else f"{VERIFIER}: {words}"
    return "" if sample.stopping else sample.waits_for


def _progressing(
    seen: JobObserved,
    *,
    over: bool,
    suspended: bool,
    live: int,
    running: int,
    refused: str,
    waits_for: str,
    unopened: str,
    fruitless: str,
    held: str,
) -> Fact:
    if over:
        return False, "Over", ""
    if suspended:
        return False, "Suspended", ""
    if seen.draining:
        return live > 0, "Draining", ""
    if seen.problem:
        return False, "NoTasks", seen.problem
    if refused:
        return True, "SpecRefused", refused
    if waits_for:
        return True, "PodsWait", waits_for
    if seen.littered:
        return True, "CleaningUp", seen.littered
    away = "" if running else _gateways_away(seen)
    if unopened and not away:
        return True, "PodsWait", unopened
    if held and not away:
        return True, "AwaitsVersion", held
    return True, "Running" if running else "Waiting", away or fruitless


def _gateways_away(seen: JobObserved) -> str:
    """Of a job that waits, gateways that do not answer and have groups that are not whole."""
    away = Counter(
        group.gateway
        for group in seen.groups.values()
        if group.gateway not in seen.gateways and not settled(group)
    )
    if not away or not seen.gateways:  # without any, the job is not ready
        return ""
    many = sum(away.values())
    names = ", ".join(sorted(away)[:NAMED_MAX]) + (", ..." if len(away) > NAMED_MAX else "")
    return f"{many} group{'s wait' if many > 1 else ' waits'} for what does not answer: {names}"


def _ended(group: GroupObserved, want: JobWant) -> int:
    if settled(group):
        return len(group.samples)
    return sum(
        sample.state is SampleState.ENDED and not retryable(sample, want.spec) for sample in group.samples
    )


def _failed(group: GroupObserved, want: JobWant) -> int:
    if settled(group):
        return sum(not good(sample) or sample.failure is not None for sample in group.samples)
    return sum(
        sample.state is SampleState.ENDED and sample.failure is not None and not retryable(sample, want.spec)
        for sample in group.samples
    )


def _condition(
    old: RolloutJobStatus, kind: JobCondition, fact: Fact, generation: int, now: float
) -> Condition:
    value, reason, message = fact
    status = ConditionStatus.TRUE if value else ConditionStatus.FALSE
    before = find(old, kind)
    since = before.last_transition_time if before is not None and before.status is status else stamp(now)
    return Condition(
        type=kind.value,
        status=status,
        reason=reason,
        message=message,
        observed_generation=generation,
        last_transition_time=since,
    )
