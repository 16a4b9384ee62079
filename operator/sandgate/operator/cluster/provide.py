"""Setting a job up: its signing Secret, made once; its gateways and its engine, applied."""

from __future__ import annotations

import base64
import binascii
import secrets

from sandgate.contract.errors import Conflict, Unavailable
from sandgate.contract.job import RolloutJob
from sandgate.contract.names import signing_name
from sandgate.operator.cluster.api import Api, Json
from sandgate.operator.cluster.store import owner_uid
from sandgate.operator.manifests import engine_objects, gateway_objects
from sandgate.operator.settings import Settings

SECRET_BYTES = 32


async def provide(kube: Api, job: RolloutJob, settings: Settings, *, engine: bool) -> str:
    """Make or update everything of the job but its sessions; the signing secret, as hex. `engine` False: a managed one
    is scaled to nothing. Raises Unavailable while objects of an earlier job of that name are still there."""
    urls = job.spec.engine.endpoints or ()
    secret = await _signing(kube, job, settings)
    objects = gateway_objects(job, settings, engine_urls=urls, secret_hex=secret)
    for body in [*engine_objects(job, settings, running=engine), *objects]:
        if (body["kind"], body["metadata"]["name"]) != ("Secret", signing_name(job.metadata.name)):
            _ours(job, await kube.apply(body))
    return secret


async def _signing(kube: Api, job: RolloutJob, settings: Settings) -> str:
    """Generated once; whoever comes second reads what the first one made."""
    fresh = secrets.token_hex(SECRET_BYTES)
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
    if owner and owner != job.metadata.uid:
        kind, name = body["kind"], body["metadata"]["name"]
        raise Unavailable(
            f"{kind} {name} belongs to an earlier job of that name, which is still being deleted"
        )
