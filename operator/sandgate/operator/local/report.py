"""Counts a local run's sessions and tokens while it goes on, and makes its result at the end."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sandgate.contract.failure_reasons import FailureClass
from sandgate.contract.session import SessionOutcome, SessionState, SessionSummary, TerminationMessage
from sandgate.contract.status import ConditionStatus, JobCondition, RolloutJobStatus
from sandgate.operator.driver.state import DriverState
from sandgate.operator.local.gateways import LocalGateway
from sandgate.operator.local.progress import Counts, JobResult, Problem, SessionEnded, Tell
from sandgate.operator.observed.job import Observed
from sandgate.operator.plan.actions import SessionObserved
from sandgate.operator.plan.conditions import held_by_trainer, is_over
from sandgate.operator.plan.fruitless_jobs import fruitless_so_far
from sandgate.operator.plan.missing_groups import Gaps, Sample, cause, one_line
from sandgate.operator.plan.rewards import none_has_one

WINDOW_S = 5.0
"""Over which tokens per second are measured."""
LISTED_MAX = 256
"""Live sessions whose tokens are asked for each time; with more, only ended ones count until they end."""


@dataclass(slots=True)
class Meter:
    """Counts sessions and tokens of this run."""

    state: DriverState
    gateways: Mapping[str, LocalGateway]
    tell: Tell
    began: float = field(default_factory=time.monotonic)
    turns: int = 0
    sampled: int = 0
    """Tokens of ended sessions."""
    failures: Counter[str] = field(default_factory=Counter)
    """FailureReason -> attempts."""
    tracebacks: int = 0
    """As `JobResult.tracebacks`."""
    message: TerminationMessage | None = None
    """What the last agent left that ended well without a reward; None: this run saw none."""
    _marks: deque[tuple[float, int]] = field(default_factory=deque)
    _warned: bool = False

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return time.monotonic() - self.began

    def ended(self, seen: SessionObserved, said: SessionSummary, outcome: SessionOutcome) -> SessionEnded:
        """An attempt is sealed: count it, and how it is told."""
        self.turns += said.turns
        self.sampled += said.sampled_tokens
        if outcome.failure_reason is not None:
            self.failures[outcome.failure_reason] += 1
        self.tracebacks += said.traceback
        agent = seen.sandbox
        if _unscored(said) and agent is not None and agent.exit is not None:
            self.message = agent.exit.message
        seconds = 0.0
        if agent is not None and agent.started_at is not None and agent.exit is not None:
            seconds = agent.exit.at - agent.started_at
        return SessionEnded(
            session_id=said.session_id,
            uid=said.uid,
            sample=said.sample_index,
            attempt=said.attempt,
            seconds=seconds,
            reward=said.reward,
            turns=said.turns,
            tokens=said.tokens,
            sampled_tokens=said.sampled_tokens,
            forks=said.forks,
            failure_class=outcome.failure_class,
            failure_reason=outcome.failure_reason,
            detail=outcome.detail,
            traceback=said.traceback,
        )

    def warn(self, status: RolloutJobStatus) -> None:
        """Say once that nobody learns anything of what ended so far."""
        if self._warned or is_over(status):
            return
        if text := fruitless_so_far(self.state.observed.job(), self.state.job.spec):
            self._warned = True
            self.tell(Problem(text=f"{text}; the run goes on, as the next may do better"))

    def result(self, *, groups: int, restarts: int) -> JobResult:
        """Of a run that is given up and whose gateways do not answer: what it saw itself, nothing of earlier runs."""
        return JobResult(
            complete=False,
            status=self.state.observed.status or RolloutJobStatus(),
            sessions=self.state.observed.tally.ended,
            failures=dict(self.failures),
            tracebacks=self.tracebacks,
            turns=self.turns,
            sampled_tokens=self.sampled,
            groups=groups,
            seconds=self.seconds,
            restarts=restarts,
        )

    async def run(self, every_s: float) -> None:
        """Tell Counts, for ever."""
        while True:
            await asyncio.sleep(every_s)
            turns = sampled = 0
            if len(self.state.observed.live) <= LISTED_MAX:
                for gateway in self.gateways.values():
                    async for one in gateway.client.sessions(
                        state=SessionState.OPEN.value, job=self.state.observed.want.name
                    ):
                        turns, sampled = turns + one.turns, sampled + one.sampled_tokens
            self.counts(turns, sampled)

    def counts(self, turns: int = 0, sampled: int = 0) -> None:
        """Tell how far it is; `turns` and `sampled` of sessions that have not ended come on top."""
        now, total = time.monotonic(), self.sampled + sampled
        self._marks.append((now, total))
        while now - self._marks[0][0] > WINDOW_S and len(self._marks) > 2:
            self._marks.popleft()
        first, before = self._marks[0]
        status = self.state.observed.status or RolloutJobStatus()
        size = max(1, self.state.observed.want.spec.group_size)
        self.tell(
            Counts(
                total=status.sessions,
                running=status.running,
                ended=status.ended,
                failed=status.failed,
                retries=status.retries,
                collected=len(self.state.observed.committed),
                groups=status.sessions // size,
                turns=self.turns + turns,
                sampled_tokens=total,
                tokens_per_s=max(0.0, (total - before) / (now - first)) if now > first else 0.0,
                seconds=self.seconds,
                held=bool(held_by_trainer(status)),
            )
        )


async def result(
    observed: Observed,
    gateways: Mapping[str, LocalGateway],
    *,
    complete: bool,
    trajectories: Path | None,
    groups: int,
    seconds: float,
    restarts: int,
    missing: Gaps,
    problems: tuple[str, ...] = (),
    message: TerminationMessage | None = None,
) -> JobResult:
    """From the gateways' own books: the whole job, earlier runs included. `missing`: groups that are not there.
    `message`: of the last session without a reward."""
    newest: dict[Sample, SessionSummary] = {}
    failures: Counter[str] = Counter()
    forks: Counter[str] = Counter()
    turns = tokens = sampled = tracebacks = 0
    for gateway in gateways.values():
        async for one in gateway.client.sessions(job=observed.want.name):
            turns, tokens, sampled = turns + one.turns, tokens + one.tokens, sampled + one.sampled_tokens
            forks.update(one.forks)
            if one.failure_reason is not None:
                failures[one.failure_reason] += 1
            tracebacks += one.traceback
            key = (one.uid, one.sample_index)
            if one.state.ended and (key not in newest or newest[key].attempt < one.attempt):
                newest[key] = one
    good = [one for one in newest.values() if one.failure_class in (None, FailureClass.POLICY.value)]
    unscored = sum(map(_unscored, newest.values()))
    if trajectories is not None:  # else it is not over
        scored = sum(one.reward is not None for one in newest.values())
        wanting = sum(one.reward is None and one.state is SessionState.FINALIZED for one in good)
        hint = none_has_one(observed.want.spec.reward.source, scored, wanting, message)
        problems += (hint,) if hint else ()
    return JobResult(
        complete=complete and not missing,
        cause=_cause(observed, missing, newest),
        missing_groups=len(missing),
        status=observed.status or RolloutJobStatus(),
        sessions=len(newest),
        rewards=tuple(one.reward for one in good if one.reward is not None),
        unscored=unscored,
        failures=dict(failures),
        tracebacks=tracebacks,
        turns=turns,
        tokens=tokens,
        sampled_tokens=sampled,
        forks=dict(forks),
        groups=groups,
        trajectories=trajectories,
        seconds=seconds,
        restarts=restarts,
        problems=problems,
    )


def _unscored(said: SessionSummary) -> bool:
    return said.state is SessionState.FINALIZED and said.failure_reason is None and said.reward is None


def _cause(observed: Observed, missing: Gaps, newest: Mapping[Sample, SessionSummary]) -> str:
    """What the job gave up for, else what its first gap is of."""
    for one in observed.status.conditions if observed.status is not None else ():
        if one.type == JobCondition.FAILED and one.status is ConditionStatus.TRUE:
            return one_line(f"{one.reason}: {one.message}")
    size = max(1, observed.want.spec.group_size)
    return cause(missing, observed.job().total // size, newest)
