"""Finds jobs whose samples teach nothing so far, after turns too: said to people, and never a reason to stop. (pure)

Agents that fail alike after a turn may all be broken, or may fail of what a model says that has not learned to say it
yet: of those the next may do well. Only who fails before the first turn fails of nothing that a model said
(`first_failures`).
"""

from __future__ import annotations

from sandgate.contract.job import RolloutJobSpec
from sandgate.operator.plan.actions import JobObserved, SampleState
from sandgate.operator.plan.first_failures import FIRST
from sandgate.operator.plan.fruitless_samples import FruitlessSamples
from sandgate.operator.plan.retries import retryable
from sandgate.operator.plan.settling import cause, fruitless


def fruitless_so_far(seen: JobObserved, spec: RolloutJobSpec) -> str:
    """That none of the samples that ended so far teaches anything, and why; "" if one does, or fewer than FIRST ended.
    A wrong answer is a lesson; so may an agent elsewhere have one."""
    ended = [
        sample
        for group in seen.groups.values()
        for sample in group.samples
        if sample.state is SampleState.ENDED and not retryable(sample, spec)
    ]
    number = seen.tally.ended + len(ended)
    found = seen.tally.fruitless + FruitlessSamples.of(cause(sample) for sample in ended if fruitless(sample))
    if number < FIRST or found.total < number or seen.elsewhere:
        return ""
    return f"none of the {number} samples that ended so far teaches anything: {found}"
