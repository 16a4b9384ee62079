"""Finds jobs to give up: all of the first sessions failed of a cause that stays, so that others need not run. (pure)

Of what cannot get better: a pod that the API server refuses, a program that is not there, a model that the engine does
not serve, a tokenizer of another model; verifiers of which none starts; and agents that all end in the same words
before their first turn. What may
pass by itself (an engine that starts again, a node) is neither for it nor against it; one session that got anywhere is
against it, for good.

Until an agent got past its start, one group alone is begun (`plan.job`), and of what fails before it one sample alone
is tried again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from sandgate.contract.conditions import JobReason
from sandgate.contract.errors import ModelNotServed, TokenizerMismatch
from sandgate.contract.failure_reasons import FailureClass, FailureReason
from sandgate.contract.job import RolloutJobSpec
from sandgate.operator.plan.actions import (
    GroupObserved,
    Hopeless,
    Running,
    SampleObserved,
    SampleState,
    SessionObserved,
)
from sandgate.operator.plan.fruitless_samples import FruitlessSamples
from sandgate.operator.plan.retries import FREE, retryable

FIRST = 8
"""Sessions that must have ended so; fewer where fewer run at once, or the job has no more."""
TASKS = 3
"""Tasks that they must be of where only the agents' own words are alike: one task may be bad for all its samples."""
PROOF_S = 5.0
"""An agent that has run for so long is past its start: a program that is not as it should be has died by then."""
KEPT_MAX = 4096
"""Sessions that are followed: the first group alone may be large."""

NOT_THERE = re.compile(
    r" is not on PATH$| is not an executable file$"
    r"|^[^:]+: (No such file or directory|Not a directory|Permission denied|Exec format error)$"
    r'|exec: "[^"]*": (executable file not found|permission denied|is a directory|stat .*: no such file)'
)
"""What our own processes and container runtimes say of a program that no repetition will find."""

STARTS = (FailureReason.IMAGE_ERROR, FailureReason.START_FAILED, FailureReason.START_TIMEOUT)
"""Ends before the agent's start."""

ENGINE = {
    ModelNotServed.reason: JobReason.MODEL_NOT_SERVED,
    TokenizerMismatch.reason: JobReason.TOKENIZER_MISMATCH,
}
"""Of the errors of an engine, those that are of the job's making."""


@dataclass(frozen=True, slots=True)
class End:
    """How one of them ended."""

    reason: JobReason
    text: str
    """For people."""
    like: str
    """Equal for ends of the same cause."""
    certain: bool
    """The cause itself says that it will come again."""


@dataclass(frozen=True, slots=True)
class Firsts:
    """The first sessions of a job that this driver opened, until it is known that some get somewhere."""

    ends: Mapping[str, tuple[str, End | None]] = field(default_factory=dict)
    """Session -> (uid, its end; None while it runs), in the order in which they were opened."""
    passed: bool = False
    """One got somewhere, or too many are followed: nothing is said any more."""
    proved: bool = False
    """An agent of one got past its start: it ran for PROOF_S, took a turn, or ended well."""
    said: Hopeless | None = None
    """It stays, whatever those come to that are stopped for it."""

    def opened(self, name: str, uid: str) -> Firsts:
        """A session of the job."""
        if self.passed:
            return self
        if len(self.ends) >= KEPT_MAX:
            return replace(self, ends={}, passed=True)
        return replace(self, ends={**self.ends, name: (uid, None)})

    def ended(self, seen: SessionObserved, sample: SampleObserved) -> Firsts:
        """It is sealed."""
        name = seen.ref.name
        known = replace(self, proved=self.proved or _turns(seen) > 0 or sample.reason is None)
        if self.passed or name not in self.ends:
            return known
        end = end_of(seen, sample)
        if end is not None:
            return replace(known, ends={**self.ends, name: (seen.ref.uid, end)})
        if sample.reason in FREE or (sample.failure is FailureClass.INFRA and not _turns(seen)):
            return replace(known, ends={key: value for key, value in self.ends.items() if key != name})
        return replace(known, ends={}, passed=True)

    def somewhere(self) -> Firsts:
        """The job's sessions can get somewhere."""
        return replace(self, ends={}, passed=True, proved=True)

    def hopeless(
        self, *, together: int, total: int, tasks: int, more: bool, size: int = FIRST
    ) -> Hopeless | None:
        """Why nothing will come of the job. `together`: sessions that run at once; `total`, `tasks`: of the job, so far
        as it is known; `more`: further tasks may come; `size`: of a group, of which one alone is begun before an agent
        is past its start."""
        if self.said is not None or self.passed:
            return self.said
        if not self.proved:
            together = min(together, size)
        return self._judge(min(FIRST, together, total), None if more else tasks)

    def _judge(self, wanted: int, tasks: int | None) -> Hopeless | None:
        if not wanted or len(self.ends) < wanted:
            return None
        uids: set[str] = set()
        kept: list[End] = []
        for uid, end in self.ends.values():
            if end is None or (kept and (end.reason, end.like) != (kept[0].reason, kept[0].like)):
                return None
            kept.append(end)
            uids.add(uid)
            enough = end.certain or len(uids) >= min(TASKS, tasks or TASKS)
            if len(kept) >= wanted and enough:
                return Hopeless(kept[0].reason.value, kept[0].text)
        return None


def nothing_starts(groups: Iterable[GroupObserved], spec: RolloutJobSpec) -> Hopeless | None:
    """Of a job of which no agent got past its start: all samples that were begun failed before it, and one of them in
    all its attempts."""
    samples = [sample for group in groups for sample in group.samples]
    if not samples or any(one.state is not SampleState.ENDED or one.reason not in STARTS for one in samples):
        return None
    if all(retryable(one, spec) for one in samples):
        return None
    causes = FruitlessSamples.of((str(one.reason), one.detail) for one in samples)
    return Hopeless(JobReason.NOTHING_STARTS.value, f"no agent of the first {len(samples)} started: {causes}")


def end_of(seen: SessionObserved, sample: SampleObserved) -> End | None:
    """An end that will come again; None for any other."""
    said = seen.summary
    for kind, one in (("agent", seen.sandbox), ("verifier", seen.verifier)):
        if one is not None and one.exit is not None and one.exit.refused:
            return End(JobReason.POD_REFUSED, f"{kind}: {one.exit.detail}", kind, certain=True)
        if (why := not_there(one)) is not None:
            return End(JobReason.PROGRAM_MISSING, f"{kind}: {why}", kind, certain=True)
    if (unjudged := _never_judged(seen.verifier)) is not None:
        return unjudged
    if said is None or _turns(seen):
        return None
    if said.engine_reason in ENGINE and sample.failure is not None:
        return End(ENGINE[said.engine_reason], said.engine_error, said.engine_reason, certain=True)
    # An exit with 1 is a wrong answer where exit codes are rewards; before the first turn it is nobody's answer.
    own = sample.failure is FailureClass.AGENT or sample.reason is FailureReason.ANSWER_WRONG
    if not own or sample.reason is None or not said.failure_detail:
        return None
    text = f"{sample.reason.value} {said.failure_detail}".strip()
    return End(JobReason.AGENTS_FAIL_ALIKE, text, text, certain=False)


def not_there(one: Running | None) -> str | None:
    """Why this program was never started, and never will be."""
    if one is None or one.started_at is not None or one.exit is None:
        return None
    return one.exit.detail if NOT_THERE.search(one.exit.detail) else None


def _never_judged(verifier: Running | None) -> End | None:
    """Its verifier did not start: whatever agents do, nobody scores it, and each is run anew for it."""
    end = None if verifier is None or verifier.started_at is not None else verifier.exit
    if end is None or end.reason not in STARTS:
        return None
    text = f"verifier: {end.reason.value} {end.detail}".strip()
    return End(JobReason.NOTHING_STARTS, text, f"verifier {end.reason.value}", certain=False)


def _turns(seen: SessionObserved) -> int:
    return 0 if seen.summary is None else seen.summary.turns
