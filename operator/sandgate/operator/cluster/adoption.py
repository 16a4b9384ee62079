"""Adoption: gives our shard's label to what a job of ours has under another. A job's user may change its shard while
its sessions run, and watches and lists of a shard's operator are by that label: what was made before is not in them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Iterable

from sandgate.contract.errors import Forbidden, NotFound, SandgateError
from sandgate.contract.job import RolloutJob
from sandgate.contract.labels import JOB, SHARD
from sandgate.operator.cluster.api import Api, Json
from sandgate.operator.cluster.job_state import JobState
from sandgate.operator.cluster.object_store import text_of

log = logging.getLogger(__name__)

AT_ONCE = 8
"""Objects labelled at once: a job of thousands of sessions that moves must not take all of the API server."""


async def adopt(at: JobState, kind: str, bodies: Iterable[Json]) -> list[Json]:
    """Objects of the job, as they are by now: with our shard's label, those that are gone left out.

    Nothing is labelled for a job that is another shard's by now. Two operators have a job for the moment in which its
    label changes, and the one that loses it must not take back what the other has taken."""
    found, mine = list(bodies), at.settings.shard
    strangers = [one for one in found if shard_of(one) != mine]
    if not strangers or not await _is_ours(at):
        return found
    log.info("job %s/%s: %d of kind %s come to this shard", at.namespace, at.name, len(strangers), kind)
    turns = asyncio.Semaphore(AT_ONCE)

    async def labelled(body: Json) -> Json | None:
        if shard_of(body) == mine:
            return body
        async with turns:
            return await label(at.kube, kind, body, mine)

    return [one for one in await asyncio.gather(*map(labelled, found)) if one is not None]


async def lost(at: JobState, kind: str, missing: Collection[str]) -> set[str]:
    """Which of these uids, which a list of our shard's objects has not, are of objects that are gone. The others are
    adopted. None, if that cannot be known now."""
    if not missing:
        return set()
    ours = kind == "Pod" or not any(one.spec.remote for one in at.sessions.held.values())
    labels = f"{JOB}={at.name}" if ours else ""  # what a person applied need not have that label
    try:
        listed = await at.kube.list_metadata(kind, at.namespace, labels=labels)
        there = [one for one in listed if text_of(one, "metadata", "uid") in missing]
        await adopt(at, kind, there)
    except (SandgateError, OSError, TimeoutError) as error:
        log.warning("job %s/%s: what is missing is not looked for: %s", at.namespace, at.name, error)
        return set()
    return set(missing) - {text_of(one, "metadata", "uid") for one in there}


async def label(kube: Api, kind: str, body: Json, shard: str) -> Json | None:
    """It, with that shard's label; None if it is gone. One that we may not change (a role of before has no right to
    patch AgentSessions) stays as it is."""
    namespace, name = text_of(body, "metadata", "namespace"), text_of(body, "metadata", "name")
    try:
        return await kube.patch(kind, namespace, name, {"metadata": {"labels": {SHARD: shard or None}}})
    except NotFound:
        return None
    except Forbidden as error:
        log.warning("%s %s/%s cannot be given its shard's label: %s", kind, namespace, name, error)
        return body


def shard_of(body: Json) -> str:
    """Of any object; empty for the shard of what names none."""
    return text_of(body, "metadata", "labels", SHARD)


async def _is_ours(at: JobState) -> bool:
    try:
        job = await at.kube.get(RolloutJob.KIND, at.namespace, at.name)
    except NotFound:
        return False
    return shard_of(job) == at.settings.shard and text_of(job, "metadata", "uid") == at.job.metadata.uid


async def is_there(kube: Api, kind: str, namespace: str, name: str, uid: str) -> Json | None:
    """The object of that uid, whatever its labels say by now; None if it is gone. A watch by a label tells that an
    object is deleted also where only its label is another."""
    try:
        body = await kube.get(kind, namespace, name)
    except NotFound:
        return None
    return body if text_of(body, "metadata", "uid") == uid else None
