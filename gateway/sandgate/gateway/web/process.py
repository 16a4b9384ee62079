"""Control API: events, weight updates, status, probes."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Query, Request
from fastapi.responses import Response
from prometheus_client import generate_latest
from pydantic import ValidationError

from sandgate.contract import endpoints
from sandgate.contract.errors import BadManifest, InvalidBody, NotFound
from sandgate.gateway.service.schemas import EnginesBody, UpdateBody, VersionBody
from sandgate.gateway.web.dependencies import (
    WAIT_S_MAX,
    Admin,
    Controller,
    Front,
    JsonBody,
    KeyTwice,
    control_router,
    serves,
)

router = control_router(tags=["process"])


@serves(router, endpoints.EVENTS)
async def events(
    core: Front, key: Controller, after: int = 0, wait_s: Annotated[float, Query(ge=0, le=WAIT_S_MAX)] = 30.0
) -> Any:
    """Long poll for session state changes. `reset`: the cursor is from another life of this process, or too old;
    list the sessions and go on from `cursor`."""
    return await core.events(after, wait_s, job=key.job)


async def _update(request: Request) -> str:
    """The name of a weight update that a body's object gives, of whatever content type. All else is none: these calls
    took any body before they read one, and what holds an engine's turns must not fail over that."""
    try:
        said = await request.json()
    except BadManifest as error:
        raise KeyTwice(str(error), field=error.field) from None
    except (ValueError, RecursionError):
        return ""
    update = said.get("update") if isinstance(said, dict) else None
    try:
        return UpdateBody(update="" if update is None else update).update
    except ValidationError:
        raise InvalidBody(
            "update: no name of one, which is twelve digits, a point, and 1 to 51 letters, digits or -",
            field="update",
        ) from None


Update = Annotated[str, Depends(_update)]
_BODY: dict[str, Any] = {
    "requestBody": {"content": {"application/json": {"schema": UpdateBody.model_json_schema()}}}
}


@router.api_route(endpoints.PAUSE.path, methods=[endpoints.PAUSE.method], openapi_extra=_BODY)
async def pause(core: Front, _: Controller, update: Update) -> Any:
    """Hold turns that have not reached the engine; a restart of the gateway does not let them go. `update`: the
    name of the weight update that begins by this, twelve digits, a point and what is its own; what one of a lesser name
    says from now on is a 409. /v1/status tells the greatest."""
    await core.pause(update)
    return core.status()


@router.api_route(endpoints.RESUME.path, methods=[endpoints.RESUME.method], openapi_extra=_BODY)
async def resume(core: Front, _: Controller, update: Update) -> Any:
    """Let held turns go on."""
    await core.resume(update)
    return core.status()


@serves(router, endpoints.POLICY_VERSION)
async def version(core: Front, _: Controller, body: VersionBody) -> Any:
    """The trainer's weights advanced; tokens sampled from now on carry this version, or the number in the label of
    their engine's weights. `labelled`: engines are labelled with versions, so one whose label has no number is not
    used; null: as was told or seen before. `adapter`: engines serve the version as a LoRA adapter of this name, and one
    that does not is not used; empty: their own weights are of the version. `if_untold`: nothing changes if a version
    was told before."""
    await core.set_version(
        body.version, body.labelled, body.adapter, if_untold=body.if_untold, update=body.update
    )
    return core.status()


@serves(router, endpoints.ENGINES)
async def engines(core: Front, _: Admin, body: EnginesBody) -> Any:
    """Replace the engine's replicas. Answers when the new ones were asked what they are; running generations end where
    they are. Survives a restart."""
    await core.set_engines(tuple(body.urls), body.nodes)
    return core.status()


@serves(router, endpoints.HEARTBEAT)
async def heartbeat(core: Front, _: Controller) -> Any:
    """A trainer says that it lives; every other call with a trainer's key says so, too."""
    return {"trainer_seen_at": core.gate.heartbeat()}


@serves(router, endpoints.STATUS)
async def status(core: Front, _: Controller) -> Any:
    """Load, pause, versions, journal, engines."""
    return core.status()


probes = control_router(tags=["probes"])


@serves(probes, endpoints.HEALTHZ)
async def healthz(core: Front) -> Response:
    """Alive, and able to make turns durable. (Served before it gets here; this is for the OpenAPI document.)"""
    status, body = core.health()
    return JsonBody(body, status)


@serves(probes, endpoints.READYZ)
async def readyz(core: Front) -> Response:
    """Takes turns: not draining, journal healthy, an engine answers (or it was told to wait for one)."""
    ready, detail = core.readiness()
    return JsonBody({"ready": ready, "detail": detail}, 200 if ready else 503)


@serves(probes, endpoints.METRICS)
async def metrics(core: Front) -> Response:
    """Prometheus. 404 where the settings say so."""
    if not core.config.metrics:
        raise NotFound("metrics: false in this gateway's settings")
    core.measure()
    return Response(generate_latest(core.metrics.registry), media_type="text/plain; version=0.0.4")
