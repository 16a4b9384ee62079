"""DriverState: what the parts of one job's driver share, and how they tell what they observed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from sandgate.contract.job import RolloutJob, Task
from sandgate.operator.observed.events import Event, GaveUp, Proved
from sandgate.operator.observed.fold import apply
from sandgate.operator.observed.job import Observed
from sandgate.operator.plan.actions import JobObserved


@dataclass(slots=True)
class Renewal:
    """A record that is put together beside the one that counts, with the event loop's turns between its events."""

    seen: Observed
    news: list[Event] = field(default_factory=list)
    """What was observed of the job meanwhile; it is taken in last."""
    changed: dict[str, None] = field(default_factory=dict)
    settled: list[str] = field(default_factory=list)

    def take(self, event: Event) -> None:
        """Into this record alone."""
        self.seen = apply(self.seen, event)
        self.changed |= dict.fromkeys(self.seen.changed)
        self.settled += self.seen.now_settled


@dataclass(slots=True, kw_only=True)
class DriverState:
    """Of one job. Not for several threads."""

    job: RolloutJob
    observed: Observed
    changed: Callable[[str], None]
    """Called with each key that must be planned again."""
    now: Callable[[], float]
    tasks: dict[str, Task] = field(default_factory=dict)
    """Those that are not settled."""
    opened: dict[str, None] = field(default_factory=dict)
    """Live sessions that their gateway is known to hold."""
    unstopped: dict[str, None] = field(default_factory=dict)
    """Sessions that are to be stopped and whose sandbox was not told yet."""
    lost: dict[str, None] = field(default_factory=dict)
    """Groups that their gateway knows nothing of, and is just told are lost."""
    on_settled: list[Callable[[Sequence[str]], None]] = field(default_factory=list)
    """Called with the uids of groups that settle, which may be 100,000 at once."""
    on_repeated: list[Callable[[Sequence[str]], None]] = field(default_factory=list)
    """Called with the uids of tasks that were pushed again when they had finished."""
    _renewal: Renewal | None = None

    def observe(self, event: Event) -> None:
        """Take in what was observed, by a clock of which it is known whether it was stepped (see local.clock)."""
        self.now()
        if self._renewal is not None:
            self._renewal.news.append(event)
        after = self.observed = apply(self.observed, event)
        self._tell(after.changed, after.now_settled)

    @contextmanager
    def renewed(self, seen: Observed) -> Iterator[Renewal]:
        """At the end of the block, unless it raises, the record that was made in it of this one counts."""
        made = self._renewal = Renewal(seen)
        try:
            yield made
        finally:
            self._renewal = None
        for event in made.news:
            made.take(event)
        self.observed = made.seen
        self._tell(made.changed, made.settled)

    def _tell(self, changed: Iterable[str], settled: Sequence[str]) -> None:
        for key in changed:
            self.changed(key)
        if settled:
            for call in self.on_settled:
                call(settled)

    def job_observed(self) -> JobObserved:
        """What a plan of the job sees. That nothing will come of the job stays once a plan has seen it; so does that an
        agent of it is past its start."""
        now = self.now()  # first, as it may move what is observed
        job = self.observed.job()
        if not job.proved and job.proves_at is not None and now >= job.proves_at:
            self.observe(Proved())
            job = self.observed.job()
        if job.hopeless is not None and self.observed.firsts.said is None:
            self.observe(GaveUp(job.hopeless))
        return job
