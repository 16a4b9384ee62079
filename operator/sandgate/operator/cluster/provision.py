"""Provisions a job: creates its signing Secret once, and applies its gateways and its engine."""

from __future__ import annotations

import base64
import binascii
import secrets
from collections.abc import Mapping

from sandgate.contract.errors import Conflict, NotFound, Unavailable
from sandgate.contract.job import RolloutJob
from sandgate.contract.names import signing_name
from sandgate.operator.cluster.api import Api, Json
from sandgate.operator.cluster.object_store import owner_uid
from sandgate.operator.manifests import engine_objects, gateway_objects, keep_image
from sandgate.operator.manifests.workload import placed
from sandgate.operator.plan.actions import Provided
from sandgate.operator.plan.kueue import Placement
from sandgate.operator.settings import Settings

SECRET_BYTES = 32


class Taken(Conflict):
    """A name that is derived from the job's is another's object: nothing is written over it."""


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
    signing secret that gateways run with, as hex; a Secret that somebody deleted under them comes back as it was.

    Raises Taken where an object of another has one of its names, Unavailable while those
    of an earlier job of that name are still there."""
    urls = job.spec.engine.endpoints or ()
    secret = await _signing(kube, job, settings, signed)
    idle = what is Provided.IDLE
    objects = gateway_objects(
        job, settings, engine_urls=urls, secret_hex=secret, running=not idle, key_expires=key_expires
    )
    wanted = [*engine_objects(job, settings, running=what is Provided.RUNNING), *objects]
    signing = "Secret", signing_name(job.metadata.name)
    wanted = [placed(body, places) for body in wanted if (body["kind"], body["metadata"]["name"]) != signing]
    # Before anything is written: all of it, or nothing.
    there = [await _there(kube, job, body) for body in wanted]
    for body, found in zip(wanted, there, strict=True):
        if found is not None and body["kind"] == "Deployment":
            body = keep_image(body, found)
        # Not by force where there was nothing: what somebody made meanwhile is not ours.
        _ours(job, await kube.apply(body, force=found is not None))
    return secret


async def _there(kube: Api, job: RolloutJob, body: Json) -> Json | None:
    """The object as it is, if there is one yet. Raises Taken, Unavailable for one that is not this job's."""
    try:
        found = await kube.get(body["kind"], job.metadata.namespace, body["metadata"]["name"])
    except NotFound:
        return None
    _ours(job, found)
    return found


async def _signing(kube: Api, job: RolloutJob, settings: Settings, signed: str) -> str:
    """Generated once; whoever comes second reads what the first one made."""
    fresh = signed or secrets.token_hex(SECRET_BYTES)
    name = signing_name(job.metadata.name)
    objects = gateway_objects(job, settings, engine_urls=(), secret_hex=fresh)
    body = next(one for one in objects if (one["kind"], one["metadata"]["name"]) == ("Secret", name))
    try:
        await kube.create(body)
    except Conflict:
        found = await kube.get("Secret", job.metadata.namespace, name)
        _ours(job, found)
        return secret_of(found)
    return fresh


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
