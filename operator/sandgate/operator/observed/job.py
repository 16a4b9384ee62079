"""Observed: the frozen record of what an operator has seen of one job, kept slim, and the planner's view of it. (pure)

Sessions are kept while they live or wait for their commit; groups while they are not settled; the rest is counted.
Only `fold.apply` makes a later record of an earlier one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sandgate.contract.status import JobCondition, RolloutJobStatus
from sandgate.operator.observed.frozen_map import FrozenMap
from sandgate.operator.observed.gateway_times import ClockStep
from sandgate.operator.observed.pace import Pace
from sandgate.operator.observed.remotes import Remotes
from sandgate.operator.plan.actions import (
    GroupObserved,
    Hopeless,
    JobObserved,
    JobWant,
    Provided,
    Ref,
    SampleObserved,
    SampleTally,
    SessionObserved,
)
from sandgate.operator.plan.conditions import is_over, is_true
from sandgate.operator.plan.ends import untold
from sandgate.operator.plan.first_failures import PROOF_S, Firsts, nothing_starts
from sandgate.operator.plan.kueue import QueueSeen
from sandgate.operator.plan.settling import good, lives

JOB_KEY = "job"
"""The job's own key; sessions have their names, which are longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One job and its sessions."""

    want: JobWant
    started_at: float = 0.0
    steps: tuple[ClockStep, ...] = ()
    """Of the clock, the last of them."""
    sessions: FrozenMap[str, SessionObserved] = field(default_factory=FrozenMap)
    placed: FrozenMap[str, str] = field(default_factory=FrozenMap)
    """Session that is not sealed -> its gateway."""
    gateways: Mapping[str, int] = field(default_factory=dict)
    """Those that take sessions -> sessions placed there that have not ended."""
    groups: FrozenMap[str, GroupObserved] = field(default_factory=FrozenMap)
    settled: FrozenMap[str, int] = field(default_factory=FrozenMap)
    """Settled groups -> samples of them that count."""
    counted: int = 0
    """All of these samples."""
    settled_at: Mapping[str, int] = field(default_factory=dict)
    """Gateway -> groups that settled there."""
    fresh: FrozenMap[str, None] = field(default_factory=FrozenMap)
    uids: FrozenMap[str, None] = field(default_factory=FrozenMap)
    """Of all tasks: those told, and those begun, for a queue forgets what is finished and may bring it again."""
    begun: int = 0
    """Groups that were ever begun."""
    remotes: Remotes = field(default_factory=Remotes)
    firsts: Firsts = field(default_factory=Firsts)
    tally: SampleTally = field(default_factory=SampleTally)
    committed: FrozenMap[str, None] = field(default_factory=FrozenMap)
    """Groups whose trajectories are with the trainer for good."""
    acked: int = 0
    """Samples that are, beside those of these groups."""
    done: Mapping[str, int] = field(default_factory=dict)
    """names.group_hash of tasks that are done -> samples of it that the trainer has."""
    status: RolloutJobStatus | None = None
    draining: bool = False
    pace: Pace = field(default_factory=Pace)
    """Of the trainer."""
    engines: int | None = None
    engine_trouble: str = ""
    """Why none answers."""
    gateway_trouble: str = ""
    """Why no gateway's pod is ready."""
    littered: str = ""
    """Of what too much is left by sessions that are over."""
    heard_at: float | None = None
    """When the trainer last gave a sign of life; None: none is waited for."""
    since: float = 0.0
    """When who observes began to."""
    trainer_at: float | None = None
    """When one last did, awaited or not; 0: never; None: no gateway has told yet."""
    provided: Provided | None = None
    provided_for: int = 0
    queue: QueueSeen | None = None
    """Kueue's side of it."""
    loaded: bool = True
    """All tasks that there are now, and all that gateways know, were taken in."""
    more: bool = False
    """Further tasks may come."""
    problem: str = ""
    """Why they cannot be had."""
    wake_at: float | None = None
    """When the job is planned again anyway."""
    changed: tuple[str, ...] = field(default=(), compare=False)
    """Keys that must be planned again by the event that was applied last."""
    now_settled: tuple[str, ...] = field(default=(), compare=False)
    """Groups that settled by it."""

    def job(self) -> JobObserved:
        """What a plan of the job sees."""
        return JobObserved(
            gateways=self.gateways,
            fresh=self.fresh,
            groups=self.groups,
            remote=[self.sessions[name] for name in self.remotes.live],
            elsewhere=any(
                not one.failed for _, task in self.remotes.newest.entries() for one in task.values()
            ),
            tally=self.tally,
            begun=self.begun,
            committed=len(self.committed) * self.want.spec.group_size + self.acked,
            total=len(self.uids) * self.want.spec.group_size,
            started_at=self.started_at,
            more=self.more or not self.loaded,
            problem=self.problem,
            owed=self._owed(),
            hopeless=self._hopeless(),
            proved=self._proved,
            proves_at=None if self._proved else self._proves_at(),
            draining=self.draining,
            policy_version=self.pace.version,
            published=self.pace.published or 0,
            taken=self.pace.taken,
            done=self.pace.done,
            engines=self.engines,
            engine_trouble=self.engine_trouble,
            gateway_trouble=self.gateway_trouble,
            littered=self.littered,
            heard_at=self.heard_at,
            trainer_at=self.trainer_at,
            since=self.since,
            provided=self.provided,
            provided_for=self.provided_for,
            status=self.status,
            queue=self.queue,
            wake_at=self.wake_at,
        )

    @property
    def _proved(self) -> bool:
        return self.firsts.proved or self.acked > 0

    def _proves_at(self) -> float | None:
        agents = (one.sandbox for one in self.live if one.sandbox is not None and one.sandbox.exit is None)
        started = (one.started_at for one in agents if one.started_at is not None)
        return min((at + PROOF_S for at in started), default=None)

    def _hopeless(self) -> Hopeless | None:
        spec, tasks = self.want.spec, len(self.uids)
        total = 0 if self.acked else tasks * spec.group_size  # what a trainer has, got somewhere
        more = self.more or not self.loaded
        found = self.firsts.hopeless(
            together=spec.parallelism, total=total, tasks=tasks, more=more, size=spec.group_size
        )
        return found if found or self._proved else nothing_starts(self.groups.values(), spec)

    def _owed(self) -> int | None:
        if not self.loaded:
            return None
        # Of a job that is over, a group that is not whole and was not closed will never be offered to anybody. One in
        # which something lives will be closed.
        over = is_over(self.status)
        groups = (group for group in self.groups.values() if group.closed or not over or lives(group))
        counted = self.counted + sum(good(sample) for group in groups for sample in group.samples)
        owed = max(0, counted - self.acked) + len(self.remotes.due)
        if is_true(self.status, JobCondition.COLLECTED):  # of what was collected nobody waits for anything
            return owed
        return owed + sum(1 for _ in untold(self.groups.values(), self.status))

    @property
    def live(self) -> list[SessionObserved]:
        """Sessions that are not sealed."""
        return [self.sessions[name] for name in self.placed if name in self.sessions]

    def sample(self, ref: Ref) -> SampleObserved:
        """The sample that an attempt is of."""
        group = self.groups.get(ref.uid)
        return SampleObserved() if group is None else group.samples[ref.sample]

    def gateway_of(self, uid: str) -> str:
        """Where a begun, unsettled group is."""
        return self.groups[uid].gateway

    def knows(self, uid: str) -> bool:
        """It is one of the job's own tasks."""
        return uid in self.fresh or uid in self.groups or uid in self.settled
