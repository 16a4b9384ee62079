"""A job, its gateways and a trainer without any process: what the pure parts decide is carried out at once, and what
gateways say is looked at when a test wants it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from sandgate.contract.manifest_decoder import decode, encode
from sandgate.contract.session import SessionState, SessionSummary
from sandgate.contract.status import RolloutJobStatus
from sandgate.operator.observed import events
from sandgate.operator.observed.fold import apply
from sandgate.operator.observed.job import Observed
from sandgate.operator.observed.pace import Pace, Shelf
from sandgate.operator.plan.actions import Exit, OpenSession, Ref, Running
from sandgate.operator.plan.job import plan_job
from sandgate.operator.plan.status import job_status
from tests.operator.plans import want

TASKS = 150


@dataclass(slots=True)
class Gateway:
    """What one knows of a job of groups of one session."""

    version: int | None = None
    offered: list[str] = field(default_factory=list)
    leased: list[str] = field(default_factory=list)
    acked: int = 0

    def says(self) -> Shelf:
        owed = len(self.offered) + len(self.leased)
        return Shelf(version=self.version, owed=owed, leased=len(self.leased))


@dataclass(slots=True)
class Job:
    """With `staleness` as said."""

    behind: int
    batch: int
    gateways: dict[str, Gateway]
    prompt: bool = False
    """What is sealed is known at once, before a trainer has learned from it, as it is outside of tests."""
    away: bool = False
    """No operator runs."""
    seen: Observed = field(init=False)
    running: list[tuple[Ref, str]] = field(default_factory=list)
    unreported: list[Ref] = field(default_factory=list)
    """Sealed at their gateways; the answer is on its way."""

    def __post_init__(self) -> None:
        self.begin(Pace())

    def begin(self, pace: Pace) -> None:
        spec: dict[str, Any] = {
            "staleness": {"maxVersionsBehind": self.behind, "batchSize": self.batch},
            "parallelism": 1000,
        }
        self.seen = Observed(want=want(**spec), pace=pace)
        self.see(events.TasksAdded(tuple(f"u{number}" for number in range(TASKS))), events.Proved())
        for name in self.gateways:
            self.see(events.GatewayChanged(name, ready=True))

    def see(self, *some: events.Event) -> None:
        for one in some:
            self.seen = apply(self.seen, one)

    @property
    def begun(self) -> int:
        return self.seen.begun

    @property
    def taken(self) -> int:
        return sum(len(one.leased) + one.acked for one in self.gateways.values())

    # -- what may happen ----------------------------------------------------------------------------------------------

    def plan(self) -> None:
        if self.away:
            return
        for action in plan_job(self.seen.want, self.seen.job(), 0.0):
            if isinstance(action, OpenSession):
                self.see(events.SessionOpened(action.ref, action.gateway, 0.0, None))
                self.running.append((action.ref, action.gateway))

    def end(self) -> None:
        if self.running:
            ref, gateway = self.running.pop(0)
            self.see(events.AgentSeen(ref, Running(0.0, 0.0, Exit(at=1.0, code=0))))
            self.gateways[gateway].offered.append(ref.uid)
            self.unreported.append(ref)
            if self.prompt:
                self.report()

    def report(self) -> None:
        if self.unreported:
            ref = self.unreported.pop(0)
            state = SessionState.FINALIZED
            said = SessionSummary(session_id=ref.name, state=state, job=ref.job, uid=ref.uid, turns=1)
            self.see(events.SessionReported(said, 1.0))

    def look(self, name: str) -> None:
        if not self.away:
            self.see(events.GatewayLooked(name, self.gateways[name].says()))

    def status(self) -> RolloutJobStatus:
        """That is to be written now."""
        return job_status(self.seen.want, self.seen.job(), 0.0)

    def restart(self, status: RolloutJobStatus | None = None) -> None:
        """Another operator takes over, with what stands in the job's status and in its gateways. `status`: the last
        that was written, if that is not the newest."""
        status = decode(RolloutJobStatus, encode(status or self.status()))
        while self.unreported:
            self.report()
        self.seen, self.away = replace(self.seen, pace=Pace.of_status(status)), False


@dataclass(slots=True)
class Trainer:
    """Consumes a batch of groups, publishes, and acknowledges at its checkpoints."""

    job: Job
    number: int = 1
    """Of its next version."""
    ahead: int = 0
    """Groups leased before they are asked for."""
    commit_every: int = 1
    publish_every: int = 1
    """Batches."""
    at_once: bool = False
    """What it leases is acknowledged then."""
    buffer: list[tuple[str, str]] = field(default_factory=list)
    uncommitted: list[tuple[str, str]] = field(default_factory=list)
    consumed: int = 0
    dropped: int = 0
    batches: int = 0
    published: int = 0
    learned: int = 0
    """Groups that it had consumed when it published last."""

    def tell(self, version: int) -> None:
        for one in self.job.gateways.values():
            one.version = version

    def lease(self) -> None:
        if len(self.buffer) < self.job.batch + self.ahead:
            for name, one in self.job.gateways.items():
                if one.offered:
                    one.leased.append(one.offered.pop(0))
                    self.buffer.append((name, one.leased[-1]))
                    if self.at_once:
                        self._acknowledge(*self.buffer[-1])
                    return

    def train(self) -> None:
        if len(self.buffer) < self.job.batch:
            return
        done, self.buffer = self.buffer[: self.job.batch], self.buffer[self.job.batch :]
        self.uncommitted += done
        self.consumed += len(done)
        self.batches += 1
        if self.batches % self.commit_every == 0:
            self.commit()
        if self.batches % self.publish_every == 0:
            self.tell(self.number)
            self.number, self.published = self.number + 1, self.published + 1
            self.learned = self.consumed

    def commit(self) -> None:
        for name, uid in self.uncommitted:
            self._acknowledge(name, uid)
        self.uncommitted = []

    def _acknowledge(self, name: str, uid: str) -> None:
        one = self.job.gateways[name]
        if uid in one.leased:
            one.leased.remove(uid)
            one.acked += 1

    def drop(self) -> None:
        """The next group is too old: acknowledged unseen."""
        if self.buffer:
            self._acknowledge(*self.buffer.pop(0))
            self.dropped += 1

    def give_back(self) -> None:
        if self.buffer:
            name, uid = self.buffer.pop()
            self.job.gateways[name].leased.remove(uid)
            self.job.gateways[name].offered.append(uid)


def in_some_order(job: Job, trainer: Trainer, rounds: int, random: Random) -> Iterator[None]:
    """Everything that may happen happens, again and again, each time in another order."""
    for _ in range(rounds):
        steps = [job.plan, job.end, job.report, trainer.lease, trainer.train]
        steps += [lambda name=name: job.look(name) for name in job.gateways]  # type: ignore[misc]
        for step in random.sample(steps, len(steps)):
            step()
            yield
