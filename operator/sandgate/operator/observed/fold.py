"""apply: folds one event into what was observed, and says which keys must be planned again. (pure)

Events may come late, twice, or in another order than they happened: an end stays what it was, versions and signs of
life never go back, and news of what is forgotten change nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, assert_never

from sandgate.contract.failure_reasons import FAILURE_CLASS, FailureClass, FailureReason
from sandgate.contract.names import group_hash
from sandgate.contract.session import SessionState, SessionSummary
from sandgate.operator.observed import events
from sandgate.operator.observed.clock_step import moved
from sandgate.operator.observed.events import (
    AttemptEvent,
    Event,
    GroupEvent,
    JobEvent,
    RemoteEvent,
    VerifierEvent,
)
from sandgate.operator.observed.gateway_times import by_present_clock
from sandgate.operator.observed.job import JOB_KEY, Observed
from sandgate.operator.observed.pace import Pace, Settled, Shelf
from sandgate.operator.observed.restarts import regained
from sandgate.operator.plan.actions import (
    OUTAGES_MAX,
    GroupObserved,
    Outage,
    Ref,
    Running,
    SampleObserved,
    SampleState,
    SampleTally,
    SessionObserved,
    Stop,
    Told,
)
from sandgate.operator.plan.fruitless_samples import FruitlessSamples
from sandgate.operator.plan.settling import begun, count, ended_as, ended_with, good, never_started, settled


def apply(seen: Observed, event: Event) -> Observed:
    """The record with this event; `changed` and `now_settled` say what it was news for."""
    before = replace(seen, changed=(), now_settled=())
    if isinstance(event, JobEvent):
        return _of_job(before, event)
    if isinstance(event, GroupEvent):
        return _of_group(before, event)
    if isinstance(event, AttemptEvent):
        return _of_attempt(before, event)
    return _of_remote(before, event)


def _named(seen: Observed, *keys: str) -> Observed:
    return replace(seen, changed=(*seen.changed, *keys))


# -- the job ----------------------------------------------------------------------------------------------------------


def _of_job(seen: Observed, event: JobEvent) -> Observed:  # noqa: C901 - one case per kind of event
    fields: dict[str, Any] = {}
    match event:
        case events.WantChanged(want):
            fields = {"want": want}
        case events.JobStarted(at):
            return replace(seen, started_at=at)
        case events.StatusWritten(status):
            return replace(seen, status=status)
        case events.TasksAdded(uids):
            return _named(_tasks(seen, uids), JOB_KEY)
        case events.TasksUnavailable(why):
            fields = {"problem": why}
        case events.TasksEnded():
            fields = {"more": False}
        case events.GatewayChanged(name, ready):
            return _named(_gateway(seen, name, ready=ready), JOB_KEY)
        case events.EngineProvided(what, generation):
            return _named(replace(seen, provided=what, provided_for=generation), JOB_KEY)
        case events.EnginesCounted(number, why):
            fields = {"engines": number, "engine_trouble": why}
        case events.GatewaysBlocked(why):
            fields = {"gateway_trouble": why}
        case events.CleaningLags(why):
            fields = {"littered": why}
        case events.GatewayLooked(gateway, said):
            return _looked(seen, gateway, said)
        case events.VersionsRecalled(version, published, done):
            fields = {"pace": Pace.recalled(version, published, done)}
        case events.TrainerHeard(at, now, all_told):
            return _heard(_asked(seen, at, all_told=all_told), at, now)
        case events.TrainerAwaited(since):
            fields = {"heard_at": since}
        case events.QueueLooked(queue):
            fields = {"queue": queue}
        case events.DrainAsked():
            return _named(replace(seen, draining=True), JOB_KEY)
        case events.GaveUp(why):
            return replace(seen, firsts=replace(seen.firsts, said=seen.firsts.said or why))
        case events.Proved():
            return replace(seen, firsts=replace(seen.firsts, proved=True))
        case events.ClockStepped(by, at):
            return moved(seen, by, at)
        case events.TimerSet(key, wake_at):
            return replace(seen, wake_at=wake_at) if key == JOB_KEY else _session(seen, key, wake_at=wake_at)
        case _:
            assert_never(event)
    changes = {name: value for name, value in fields.items() if getattr(seen, name) != value}
    return _named(replace(seen, **changes), JOB_KEY) if changes else seen


def _tasks(seen: Observed, uids: tuple[str, ...]) -> Observed:
    homes, all_uids, fresh, done = seen.remotes.homes, seen.uids, seen.fresh, seen.settled
    tally, acked, started, size = seen.tally, seen.acked, seen.begun, seen.want.spec.group_size
    counted = seen.counted
    for uid in uids:
        if uid in homes:  # agents elsewhere do it: its place in a queue is free
            done = done if uid in done else done.set(uid, 0)
            continue
        all_uids = all_uids.set(uid, None)
        if uid in seen.groups or uid in done:
            continue
        samples = seen.done.get(group_hash(seen.want.name, uid)) if seen.done else None
        if samples is None:
            fresh = fresh.set(uid, None)
            continue
        done, counted = done.set(uid, samples), counted + samples
        lost = size - samples
        fruitless = FruitlessSamples(((("NotCommitted", ""), lost),)) if lost else FruitlessSamples()
        tally += SampleTally(ended=size, failed=lost, fruitless=fruitless)
        acked, started = acked + samples, started + 1
    return replace(
        seen,
        uids=all_uids,
        fresh=fresh,
        settled=done,
        counted=counted,
        tally=tally,
        acked=acked,
        begun=started,
    )


def _gateway(seen: Observed, name: str, *, ready: bool) -> Observed:
    others = {gateway: load for gateway, load in seen.gateways.items() if gateway != name}
    if not ready:
        return replace(seen, gateways=others)
    if name in seen.gateways:
        return seen
    load = sum(1 for gateway in seen.placed.values() if gateway == name)
    return replace(seen, gateways={**others, name: load})


def _looked(seen: Observed, gateway: str, said: Shelf) -> Observed:
    """What is not loaded cannot be told from what was never begun."""
    if not seen.loaded:
        return seen
    at = seen.settled_at
    others = seen.begun - len(seen.groups) - sum(at.values())
    first = not seen.pace.told  # else nobody asks
    open_only = first and not any(_may_be_whole(seen, group) for group in seen.groups.values())
    limits = seen.want.spec.staleness
    batch = limits.batch_size if limits is not None else 0
    settled = Settled(at=at, others=others, ready=seen.gateways, open_only=open_only, batch=batch)
    after = replace(seen, pace=seen.pace.looked(gateway, said, settled))
    before, now = ((one.version, one.published, one.done, one.taken) for one in (seen.pace, after.pace))
    return after if before == now else _named(after, JOB_KEY)


def _may_be_whole(seen: Observed, group: GroupObserved) -> bool:
    """Its gateway may be ahead of what is known here, but only of sessions whose end is known: those are sealed."""

    def ends(index: int, sample: SampleObserved) -> bool:
        if sample.state is not SampleState.LIVE:
            return sample.state is SampleState.ENDED
        one = seen.sessions.get(Ref(seen.want.name, group.uid, index, sample.attempt).name)
        if one is None or one.stop is not None or one.lost or one.deleted:
            return True
        return one.sandbox is not None and one.sandbox.exit is not None

    return all(ends(index, sample) for index, sample in enumerate(group.samples))


def _heard(seen: Observed, at: float, now: float) -> Observed:
    """Only a sign of life that ends a silence is news."""
    trainer, before = seen.want.spec.trainer, seen.heard_at
    if not at or trainer is None or (before is not None and at <= before):
        return seen
    after = replace(seen, heard_at=at)
    silent = before is not None and now >= before + trainer.heartbeat_seconds
    return _named(after, JOB_KEY) if silent else after


def _asked(seen: Observed, at: float, *, all_told: bool) -> Observed:
    """Awaited or not: gateways that a trainer asks anything are not idle. The first answer of all is news."""
    if seen.trainer_at is not None:
        return replace(seen, trainer_at=at) if at > seen.trainer_at else seen
    return _named(replace(seen, trainer_at=at), JOB_KEY) if all_told else seen


# -- groups and their sessions ----------------------------------------------------------------------------------------


def _of_group(seen: Observed, event: GroupEvent) -> Observed:
    match event:
        case events.SessionsFound(gateway, recalled, again):
            return _found(seen, gateway, recalled, again)
        case events.CommittedBefore(number):
            return _named(replace(seen, acked=seen.acked + number), JOB_KEY)
        case events.GroupBegun(uid, gateway):
            return _begin(seen, (uid,), gateway)
        case events.SessionOpened(ref, gateway, now, told):
            return _opened(seen, ref, gateway, now, told)
        case events.SessionReported(said, now):
            return _reported(seen, said, now)
        case events.SessionVanished(ref, now):
            return _vanished(seen, ref, now)
        case events.GroupCloseConfirmed(uid):
            return _closed(seen, uid)
        case events.GroupCommitted(uid, names):
            return _committed(seen, uid, names)
        case events.SessionCommitted(name):
            return _session_committed(seen, name)
        case events.SessionForgotten(ref):
            if ref.name in seen.placed:
                return seen  # it had ended by a record that is replaced since: the gateway tells it again
            remotes = seen.remotes.forget(ref) if ref.called else seen.remotes
            return replace(seen, sessions=seen.sessions.without(ref.name), remotes=remotes)
        case _:
            assert_never(event)


def _found(
    seen: Observed, gateway: str, recalled: tuple[events.Recalled, ...], again: frozenset[tuple[str, int]]
) -> Observed:
    """Groups of which nothing lives are put together apart and taken in at once: a job that is looked at anew may have
    100,000 of them."""
    live = {one.ref.uid for one in recalled if not one.said.state.ended}
    own = dict.fromkeys(one.ref.uid for one in recalled if not one.ref.called)
    seen = _begin(seen, own, gateway)
    ended = [one for one in recalled if not one.ref.called and one.ref.uid not in live]
    seen = _recalled_ended(seen, ended)
    for one in recalled:
        if one.ref.called:
            seen = _recalled_remote(seen, gateway, one)
        elif one.ref.uid in live:
            seen = _recalled(seen, gateway, one)
    before = {uid: group for uid in own if (group := seen.groups.get(uid)) is not None}
    seen = replace(
        seen, groups=seen.groups.with_all({uid: regained(group, again) for uid, group in before.items()})
    )
    return _named(_settle(seen, before), JOB_KEY)


def _recalled_ended(seen: Observed, recalled: list[events.Recalled]) -> Observed:
    """`_recalled` of sessions that have all ended."""
    samples = {
        one.ref.uid: list(group.samples)
        for one in recalled
        if (group := seen.groups.get(one.ref.uid)) is not None
    }
    for one in recalled:
        if (those := samples.get(one.ref.uid)) is not None:
            those[one.ref.sample] = ended_as(one.said, those[one.ref.sample])
    known: dict[str, SessionObserved] = {one.ref.name: one.seen for one in recalled if one.seen is not None}
    somewhere = any(_got_somewhere(one.said) for one in recalled)
    return replace(
        seen,
        groups=seen.groups.with_all(
            {uid: replace(seen.groups[uid], samples=tuple(those)) for uid, those in samples.items()}
        ),
        firsts=seen.firsts.somewhere() if somewhere else seen.firsts,
        sessions=seen.sessions.with_all(known),
        changed=(*seen.changed, *known),
    )


def _got_somewhere(said: SessionSummary) -> bool:
    return bool(said.turns) or (said.state is SessionState.FINALIZED and said.failure_reason is None)


def _recalled(seen: Observed, gateway: str, one: events.Recalled) -> Observed:
    ref, said, known = one.ref, one.said, one.seen
    seen = _begin(seen, (ref.uid,), gateway)
    if _got_somewhere(said):
        seen = replace(seen, firsts=seen.firsts.somewhere())
    if said.state.ended:
        seen = _sample(seen, ref, ended_as(said, seen.sample(ref)))
    else:
        starting = known is not None and not known.lost and not begun(known)
        seen = _live(seen, SessionObserved(ref=ref, opened_at=said.created_at), gateway, starting=starting)
        if known is not None:
            seen = _waits(seen, ref, words_of(known.sandbox), starting=starting)
            seen = _sample(seen, ref, replace(seen.sample(ref), never_started=never_started(known.sandbox)))
            seen = _judge_waits(seen, ref, words_of(known.verifier))
    if known is None:
        return seen
    return _named(replace(seen, sessions=seen.sessions.set(ref.name, known)), ref.name)


def _recalled_remote(seen: Observed, gateway: str, one: events.Recalled) -> Observed:
    ref, said, known = one.ref, one.said, one.seen
    if said.state.ended:
        counts = ended_as(said, SampleObserved()).failure is not FailureClass.INFRA
        seen = replace(seen, remotes=seen.remotes.opened(ref, gateway).ended(ref, counts=counts))
    else:
        seen = _remote_opened(seen, ref, gateway, said.created_at)
    if known is not None:
        seen = replace(seen, sessions=seen.sessions.set(ref.name, known))
    if known is None or known.committed:
        seen = replace(seen, remotes=seen.remotes.forget(ref))
    return _named(seen, ref.name)


def _begin(seen: Observed, uids: Iterable[str], gateway: str) -> Observed:
    """All sessions of these tasks are being opened at this gateway, unless they were begun elsewhere."""
    fresh = [uid for uid in uids if uid not in seen.groups and uid not in seen.settled]
    if not fresh:
        return seen
    waiting = (SampleObserved(),) * seen.want.spec.group_size
    groups = {uid: GroupObserved(uid=uid, gateway=gateway, samples=waiting) for uid in fresh}
    return replace(
        seen,
        groups=seen.groups.with_all(groups),
        fresh=seen.fresh.without_all(fresh),
        uids=seen.uids.with_all(dict.fromkeys(fresh)),
        begun=seen.begun + len(fresh),
    )


def _opened(seen: Observed, ref: Ref, gateway: str, now: float, told: Told | None) -> Observed:
    """Siblings of the first go where it is, even if a dead operator made it."""
    if ref.name in seen.sessions:
        return seen
    seen = _begin(seen, (ref.uid,), gateway)
    if (group := seen.groups.get(ref.uid)) and set(group.samples) == {SampleObserved()}:
        seen = replace(seen, groups=seen.groups.set(ref.uid, replace(group, gateway=gateway)))
    seen = _live(seen, SessionObserved(ref=ref, opened_at=now, told=told), gateway, starting=True)
    seen = replace(seen, firsts=seen.firsts.opened(ref.name, ref.uid))
    return _named(seen, ref.name, JOB_KEY)


def _reported(seen: Observed, said: SessionSummary, now: float) -> Observed:
    known = seen.sessions.get(said.session_id)
    if known is None:
        return seen
    if known.summary is not None and known.summary.state.ended and not said.state.ended:
        return seen  # an answer that was overtaken
    said = by_present_clock(said, seen.steps, now, known.summary)
    seen = _session(seen, said.session_id, summary=said, looked_at=now)
    if said.state.ended:
        seen = _over(seen, known.ref, ended_as(said, seen.sample(known.ref)))
    return _named(seen, said.session_id)


def _vanished(seen: Observed, ref: Ref, now: float) -> Observed:
    known = seen.sessions.get(ref.name)
    if known is None:
        return seen
    end = known.sandbox.exit if known.sandbox is not None else None
    untold = end is not None and end.reason is FailureReason.DRIVER_LOST  # it need not have been there
    reason = FailureReason.DRIVER_LOST if untold else FailureReason.GATEWAY_LOST
    said = known.summary or SessionSummary(session_id=ref.name, state=SessionState.FINALIZED)
    said = replace(
        said,
        state=SessionState.FINALIZED,
        failure_class=FAILURE_CLASS[reason].value,
        failure_reason=reason.value,
        failure_detail="",
    )
    seen = _session(seen, ref.name, summary=said, looked_at=now)
    lost = ended_with(reason, ref.attempt, now, seen.sample(ref))
    return _named(_over(seen, ref, lost), ref.name)


def _closed(seen: Observed, uid: str) -> Observed:
    if (group := seen.groups.get(uid)) is None:
        return seen
    closed = replace(seen, groups=seen.groups.set(uid, replace(group, closed=True)))
    return _named(_settle(closed, (uid,)), JOB_KEY)


def _committed(seen: Observed, uid: str, names: tuple[str, ...]) -> Observed:
    seen = replace(seen, committed=seen.committed.set(uid, None))
    for name in names:
        if name in seen.sessions:
            seen = _named(_session(seen, name, committed=True), name)
    return _named(seen, JOB_KEY)


def _session_committed(seen: Observed, name: str) -> Observed:
    known = seen.sessions.get(name)
    if known is None or known.committed:
        return seen
    seen = _session(seen, name, committed=True)
    if known.remote:
        seen = replace(seen, remotes=seen.remotes.forget(known.ref))
    else:
        seen = replace(seen, acked=seen.acked + 1)
    return _named(seen, name, JOB_KEY)


# -- one attempt ------------------------------------------------------------------------------------------------------


def _of_attempt(seen: Observed, event: AttemptEvent) -> Observed:
    if isinstance(event, VerifierEvent):
        return _of_verifier(seen, event)
    match event:
        case events.OutageSeen(gateway, outage):
            return _outage(seen, gateway, outage)
        case events.AgentSeen(ref, running):
            return _agent(seen, ref, running)
        case events.AgentHeld(ref, why):
            return _waits(seen, ref, why, starting=True)
        case events.AgentStopping(ref, stop, now):
            return _stopping(seen, ref, stop, now)
        case events.AgentKilled(ref):
            return _change(seen, ref, killed=True)
        case events.SideCarsStopping(ref, now):
            return _change(seen, ref, side_cars_stop_at=now)
        case events.ObjectWritten(ref, told_now):
            known = seen.sessions.get(ref.name)
            same = known is None or known.told is told_now
            return seen if same else _change(seen, ref, told=told_now)
        case events.ObjectDeleted(ref):
            return _change(seen, ref, deleted=True, told=None)
        case _:
            assert_never(event)


def _of_verifier(seen: Observed, event: VerifierEvent) -> Observed:
    match event:
        case events.VerifierSeen(ref, running):
            return _verifier(seen, ref, running)
        case events.VerifierHeld(ref, why):
            return _judge_waits(seen, ref, why)
        case events.VerifierStopping(ref, now):
            known = seen.sessions.get(ref.name)
            told = known is None or known.verifier_stop_at is not None
            return seen if told else _change(seen, ref, verifier_stop_at=now)
        case events.VerifierKilled(ref):
            return _change(seen, ref, verifier_killed=True)
        case _:
            assert_never(event)


def merged(before: Running | None, now: Running) -> Running:
    """What is known of a program: an end stays what it was, whatever becomes of the rest of its pod, and one that
    started has started."""
    if before is None:
        return now
    if before.exit is not None:
        return replace(before, side_cars=min(before.side_cars, now.side_cars))
    return (
        now
        if now.started_at is not None or now.exit is not None
        else replace(now, started_at=before.started_at)
    )


def _looked_at(known: SessionObserved, before: Running | None, now: Running) -> float:
    """When its gateway was asked, as far as that answer knows of an end that is told now: one that came before the news
    does not, whatever time the end has. Nodes tell it in whole seconds, and by clocks that may be behind."""
    if now.exit is None or (before is not None and before.exit is not None):
        return known.looked_at
    return 0.0 if now.exit.at <= known.looked_at else known.looked_at


def _outage(seen: Observed, gateway: str, outage: Outage) -> Observed:
    sessions, which = seen.sessions, (outage.since, outage.reason)
    for name, home in seen.placed.items():
        known = sessions.get(name)
        if home != gateway or known is None:
            continue
        if outage.until is None or outage.until >= known.opened_at:
            others = [one for one in known.outages if (one.since, one.reason) != which]
            sessions = sessions.set(name, replace(known, outages=(*others, outage)[-OUTAGES_MAX:]))
    return replace(seen, sessions=sessions)


def _agent(seen: Observed, ref: Ref, running: Running) -> Observed:
    known = seen.sessions.get(ref.name)
    if known is None:
        return seen
    running = merged(known.sandbox, running)
    looked_at = _looked_at(known, known.sandbox, running)
    seen = _session(seen, ref.name, sandbox=running, looked_at=looked_at)
    begun = running.started_at is not None or running.exit is not None
    seen = _waits(seen, ref, words_of(running), starting=not begun, never=never_started(running))
    return _named(seen, ref.name)


def _verifier(seen: Observed, ref: Ref, running: Running) -> Observed:
    known = seen.sessions.get(ref.name)
    if known is None:
        return seen
    judge = merged(known.verifier, running)
    seen = _session(seen, ref.name, verifier=judge, looked_at=_looked_at(known, known.verifier, judge))
    return _judge_waits(_named(seen, ref.name), ref, words_of(judge))


def _judge_waits(seen: Observed, ref: Ref, words: str) -> Observed:
    sample = seen.sample(ref)
    live = sample.state is SampleState.LIVE and sample.attempt == ref.attempt and not ref.called
    if not live or sample.verifier_waits_for == words:
        return seen
    return _named(_sample(seen, ref, replace(sample, verifier_waits_for=words)), JOB_KEY)


def words_of(running: Running | None) -> str:
    """What it waits for before it starts."""
    if (
        running is None
        or running.waiting is None
        or running.started_at is not None
        or running.exit is not None
    ):
        return ""
    return running.waiting.words


def _waits(seen: Observed, ref: Ref, words: str, *, starting: bool, never: bool = False) -> Observed:
    """What has started, has started."""
    sample = seen.sample(ref)
    if not sample.starting or sample.attempt != ref.attempt or (starting and sample.waits_for == words):
        return seen
    sample = replace(sample, starting=starting, waits_for=words, never_started=never)
    return _named(_sample(seen, ref, sample), JOB_KEY)


def _stopping(seen: Observed, ref: Ref, stop: Stop, now: float) -> Observed:
    """The first reason stands."""
    known = seen.sessions.get(ref.name)
    if known is None or known.stop is not None:
        return seen
    end = known.sandbox.exit if known.sandbox is not None else None
    late = end is not None and end.at <= known.looked_at
    seen = _session(seen, ref.name, stop=stop, stop_at=now, stop_late=late)
    sample = seen.sample(ref)
    if sample.attempt == ref.attempt:
        seen = _sample(seen, ref, replace(sample, stopping=True))
    return _named(seen, ref.name)


# -- agents elsewhere -------------------------------------------------------------------------------------------------


def _of_remote(seen: Observed, event: RemoteEvent) -> Observed:
    remotes = seen.remotes
    match event:
        case events.RemoteAsked(ref, gateway):
            if ref.name in seen.sessions:
                return seen
            return _named(replace(seen, remotes=remotes.ask(ref, gateway)), ref.name)
        case events.RemotePlaced(uid, gateway):
            return replace(seen, remotes=remotes.place(uid, gateway))
        case events.RemoteOpened(ref, gateway, now):
            return _remote_opened(seen, ref, gateway, now)
        case events.RemoteWithdrawn(name):
            return replace(seen, remotes=remotes.withdrawn(name))
        case events.RemoteRefused(ref):
            return replace(seen, remotes=remotes.refused(ref))
        case _:
            assert_never(event)


def _remote_opened(seen: Observed, ref: Ref, gateway: str, now: float) -> Observed:
    seen = replace(seen, remotes=seen.remotes.opened(ref, gateway))
    if ref.name in seen.sessions:
        return seen
    seen = _placed(seen, SessionObserved(ref=ref, opened_at=now, told=Told.NOTHING, remote=True), gateway)
    return _named(seen, ref.name, JOB_KEY)


# -- steps that several events share ----------------------------------------------------------------------------------


def _session(seen: Observed, name: str, **fields: Any) -> Observed:
    known = seen.sessions.get(name)
    if known is None:
        return seen
    return replace(seen, sessions=seen.sessions.set(name, replace(known, **fields)))


def _change(seen: Observed, ref: Ref, **fields: Any) -> Observed:
    return _named(_session(seen, ref.name, **fields), ref.name) if ref.name in seen.sessions else seen


def _live(seen: Observed, session: SessionObserved, gateway: str, *, starting: bool) -> Observed:
    ref = session.ref
    before = seen.sample(ref)
    sample = SampleObserved(
        state=SampleState.LIVE,
        attempt=ref.attempt,
        starting=starting,
        spent=before.spent,
        refused=before.refused,
    )
    return _placed(_sample(seen, ref, sample), session, gateway)


def _placed(seen: Observed, session: SessionObserved, gateway: str) -> Observed:
    name = session.ref.name
    return replace(
        seen,
        sessions=seen.sessions.set(name, session),
        placed=seen.placed.set(name, gateway),
        gateways=_loaded(seen, gateway, 1),
    )


def _loaded(seen: Observed, gateway: str | None, by: int) -> dict[str, int]:
    return {name: load + by * (name == gateway) for name, load in seen.gateways.items()}


def _over(seen: Observed, ref: Ref, ended: SampleObserved) -> Observed:
    gateway = seen.placed.get(ref.name)
    seen = replace(seen, placed=seen.placed.without(ref.name), gateways=_loaded(seen, gateway, -1))
    if ref.called:
        counts = ended.failure is not FailureClass.INFRA
        return _named(replace(seen, remotes=seen.remotes.ended(ref, counts=counts)), JOB_KEY)
    if gateway is None or seen.sample(ref).attempt != ref.attempt:
        return seen
    seen = replace(seen, firsts=seen.firsts.ended(seen.sessions[ref.name], ended))
    return _named(_settle(_sample(seen, ref, ended), (ref.uid,)), JOB_KEY)


def _sample(seen: Observed, ref: Ref, sample: SampleObserved) -> Observed:
    group = seen.groups.get(ref.uid)
    if group is None:
        return seen
    samples = (*group.samples[: ref.sample], sample, *group.samples[ref.sample + 1 :])
    return replace(seen, groups=seen.groups.set(ref.uid, replace(group, samples=samples)))


def _settle(seen: Observed, uids: Iterable[str]) -> Observed:
    """Those of these groups that are."""
    groups = (seen.groups.get(uid) for uid in uids)
    done = {group.uid: group for group in groups if group is not None and settled(group)}
    if not done:
        return seen
    good_ones = {uid: sum(good(sample) for sample in group.samples) for uid, group in done.items()}
    return replace(
        seen,
        groups=seen.groups.without_all(done),
        settled=seen.settled.with_all(good_ones),
        counted=seen.counted + sum(good_ones.values()),
        settled_at=Counter(seen.settled_at) + Counter(group.gateway for group in done.values()),
        tally=sum(map(count, done.values()), seen.tally),
        now_settled=(*seen.now_settled, *done),
    )
