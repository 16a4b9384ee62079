"""What was seen, kept slim: facts in, `JobObserved` and `SessionObserved` out.

Sessions are kept while they live or wait for their commit; groups while they are not settled; the rest is counted.
Every change names the keys that must be planned again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sandgate.contract.errors import FailureClass, FailureReason
from sandgate.contract.names import group_hash
from sandgate.contract.session import SessionOutcome, SessionState, SessionSummary
from sandgate.contract.status import RolloutJobStatus
from sandgate.operator.observed.remotes import Remotes
from sandgate.operator.observed.restarts import Recall, lost, of_job, regained
from sandgate.operator.plan.actions import (
    OUTAGES_MAX,
    GroupObserved,
    Hopeless,
    JobObserved,
    JobWant,
    Outage,
    Provided,
    Ref,
    Running,
    SampleObserved,
    SampleState,
    SampleTally,
    SessionObserved,
    Stop,
    Told,
)
from sandgate.operator.plan.firsts import Firsts
from sandgate.operator.plan.groups import begun, count, ended_as, ended_with, good, settled

JOB_KEY = "job"
"""The job's own key; sessions have their names, which are longer."""


@dataclass(slots=True)
class Observed:
    """One job and its sessions. Not for several threads."""

    want: JobWant
    changed: Callable[[str], None]
    """Called with each key that must be planned again."""
    started_at: float = 0.0
    sessions: dict[str, SessionObserved] = field(default_factory=dict)
    gateways: dict[str, int] = field(default_factory=dict)
    groups: dict[str, GroupObserved] = field(default_factory=dict)
    settled: dict[str, int] = field(default_factory=dict)
    """Settled groups -> samples of them that count."""
    fresh: dict[str, None] = field(default_factory=dict)
    remotes: Remotes = field(default_factory=Remotes)
    firsts: Firsts = field(default_factory=Firsts)
    tally: SampleTally = field(default_factory=SampleTally)
    committed: set[str] = field(default_factory=set)
    """Groups whose trajectories are with the trainer for good."""
    done: Mapping[str, int] = field(default_factory=dict)
    """names.group_hash of tasks that are done -> samples of it that the trainer has."""
    status: RolloutJobStatus | None = None
    draining: bool = False
    policy_version: int = 0
    engines: int | None = None
    heard_at: float | None = None
    """When the trainer last gave a sign of life; None: none is waited for."""
    provided: Provided | None = None
    provided_for: int = 0
    loaded: bool = True
    """All tasks that there are now, and all that gateways know, were taken in."""
    more: bool = False
    """Further tasks may come."""
    problem: str = ""
    """Why they cannot be had."""
    _acked: int = 0
    _uids: set[str] = field(default_factory=set)
    """Of all tasks: those told, and those begun, for a queue forgets what is finished and may bring it again."""
    _begun: int = 0
    _placed: dict[str, str] = field(default_factory=dict)
    """Live session -> its gateway."""
    _wake_at: float | None = None
    _on_settled: list[Callable[[str], None]] = field(default_factory=list)

    # -- out ----------------------------------------------------------------------------------------------------------

    def job(self) -> JobObserved:
        """A view for one plan: it shares what is inside, and a plan only reads."""
        return JobObserved(
            gateways=self.gateways,
            fresh=self.fresh.keys(),
            groups=self.groups,
            remote=[self.sessions[name] for name in self.remotes.live],
            tally=self.tally,
            begun=self._begun,
            committed=len(self.committed) * self.want.spec.group_size + self._acked,
            total=len(self._uids) * self.want.spec.group_size,
            started_at=self.started_at,
            more=self.more or not self.loaded,
            problem=self.problem,
            owed=self._owed(),
            hopeless=self._hopeless(),
            draining=self.draining,
            policy_version=self.policy_version,
            engines=self.engines,
            heard_at=self.heard_at,
            provided=self.provided,
            provided_for=self.provided_for,
            status=self.status,
            wake_at=self._wake_at,
        )

    def _hopeless(self) -> Hopeless | None:
        spec, tasks = self.want.spec, len(self._uids)
        total = 0 if self._acked else tasks * spec.group_size  # what a trainer has, got somewhere
        more = self.more or not self.loaded
        return self.firsts.hopeless(together=spec.parallelism, total=total, tasks=tasks, more=more)

    def _owed(self) -> int | None:
        if not self.loaded:
            return None
        good_ones = sum(self.settled.values()) + sum(
            good(sample) for group in self.groups.values() for sample in group.samples
        )
        return max(0, good_ones - self._acked) + self.remotes.owed

    @property
    def live(self) -> list[SessionObserved]:
        """Sessions that are not sealed."""
        return [self.sessions[name] for name in self._placed if name in self.sessions]

    def gateway_of(self, uid: str) -> str:
        """Where a begun, unsettled group is."""
        return self.groups[uid].gateway

    def knows(self, uid: str) -> bool:
        """It is one of the job's own tasks."""
        return uid in self.fresh or uid in self.groups or uid in self.settled

    def placed(self, name: str) -> str:
        """Where a live session is; empty for any other."""
        return self._placed.get(name, "")

    def on_settled(self, call: Callable[[str], None]) -> None:
        """`call(uid)` when a group settles."""
        self._on_settled.append(call)

    # -- in: the job --------------------------------------------------------------------------------------------------

    def tasks(self, uids: Iterable[str]) -> None:
        """Further tasks of the job, in order."""
        for uid in uids:
            if uid in self.remotes.homes:
                self.settled.setdefault(uid, 0)  # agents elsewhere do it: its place in a queue is free
                continue
            self._uids.add(uid)
            if uid not in self.groups and uid not in self.settled:
                self._fresh(uid)
        self.changed(JOB_KEY)

    def _fresh(self, uid: str) -> None:
        samples = self.done.get(group_hash(self.want.name, uid)) if self.done else None
        if samples is None:
            self.fresh[uid] = None
            return
        ended = self.want.spec.group_size
        self.settled[uid] = samples
        self.tally += SampleTally(ended=ended, failed=ended - samples)
        self._acked += samples
        self._begun += 1

    def no_tasks(self, why: str) -> None:
        """They cannot be had; empty: now they can."""
        if why != self.problem:
            self.problem = why
            self.changed(JOB_KEY)

    def no_more(self) -> None:
        """These are all."""
        if self.more:
            self.more = False
            self.changed(JOB_KEY)

    def gateway(self, name: str, *, ready: bool) -> None:
        """A gateway takes sessions, or none any more."""
        if ready:
            self.gateways.setdefault(name, sum(1 for one in self._placed.values() if one == name))
        else:
            self.gateways.pop(name, None)
        self.changed(JOB_KEY)

    def provides(self, what: Provided, generation: int) -> None:
        """Gateways and engine are set up so, as that generation of the job says."""
        self.provided, self.provided_for = what, generation
        self.changed(JOB_KEY)

    def engines_answer(self, count: int) -> None:
        """So many do."""
        if count != self.engines:
            self.engines = count
            self.changed(JOB_KEY)

    def version(self, version: int) -> None:
        """Of the weights, as the trainer told; it never goes back."""
        if version > self.policy_version:
            self.policy_version = version
            self.changed(JOB_KEY)

    def heard(self, at: float, now: float) -> None:
        """The trainer gave a sign of life. Only one that ends a silence is news."""
        trainer = self.want.spec.trainer
        if trainer is None or (self.heard_at is not None and at <= self.heard_at):
            return
        was, self.heard_at = self.heard_at, at
        if was is not None and now >= was + trainer.heartbeat_seconds:
            self.changed(JOB_KEY)

    def outage(self, gateway: str, outage: Outage) -> None:
        """A gateway, or all engines behind it, are away, or are back after `outage`. One that goes on is one."""
        for name in (name for name, at in self._placed.items() if at == gateway):
            seen = self.sessions.get(name)
            if seen is not None and (outage.until is None or outage.until >= seen.opened_at):
                which = outage.since, outage.reason
                others = [one for one in seen.outages if (one.since, one.reason) != which]
                self.sessions[name] = replace(seen, outages=(*others, outage)[-OUTAGES_MAX:])

    def drain(self) -> None:
        """Start nothing new."""
        self.draining = True
        self.changed(JOB_KEY)

    def wrote(self, status: RolloutJobStatus) -> None:
        """The status was written."""
        self.status = status

    def waits(self, key: str, at: float | None) -> None:
        """When a key will be planned again anyway."""
        if key == JOB_KEY:
            self._wake_at = at
        elif key in self.sessions:
            self.sessions[key] = replace(self.sessions[key], wake_at=at)

    # -- in: sessions -------------------------------------------------------------------------------------------------

    def found(
        self,
        gateway: str,
        listed: Sequence[SessionSummary],
        recall: Recall = lost,
        again: Collection[tuple[str, int]] = (),
    ) -> None:
        """What a gateway held when this driver started. `again`: samples (uid, index) that have ended, and are to be
        tried anew."""
        for ref, said in of_job(self.want, listed):
            if ref.called:
                self._found_remote(ref, gateway, said, recall)
                continue
            seen = recall(ref, said)
            self.begin(ref.uid, gateway)
            if said.turns:
                self.firsts.somewhere()
            if said.state.ended:
                self._sample(ref, ended_as(said, self._at(ref)))
            else:
                starting = seen is not None and not seen.lost and not begun(seen)
                self._live(ref, gateway, said.created_at, starting=starting)
            if seen is not None:
                self.sessions[ref.name] = seen
                self.changed(ref.name)
        for uid in list(self.groups):
            self.groups[uid] = regained(self.groups[uid], again)
            self._settle(uid)
        self.changed(JOB_KEY)

    def _found_remote(self, ref: Ref, gateway: str, said: SessionSummary, recall: Recall) -> None:
        seen = recall(ref, said)
        if said.state.ended:
            self.remotes.opened(ref, gateway)
            self.remotes.ended(ref, counts=ended_as(said, SampleObserved()).failure is not FailureClass.INFRA)
        else:
            self.opened_remote(ref, gateway, said.created_at)
        if seen is not None:
            self.sessions[ref.name] = seen
        if seen is None or seen.committed:
            self.remotes.forget(ref)
        self.changed(ref.name)

    def ask(self, ref: Ref, gateway: str) -> None:
        """Somebody wants a session for an agent elsewhere."""
        if ref.name not in self.sessions:
            self.remotes.asked[ref.name] = (ref, gateway)
            self.changed(ref.name)

    def begin(self, uid: str, gateway: str) -> None:
        """Sessions of this task are being opened, at this gateway: all of them, unless it was begun elsewhere."""
        if uid not in self.groups and uid not in self.settled:
            waiting = (SampleObserved(),) * self.want.spec.group_size
            self.groups[uid] = GroupObserved(uid=uid, gateway=gateway, samples=waiting)
            self.fresh.pop(uid, None)
            self._uids.add(uid)
            self._begun += 1

    def opened_remote(self, ref: Ref, gateway: str, now: float) -> None:
        """Its gateway holds a remote session."""
        self.remotes.opened(ref, gateway)
        if ref.name in self.sessions:
            return
        self.sessions[ref.name] = SessionObserved(ref=ref, opened_at=now, told=Told.NOTHING, remote=True)
        self._place(ref, gateway)
        self.changed(ref.name)
        self.changed(JOB_KEY)

    def opened(self, ref: Ref, gateway: str, now: float, told: Told | None = None) -> None:
        """Its gateway holds it; siblings of the first go there, even if a dead operator made it. `told`: what its
        AgentSession says, if it has one."""
        if ref.name in self.sessions:
            return
        self.begin(ref.uid, gateway)
        if (group := self.groups.get(ref.uid)) and set(group.samples) == {SampleObserved()}:
            self.groups[ref.uid] = replace(group, gateway=gateway)
        self._live(ref, gateway, now, starting=True)
        self.firsts.opened(ref.name, ref.uid)
        self.sessions[ref.name] = replace(self.sessions[ref.name], told=told)
        self.changed(ref.name)
        self.changed(JOB_KEY)

    def told(self, said: SessionSummary, now: float) -> None:
        """How a session stands, by its gateway."""
        seen = self.sessions.get(said.session_id)
        if seen is None:
            return
        self.sessions[said.session_id] = replace(seen, summary=said, looked_at=now)
        if said.state.ended:
            self._over(seen.ref, ended_as(said, self._at(seen.ref)))
        self.changed(said.session_id)

    def sandbox(self, ref: Ref, running: Running) -> None:
        """The agent is being started, runs, or has ended."""
        seen = self.sessions.get(ref.name)
        if seen is None:
            return
        self.sessions[ref.name] = replace(seen, sandbox=running)
        if running.started_at is not None or running.exit is not None:
            sample = self._at(ref)
            if sample.starting and sample.attempt == ref.attempt:
                self._sample(ref, replace(sample, starting=False))
                self.changed(JOB_KEY)
        self.changed(ref.name)

    def verifier(self, ref: Ref, running: Running) -> None:
        """The same of its verifier."""
        self._change(ref, verifier=running)

    def wrote_session(self, ref: Ref, told: Told | None) -> None:
        """Its AgentSession says that now; None: it is gone."""
        seen = self.sessions.get(ref.name)
        if seen is not None and seen.told is not told:
            self._change(ref, told=told)

    def deleted(self, ref: Ref) -> None:
        """Somebody deleted its AgentSession."""
        self._change(ref, deleted=True, told=None)

    def killed(self, ref: Ref) -> None:
        """It was ended by force."""
        self._change(ref, killed=True)

    def stopping_verifier(self, ref: Ref, now: float) -> None:
        """Its verifier was told to stop."""
        seen = self.sessions.get(ref.name)
        if seen is not None and seen.verifier_stop_at is None:
            self._change(ref, verifier_stop_at=now)

    def killed_verifier(self, ref: Ref) -> None:
        """Its verifier was ended by force."""
        self._change(ref, verifier_killed=True)

    def stopping(self, ref: Ref, stop: Stop, now: float = 0.0) -> None:
        """It was told to stop. The first reason stands."""
        seen = self.sessions.get(ref.name)
        if seen is None or seen.stop is not None:
            return
        self.sessions[ref.name] = replace(seen, stop=stop, stop_at=now)
        sample = self._at(ref)
        if sample.attempt == ref.attempt:
            self._sample(ref, replace(sample, stopping=True))
        self.changed(ref.name)

    def sealed(self, ref: Ref, outcome: SessionOutcome, said: SessionSummary | None, now: float) -> None:
        """Its gateway finalized it."""
        seen = self.sessions.get(ref.name)
        if seen is None:
            return
        reason = outcome.failure_reason
        summary = said or seen.summary or SessionSummary(session_id=ref.name, state=SessionState.FINALIZED)
        summary = replace(summary, state=SessionState.FINALIZED, failure_detail=outcome.detail)
        self.sessions[ref.name] = replace(seen, summary=summary, looked_at=now)
        self._over(ref, ended_with(reason, ref.attempt, now, self._at(ref)))
        self.changed(ref.name)

    def vanished(self, ref: Ref, now: float) -> None:
        """Its gateway does not know it (its journal was lost)."""
        self.sealed(ref, SessionOutcome(failure_reason=FailureReason.GATEWAY_LOST), None, now)

    def closed(self, uid: str) -> None:
        """The gateway knows that no more sessions of this group count."""
        if uid in self.groups:
            self.groups[uid] = replace(self.groups[uid], closed=True)
            self._settle(uid)
            self.changed(JOB_KEY)

    def commit(self, uid: str, names: Iterable[str]) -> None:
        """The trajectories of this group, these sessions, are with the trainer for good."""
        self.committed.add(uid)
        for name in names:
            if name in self.sessions:
                self.sessions[name] = replace(self.sessions[name], committed=True)
                self.changed(name)
        self.changed(JOB_KEY)

    def commit_session(self, name: str) -> None:
        """All trajectories of this session are with the trainer for good."""
        seen = self.sessions.get(name)
        if seen is None or seen.committed:
            return
        self.sessions[name] = replace(seen, committed=True)
        if seen.remote:
            self.remotes.forget(seen.ref)
        else:
            self._acked += 1
        self.changed(name)
        self.changed(JOB_KEY)

    def committed_before(self, count: int) -> None:
        """Sessions whose trajectories were with the trainer before this driver started."""
        self._acked += count
        self.changed(JOB_KEY)

    def forget(self, ref: Ref) -> None:
        """Nothing of it is needed any more."""
        self.sessions.pop(ref.name, None)
        if ref.called:
            self.remotes.forget(ref)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _change(self, ref: Ref, **fields: Any) -> None:
        if (seen := self.sessions.get(ref.name)) is not None:
            self.sessions[ref.name] = replace(seen, **fields)
            self.changed(ref.name)

    def _live(self, ref: Ref, gateway: str, now: float, *, starting: bool) -> None:
        spent = self._at(ref).spent
        self._sample(
            ref,
            SampleObserved(state=SampleState.LIVE, attempt=ref.attempt, starting=starting, spent=spent),
        )
        self.sessions[ref.name] = SessionObserved(ref=ref, opened_at=now)
        self._place(ref, gateway)

    def _place(self, ref: Ref, gateway: str) -> None:
        self._placed[ref.name] = gateway
        if gateway in self.gateways:
            self.gateways[gateway] += 1

    def _over(self, ref: Ref, ended: SampleObserved) -> None:
        gateway = self._placed.pop(ref.name, None)
        if gateway in self.gateways:
            self.gateways[gateway] -= 1
        if ref.called:
            self.remotes.ended(ref, counts=ended.failure is not FailureClass.INFRA)
            self.changed(JOB_KEY)
        elif gateway is not None and self._at(ref).attempt == ref.attempt:
            self.firsts.ended(self.sessions[ref.name], ended)
            self._sample(ref, ended)
            self._settle(ref.uid)
            self.changed(JOB_KEY)

    def _at(self, ref: Ref) -> SampleObserved:
        group = self.groups.get(ref.uid)
        return SampleObserved() if group is None else group.samples[ref.sample]

    def _sample(self, ref: Ref, sample: SampleObserved) -> None:
        group = self.groups.get(ref.uid)
        if group is not None:
            head, tail = group.samples[: ref.sample], group.samples[ref.sample + 1 :]
            self.groups[ref.uid] = replace(group, samples=(*head, sample, *tail))

    def _settle(self, uid: str) -> None:
        group = self.groups.get(uid)
        if group is None or not settled(group):
            return
        del self.groups[uid]
        self.settled[uid] = sum(good(sample) for sample in group.samples)
        self.tally += count(group)
        for call in self._on_settled:
            call(uid)
