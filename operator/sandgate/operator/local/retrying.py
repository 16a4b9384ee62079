"""Finds the sessions and files that a resumed run has, and the samples that `--retry-failed` runs again."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from sandgate.contract.job import RolloutJob
from sandgate.contract.session import SessionSummary
from sandgate.operator.local.folder import Folder
from sandgate.operator.local.gateways import LocalGateway
from sandgate.operator.local.group_files import SamplesIn
from sandgate.operator.local.resuming import reopened
from sandgate.operator.plan.missing_groups import Sample, gaps, has_row


async def own_sessions(
    job: RolloutJob, gateways: Mapping[str, LocalGateway], tasks: Collection[str]
) -> dict[str, list[SessionSummary]]:
    """Gateway -> the job's sessions there. Those of a task that the job no longer has gave no row, or it would not run
    here: they are ended, and left out."""
    found: dict[str, list[SessionSummary]] = {}
    for gateway in gateways.values():
        kept = found[gateway.name] = []
        async for one in gateway.client.sessions(job=job.metadata.name):
            if one.uid in tasks or job.spec.tasks.queue is not None:
                kept.append(one)
            elif not one.state.ended:
                await gateway.client.abort(one.session_id)
    return found


def to_retry(
    job: RolloutJob,
    folder: Folder,
    tasks: Iterable[str],
    listed: Iterable[SessionSummary],
    samples_in: SamplesIn,
) -> set[Sample]:
    """Samples without a row, of groups that were begun and are not there. Blocks."""
    have: dict[str, set[int]] = {}
    for one in listed:
        found = have.setdefault(one.uid, set())
        if has_row(one):
            found.add(one.sample_index)
    for uid in have.keys() - reopened(folder.root):
        # A session may have taken turns, and none that the engine finished: the file knows.
        if (path := folder.group(job.metadata.name, uid)).exists():
            have[uid] = {index for _, index in samples_in(path)}
    samples = {(uid, index) for uid, indices in have.items() for index in indices}
    missing = gaps([uid for uid in tasks if uid in have], job.spec, samples)
    return {(uid, index) for uid, indices in missing.items() for index in indices}
