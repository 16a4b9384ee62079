"""Provisions a job: creates its signing Secret once, and applies its gateways and its engine."""

from __future__ import annotations

import base64
import binascii
import logging
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from sandgate.contract.errors import (
    BadRequest,
    Conflict,
    Forbidden,
    NotFound,
    SandgateError,
    TooLarge,
    Unavailable,
)
from sandgate.contract.job import RolloutJob
from sandgate.contract.names import gateways_name, signing_name
from sandgate.operator.cluster.api import Api, Json
from sandgate.operator.cluster.object_store import owner_uid
from sandgate.operator.manifests import (
    closed_policy,
    engine_objects,
    gateway_objects,
    keep_image,
    keep_shard,
    trainer_secret,
)
from sandgate.operator.manifests.workload import placed
from sandgate.operator.plan.actions import Provided
from sandgate.operator.plan.kueue import Placement
from sandgate.operator.settings import Settings

log = logging.getLogger(__name__)

SECRET_BYTES = 32

REFUSALS: Final = (BadRequest, Forbidden, NotFound, TooLarge)
"""What an API server says of an object that it does not take: its rules, a quota, a right, a kind or a namespace that
is missing. To ask again at once is of no use."""


class Taken(Conflict):
    """A name that is derived from the job's is another's object: nothing is written over it."""


class Refused(Unavailable):
    """The API server does not take an object of the job. It may do so later: quotas and rights change."""


class Leaving(Refused):
    """What an earlier job of that name left is in the way, and is being deleted: that takes seconds, or as long as a
    gateway takes to end."""


async def provide(
    kube: Api,
    job: RolloutJob,
    settings: Settings,
    what: Provided,
    places: Mapping[str, Placement],
    *,
    key_expires: float = 0.0,
    signed: str = "",
) -> str:
    """Make or update everything of the job but its sessions; the signing secret, as hex. `places`:
    where Kueue wants its pods. `key_expires`: of the trainer's key, in unix seconds; 0.0 is never. `signed`: the
    signing secret that gateways run with, as hex, where this operator knows it.

    Raises Taken where an object of another has one of its names, Refused where the API server does not take one (of a
    job that is to stop, after all others were written), Leaving while an earlier job's journals are still there, and
    Unavailable while other objects of it are."""
    urls = job.spec.engine.endpoints or ()
    name = {"kind": "Secret", "metadata": {"name": signing_name(job.metadata.name)}}
    with _noting(name, Provided.RUNNING, []):
        secret = await _signing(kube, job, settings, signed)
    idle = what is Provided.IDLE
    objects = gateway_objects(
        job, settings, engine_urls=urls, secret_hex=secret, running=not idle, key_expires=key_expires
    )
    wanted = [*engine_objects(job, settings, running=what is Provided.RUNNING), *objects]
    signing = "Secret", signing_name(job.metadata.name)
    wanted = [placed(body, places) for body in wanted if (body["kind"], body["metadata"]["name"]) != signing]
    refused: list[Refused] = []
    # Before anything is written: all of it is the job's, or nothing is written.
    known: list[tuple[Json, Json | None]] = []
    for body in wanted:
        with _noting(body, what, refused):
            known.append((body, await _there(kube, job, body)))
    closed = closed_policy(job)
    with _noting(closed, what, refused):
        await kube.apply(closed, force=True)  # no job's: all of a namespace make the same
    for body, found in known:
        if found is not None and body["kind"] in ("Deployment", "StatefulSet"):
            body = keep_shard(keep_image(body, found) if body["kind"] == "Deployment" else body, found)
        if body["kind"] == "StatefulSet":
            await check_journals(kube, body, found)
        with _noting(body, what, refused):
            # Not by force where there was nothing: what somebody made meanwhile is not ours.
            _ours(job, await kube.apply(body, force=found is not None))
    for error in refused:
        raise error
    return secret


@contextmanager
def _noting(body: Json, what: Provided, refused: list[Refused]) -> Iterator[None]:
    """Where pods are to run, a refusal is the end of it: what comes before them may be their walls. Where they are to
    go, it is noted, and the rest goes on."""
    try:
        yield
    except REFUSALS as error:
        found = Refused(f"{body['kind']} {body['metadata']['name']}: {error}", retry_after=0.0)
        if what is Provided.RUNNING:
            raise found from error
        refused.append(found)


async def standing_secret(kube: Api, job: RolloutJob) -> str:
    """What the job's gateways sign with, as hex, if they stand; "" if they do not, or are not all the job's own."""
    name = gateways_name(job.metadata.name)
    try:
        for kind in ("StatefulSet", "Service"):  # who runs, and who gives them their names
            if await _there(kube, job, {"kind": kind, "metadata": {"name": name}}) is None:
                return ""
        return await _read_signing(kube, job, signing_name(job.metadata.name)) or ""
    except (SandgateError, OSError, TimeoutError):
        return ""


async def _there(kube: Api, job: RolloutJob, body: Json) -> Json | None:
    """The object as it is, if there is one yet. Raises Taken, Unavailable for one that is not this job's."""
    try:
        found = await kube.get(body["kind"], job.metadata.namespace, body["metadata"]["name"])
    except NotFound:
        return None
    _ours(job, found)
    return found


async def check_journals(kube: Api, body: Json, found: Json | None) -> None:
    """A StatefulSet takes whatever claims have the names of its own: with an earlier job's journal, say, that job's
    sessions; and the collector, which is on its way to that claim, takes it away under the gateway. Of those that are
    to run, and do not yet, none may be there that is not its own, or that is being deleted.

    Raises Leaving. An operator that may not look (a role of an older chart) takes them as they are, as it did."""
    running = 0 if found is None else found["spec"].get("replicas", 1)
    uid = None if found is None else found["metadata"]["uid"]
    meta = body["metadata"]
    for template in body["spec"].get("volumeClaimTemplates", ()):
        for index in range(running, body["spec"]["replicas"]):
            name = f"{template['metadata']['name']}-{meta['name']}-{index}"
            try:
                claim = await kube.get("PersistentVolumeClaim", meta["namespace"], name)
            except NotFound:
                continue
            except Forbidden as error:
                log.warning("whose journal %s/%s is cannot be seen: %s", meta["namespace"], name, error)
                return
            if why := _not_free(claim["metadata"], uid):
                raise Leaving(f"PersistentVolumeClaim {name} {why}", retry_after=0.0)


def _not_free(claim: Json, uid: str | None) -> str:
    """Why a StatefulSet of this uid may not take it, or nothing. Who made a claim beforehand owns it by nothing."""
    if claim.get("deletionTimestamp"):
        return "is being deleted: a gateway begins when it is gone (a pod that still runs may hold it)"
    sets = [one["uid"] for one in claim.get("ownerReferences") or () if one["kind"] == "StatefulSet"]
    if sets and uid not in sets:
        return (
            "is the journal of an earlier StatefulSet of that name, and is deleted with it: a gateway begins when it is"
            " gone"
        )
    return ""


async def _signing(kube: Api, job: RolloutJob, settings: Settings, signed: str) -> str:
    """Generated once; whoever comes second reads what the first one made. Deleted under gateways that run with it, it
    comes back as it was if it is known; if not, they go first."""
    name = signing_name(job.metadata.name)
    if not signed:
        if (kept := await _read_signing(kube, job, name)) is not None:
            return kept
        await _stand_down(kube, job, name)
    fresh = signed or secrets.token_hex(SECRET_BYTES)
    objects = gateway_objects(job, settings, engine_urls=(), secret_hex=fresh)
    body = next(one for one in objects if (one["kind"], one["metadata"]["name"]) == ("Secret", name))
    try:
        await kube.create(body)
    except Conflict:
        if (kept := await _read_signing(kube, job, name)) is None:
            raise Unavailable(f"Secret {name} is gone again: somebody deletes it") from None
        return kept
    return fresh


async def _read_signing(kube: Api, job: RolloutJob, name: str) -> str | None:
    """None if there is none. Raises Taken, Unavailable for one that is not this job's, or that somebody has spoilt."""
    try:
        found = await kube.get("Secret", job.metadata.namespace, name)
    except NotFound:
        return None
    _ours(job, found)
    return secret_of(found)


async def _stand_down(kube: Api, job: RolloutJob, lost: str) -> None:
    """Gateways that hold a secret which nobody knows are of no use, and kubelets give pods what others of their node
    have of that name: none may be left when there is another. Raises Unavailable while there are some."""
    name = gateways_name(job.metadata.name)
    body = {"kind": "StatefulSet", "metadata": {"name": name}}
    found = await _there(kube, job, body)
    if found is None or not (found.get("status") or {}).get("replicas"):
        return
    if found["spec"].get("replicas"):
        await kube.patch("StatefulSet", job.metadata.namespace, name, {"spec": {"replicas": 0}})
    raise Unavailable(
        f"Secret {lost} is gone, with which gateways run: they end, and come back with another",
        retry_after=2.0,
    )


async def renew_trainer_key(kube: Api, job: RolloutJob, settings: Settings, expires_at: float) -> None:
    """Write the trainer's key that expires then, unless it is there; nothing of a job that has no signing Secret yet.

    Raises Taken where one of the two Secrets is another's."""
    secret = await _read_signing(kube, job, signing_name(job.metadata.name))
    if secret is None:
        return
    body = trainer_secret(job, settings, secret, expires_at)
    found = await _there(kube, job, body)
    if found is None or found.get("data") != body["data"]:
        _ours(job, await kube.apply(body, force=found is not None))


def secret_of(body: Json) -> str:
    """The hex text of a signing Secret. Raises Unavailable for one that somebody has spoilt."""
    try:
        text = base64.b64decode(body["data"]["secret"], validate=True).decode("ascii").strip()
        if len(bytes.fromhex(text)) < SECRET_BYTES:
            raise ValueError("it is too short")
    except (KeyError, TypeError, ValueError, binascii.Error) as error:
        name = body["metadata"]["name"]
        raise Unavailable(
            f"Secret {name}: data.secret is not {SECRET_BYTES} bytes as hex: {error}"
        ) from error
    return text


def _ours(job: RolloutJob, body: Json) -> None:
    owner = owner_uid(body)
    if owner == job.metadata.uid:
        return
    kind, name = body["kind"], body["metadata"]["name"]
    owners = body["metadata"].get("ownerReferences") or ()
    if owner and any(one["kind"] == job.KIND and one["name"] == job.metadata.name for one in owners):
        raise Unavailable(
            f"{kind} {name} belongs to an earlier job of that name, which is still being deleted"
        )
    raise Taken(
        f"{kind} {name} is there already, and not of this job: delete it, or give the job another name"
    )
