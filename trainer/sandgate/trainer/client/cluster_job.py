"""A RolloutJob that runs in a cluster while a trainer trains: it pushes its prompts, and waits for their groups.

The job has a name of its own for each start of the trainer: another start's prompts have other uids, and are drawn
again. It goes with the trainer. One that dies says nothing: then `trainer.heartbeatSeconds` of the job suspends it,
`collectSeconds` ends it, and `ttlSecondsAfterFinished` deletes it.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from sandgate.contract.conditions import ConditionStatus
from sandgate.contract.errors import NotFound, SandgateError, Unavailable
from sandgate.contract.job import RolloutJob, TrainerSpec
from sandgate.contract.manifest_decoder import encode
from sandgate.contract.names import JOB_NAME_MAX
from sandgate.contract.trajectory import Json
from sandgate.trainer.client.cluster import ClusterPlace, delete_job, pinned, rollout_job, submit
from sandgate.trainer.client.fleet import AsyncFleet, cluster_fleet
from sandgate.trainer.client.pushed_groups import PushedGroups, collecting

log = logging.getLogger(__name__)

START_LOOK_S = 2.0
"""Between two looks at a job that is not ready yet."""
LOOK_S = 10.0
"""Between two looks at one that runs."""
DELETE_TRIES = 3
AGAIN, SILENCE = "it is tried again", "the silence of its trainer ends it"
HEARTBEAT_S, COLLECT_S = 300, 900
"""Of `trainer`, where the manifest says nothing: a trainer that beats every 30 s is not heard for the one, and its
sessions stop; for the other, and the job fails. It has nothing that a later start would collect."""
TTL_S = 3600
"""A job whose trainer died, or that failed, deletes itself so long after its end, where the manifest does not say."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a job stands."""

    ready: bool
    failed: bool
    held: bool
    """Suspended: by a queue, or a person."""
    words: str
    """Reason and message, for people."""


def standing(body: dict[str, Json]) -> Standing:
    """Of a RolloutJob as the API server has it. (pure)"""
    status = body.get("status") or {}
    conditions = {str(one["type"]): one for one in status.get("conditions") or ()}
    reason = str(status.get("reason") or "")

    def is_true(kind: str) -> bool:
        return bool(conditions.get(kind, {}).get("status") == ConditionStatus.TRUE.value)

    said: Json = next((one for one in conditions.values() if reason and one.get("reason") == reason), {})
    words = f"{reason}: {said['message']}" if said.get("message") else reason
    return Standing(
        ready=is_true("Ready") and not is_true("Suspended"),
        failed=is_true("Failed"),
        held=is_true("Suspended"),
        words=words or "no operator has seen it yet",
    )


DELETED = Standing(ready=False, failed=True, held=False, words="it was deleted")


def own(job: RolloutJob) -> RolloutJob:
    """The job of this start of the trainer."""
    token = secrets.token_hex(3)
    name = f"{job.metadata.name[: JOB_NAME_MAX - len(token) - 1].rstrip('-')}-{token}"
    spec = job.spec
    ttl = TTL_S if spec.ttl_seconds_after_finished is None else spec.ttl_seconds_after_finished
    return replace(
        job,
        metadata=replace(job.metadata, name=name),
        spec=replace(
            spec,
            trainer=spec.trainer or TrainerSpec(heartbeat_seconds=HEARTBEAT_S, collect_seconds=COLLECT_S),
            ttl_seconds_after_finished=ttl,
        ),
    )


def manifest(job: RolloutJob) -> dict[str, Json]:
    """As it is applied: what the API server sets is not in it. (pure)"""
    meta = job.metadata
    return {
        "apiVersion": job.api_version,
        "kind": job.kind,
        "metadata": {"name": meta.name, "labels": dict(meta.labels), "annotations": dict(meta.annotations)},
        "spec": encode(job.spec),
    }


@asynccontextmanager
async def cluster_job(job: RolloutJob, place: ClusterPlace, *, ready_s: float) -> AsyncIterator[PushedGroups]:
    """The groups of a job of its own, see `applied`. What ends it goes to those who wait for groups. While it is not
    ready its gateways may be away, and while a queue holds it (Kueue may want its quota back) nobody gives up a
    group."""
    made: PushedGroups | None = None

    def ended(error: SandgateError) -> None:
        if made is not None:
            made.fail(error)

    def stands(now: Standing) -> None:
        if made is None:
            return
        made.away = not now.ready
        if now.held:
            made.progress_at = made.clock()

    async with (
        applied(job, place, ready_s=ready_s, ended=ended, stands=stands) as fleet,
        collecting(fleet) as groups,
    ):
        made = groups
        yield groups


@asynccontextmanager
async def applied(
    job: RolloutJob,
    place: ClusterPlace,
    *,
    ready_s: float,
    ended: Callable[[SandgateError], None],
    stands: Callable[[Standing], None],
) -> AsyncIterator[AsyncFleet]:
    """The gateways of the job, which is applied in that namespace, and deleted when the block ends; one that failed
    while it ran stays, for people to look at, until its ttl. They hear that the trainer lives. Raises Unavailable if it
    fails, or is not ready within `ready_s` (images, quotas and queues take their time), and what the API server says of
    it: InvalidBody, Forbidden. `ended` is told what ends it later, and `stands`, every now and then, where it
    stands."""
    made = own(job)
    name, ran = made.metadata.name, False
    where = await asyncio.to_thread(
        pinned, replace(place, namespace=place.namespace or job.metadata.namespace)
    )
    log.info(
        "job %s/%s is the trainer's own", where.namespace, name
    )  # before it is made: it may be all that tells
    try:
        await asyncio.to_thread(submit, manifest(made), where)
        await _ready(name, where, ready_s)
        async with cluster_fleet(name, where) as fleet, fleet.beating():
            ran = True
            looking = asyncio.ensure_future(_look(name, where, ended, stands))
            try:
                yield fleet
            finally:
                looking.cancel()
                await asyncio.gather(looking, return_exceptions=True)
    finally:
        await asyncio.shield(_delete(name, where, failed_too=not ran))


async def _ready(name: str, place: ClusterPlace, within_s: float) -> None:
    loop, said = asyncio.get_running_loop(), ""
    end = loop.time() + within_s
    while True:
        now = await _standing(name, place)
        if now is not None and now.failed:
            raise Unavailable(f"job {name} failed: {now.words}")
        if now is not None and now.ready:
            return
        if now is not None and now.words != said:
            said = now.words
            log.info("job %s: %s", name, said)
        if not threading.main_thread().is_alive():  # it waits for this one to end
            raise Unavailable(f"job {name}: its trainer ends before it is ready")
        if loop.time() >= end:
            raise Unavailable(f"job {name} is not ready within {within_s:g} s: {said}")
        await asyncio.sleep(START_LOOK_S)


async def _look(
    name: str,
    place: ClusterPlace,
    ended: Callable[[SandgateError], None],
    stands: Callable[[Standing], None],
) -> None:
    """Tells where the job stands, and what ended it: that it failed, or is gone. For ever, or until then. What else the
    API server says, or a kubeconfig that is being written, ends no training."""
    while True:
        await asyncio.sleep(LOOK_S)
        try:
            now = await _standing(name, place)
        except SandgateError as error:
            log.warning("job %s: %s", name, error)
            continue
        if now is not None and now.failed:
            ended(Unavailable(f"job {name} failed: {now.words}"))
            return
        if now is not None:
            stands(now)


async def _standing(name: str, place: ClusterPlace) -> Standing | None:
    """None while the API server does not answer. Raises Forbidden and the like."""
    try:
        return standing(await asyncio.to_thread(rollout_job, name, place))
    except NotFound:
        return DELETED
    except Unavailable as error:
        log.warning("job %s: %s", name, error)
        return None


async def _delete(name: str, place: ClusterPlace, *, failed_too: bool) -> None:
    def delete() -> None:
        if failed_too or not standing(rollout_job(name, place)).failed:
            delete_job(name, place)

    async def delete_beside() -> None:
        try:
            await asyncio.to_thread(delete)
        except (
            RuntimeError
        ):  # an interpreter that ends begins no threads, and nobody else needs this one then
            delete()

    for left in reversed(range(DELETE_TRIES)):
        try:
            await delete_beside()
            return
        except NotFound:
            return
        except SandgateError as error:
            log.warning("job %s is not deleted: %s; %s", name, error, AGAIN if left else SILENCE)
        if left:
            await asyncio.sleep(START_LOOK_S)
