"""Missing groups: those that a run lacks, and why: they make it a failure, and `--retry-failed` runs them again. (pure)

A group is there when as many of its samples have a row as its job's quorum says (`group.quorum`, default `groupSize`).
A sample has a row when one of its attempts took a turn and did not fail of the infrastructure. Rows stay: what is run
again are samples without one, and only those of groups that are not there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from sandgate.contract.failure_reasons import FailureClass
from sandgate.contract.job import RolloutJobSpec
from sandgate.contract.session import SessionState, SessionSummary

Sample = tuple[str, int]
"""(uid of the task, index in its group)."""
Gaps = dict[str, tuple[int, ...]]
"""Group that is not there -> its samples without a row."""


def has_row(said: SessionSummary) -> bool:
    """This attempt gives its sample a row."""
    good = said.state is SessionState.FINALIZED and said.failure_class != FailureClass.INFRA.value
    return good and said.turns > 0


def gaps(uids: Iterable[str], spec: RolloutJobSpec, have: Collection[Sample]) -> Gaps:
    """Of these groups, those that are not there. `have`: samples with a row."""
    needed = spec.group.quorum or spec.group_size
    found: Gaps = {}
    for uid in uids:
        without = tuple(index for index in range(spec.group_size) if (uid, index) not in have)
        if spec.group_size - len(without) < needed:
            found[uid] = without
    return found


def cause(missing: Gaps, groups: int, newest: Mapping[Sample, SessionSummary]) -> str:
    """In one line, why groups are incomplete: how many, and what the first of their samples failed of."""
    if not missing:
        return ""
    samples = [(uid, index) for uid, indices in missing.items() for index in indices]
    ended = [newest[one] for one in samples if one in newest]
    text = f"{len(missing)} of {groups} groups are incomplete, {len(samples)} samples without a row"
    if not ended:
        return text
    first = min(ended, key=lambda one: (one.changed_at, one.session_id))
    return f"{text}; the first: {first.session_id}: {_how(first)}"


def _how(said: SessionSummary) -> str:
    if said.failure_reason is None:
        return "aborted" if said.state is SessionState.ABORTED else "it ended without a turn"
    return one_line(f"{said.failure_class}/{said.failure_reason} {said.failure_detail}")


def one_line(text: str) -> str:
    """For a terminal: what an agent or an engine said can move nothing there."""
    return "".join(char for char in " ".join(text.split()) if char.isprintable())
