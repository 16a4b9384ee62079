"""Makes the SessionSpec that a gateway is sent: the same for agents in pods, in processes, and elsewhere. (pure)"""

from __future__ import annotations

from collections.abc import Mapping

from sandgate.contract.job import RolloutJobSpec, Task
from sandgate.contract.session import SessionSpec, task_of
from sandgate.contract.trajectory import Json
from sandgate.operator.plan.actions import Ref


def session_spec(
    spec: RolloutJobSpec,
    ref: Ref,
    task: Task,
    *,
    metadata: Mapping[str, Json] | None = None,
    task_chars_max: int | None = None,
) -> SessionSpec:
    """One attempt. `task_chars_max`: a larger task is not repeated in the session's record; None where agents and
    verifiers fetch theirs from there, so that it must hold whatever the job's tasks may be."""
    document = task_of(task.uid, task.prompt, task.data, ref.sample)
    fits = task_chars_max is None or len(str(document)) <= task_chars_max
    return SessionSpec(
        session_id=ref.name,
        uid=ref.uid,
        sample_index=ref.sample,
        group_size=spec.group_size,
        job=ref.job,
        attempt=ref.attempt,
        reward_source=spec.reward.source.value,
        cut_turns=spec.reward.cut_turns.value,
        task=document if fits else None,
        metadata=dict(metadata or {}),
    )
