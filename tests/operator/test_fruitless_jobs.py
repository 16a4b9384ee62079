"""A job whose samples teach nothing so far says so, with the cause, and goes on: the next may do better."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sandgate.contract.status import JobCondition
from sandgate.operator.plan.actions import GroupObserved, JobObserved, OpenSession, SampleState, SampleTally
from sandgate.operator.plan.conditions import find
from sandgate.operator.plan.fruitless_jobs import fruitless_so_far
from sandgate.operator.plan.fruitless_samples import FruitlessSamples
from sandgate.operator.plan.job import plan_job
from sandgate.operator.plan.status import job_status
from tests.operator.plans import group, seen, spec, want

WORDS = "exit code 3: KeyError: 'tool_calls'"
EIGHT = f"none of the 8 samples that ended so far teaches anything: 8 AgentExit: {WORDS}"


def crashed(number: int, further: str = "") -> GroupObserved:
    """Of a group, so many agents crashed after their first turn."""
    made = group("a", " ".join([*("c" * number), *further.split()]))
    samples = [replace(one, detail=WORDS) if one.state is SampleState.ENDED else one for one in made.samples]
    return replace(made, samples=tuple(samples))


def tallied(ended: int, fruitless: int) -> SampleTally:
    """Of groups that are settled."""
    return SampleTally(
        ended=ended, failed=fruitless, fruitless=FruitlessSamples(((("AgentExit", WORDS), fruitless),))
    )


CASES: dict[str, tuple[JobObserved, str]] = {
    "agents that all crash after a turn": (seen(crashed(8)), EIGHT),
    "while others of their group run": (seen(crashed(8, "r r w")), EIGHT),
    "those of groups that are settled count": (seen(crashed(2), tally=tallied(6, 6)), EIGHT),
    "and alone": (seen(tally=tallied(8, 8)), EIGHT),
    "fewer say nothing yet": (seen(crashed(7, "r")), ""),
    "a wrong answer is a lesson": (seen(crashed(9, "p")), ""),
    "a good end is one": (seen(crashed(9, "g")), ""),
    "one was before": (seen(crashed(9), tally=tallied(30, 29)), ""),
    "an agent elsewhere may have had one": (seen(crashed(9), elsewhere=True), ""),
    "what is tried again has not ended": (seen(crashed(7, "i i i")), ""),
}


@pytest.mark.parametrize(("observed", "words"), CASES.values(), ids=CASES)
def test_what_is_said(observed: JobObserved, words: str) -> None:
    assert fruitless_so_far(observed, spec(groupSize=11)) == words
    goes_on = replace(observed, more=True)
    told = find(job_status(want(groupSize=11), goes_on, 9.0), JobCondition.PROGRESSING)
    assert told is not None
    assert told.message == words


def test_nothing_is_stopped_for_it() -> None:
    plan = plan_job(
        want(groupSize=8, parallelism=4), seen(tally=tallied(800, 800), fresh="b", total=808), 9.0
    )
    assert [one.ref.uid for one in plan if isinstance(one, OpenSession)] == ["b"] * 4
