"""Tells that a group is lost where its gateway knows nothing of it: its journal went with its node.

A group is offered by its sessions, so one of them is written down anew, as lost with its gateway; then the group is
closed, and a trainer that waits for the task is given an empty lease, as of any other group that is lost.
"""

from __future__ import annotations

from contextlib import suppress

from sandgate.contract.errors import NotFound
from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.job import RolloutJob, Task
from sandgate.contract.session import SessionOutcome
from sandgate.operator.driver.backend import SessionClient
from sandgate.operator.driver.sealing import seal
from sandgate.operator.driver.session_spec import session_spec
from sandgate.operator.plan.actions import GroupObserved, Ref
from sandgate.operator.plan.settling import JOURNAL_LOST

LOST = SessionOutcome(failure_reason=FailureReason.GATEWAY_LOST, detail=JOURNAL_LOST)


async def knows(client: SessionClient, job: RolloutJob, group: GroupObserved) -> bool:
    """Whether the gateway has heard of the group though it has no session of it: what a trainer acknowledged is
    retired, of which a line stays."""
    for ref in _newest(job, group):
        with suppress(NotFound):
            await client.get(ref.name)
            return True
    return False


async def tell_lost(client: SessionClient, job: RolloutJob, group: GroupObserved) -> None:
    """At the group's gateway, which does not know it. Idempotent; raises what passes by itself, and must be done again
    then: a session that is open is told to nobody."""
    ref = _newest(job, group)[0]
    await client.create(session_spec(job.spec, ref, Task(uid=group.uid)))
    await seal(client, ref.name, LOST)
    await client.close_group(group.uid, job=job.metadata.name)


def _newest(job: RolloutJob, group: GroupObserved) -> list[Ref]:
    """The newest attempt at each sample; the first one where there was none."""
    return [
        Ref(job.metadata.name, group.uid, index, max(0, sample.attempt))
        for index, sample in enumerate(group.samples)
    ]
