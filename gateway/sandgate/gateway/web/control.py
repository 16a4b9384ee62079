"""The FastAPI app of the control API (docs/reference/gateway.md): its routers, its error bodies, its OpenAPI."""

from __future__ import annotations

import functools

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute

from sandgate.contract.errors import BadRequest, InvalidBody, NotFound, SandgateError, TooLarge
from sandgate.gateway.service.areal import Areal
from sandgate.gateway.service.call_registry import INTERNAL
from sandgate.gateway.service.gateway_service import GatewayService
from sandgate.gateway.service.schemas import SessionBody
from sandgate.gateway.web import areal, leases, process, sessions, tasks, trace_viewer
from sandgate.gateway.web.dependencies import Controller, JsonBody, control_router

UNION = ("body", SessionBody.__name__, f"list[{SessionBody.__name__}]")
"""What pydantic puts before a field's own name, where a body may be one session or many."""


def build(core: GatewayService) -> FastAPI:
    """The app of one gateway."""
    docs = core.config.docs  # the app serves its OpenAPI itself, to anybody
    app = FastAPI(
        title="Sandgate gateway",
        version="1",
        routes=list(_routes() if docs else (*_routes(), *_guarded.routes)),
        redirect_slashes=False,
        openapi_url="/openapi.json" if docs else None,
    )
    app.state.core = core

    # All of them async: Starlette runs plain functions in a thread, one hop for each refusal.
    async def on_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, SandgateError)
        core.metrics.error(error.reason)
        return error_response(error)

    async def on_invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return await on_error(_, misfit(error))

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        kind = {404: NotFound, 413: TooLarge}.get(error.status_code, BadRequest)
        core.metrics.error(kind.reason)
        what = f"{request.method} {request.url.path[:200]}: " if kind is not TooLarge else ""
        response = error_response(kind(what + str(error.detail)))
        response.status_code = error.status_code
        return response

    async def on_bug(_: Request, error: Exception) -> Response:
        return await on_error(_, SandgateError(INTERNAL))

    app.add_exception_handler(SandgateError, on_error)
    app.add_exception_handler(RequestValidationError, on_invalid)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(Exception, on_bug)
    app.state.areal = Areal(core)
    return app


@functools.cache
def _routes() -> tuple[BaseRoute, ...]:
    """Made once in a process: each app reads a router that it includes anew, at its first request, in 0.1 s of CPU."""
    routers = (
        areal.router,
        sessions.router,
        leases.router,
        tasks.router,
        process.router,
        process.probes,
        trace_viewer.router(),
    )
    return tuple(route for router in routers for route in router.routes)


_guarded = control_router(include_in_schema=False)


@_guarded.get("/openapi.json")
async def _openapi(request: Request, _: Controller) -> Response:
    return JsonBody(request.app.openapi())


def misfit(error: RequestValidationError) -> InvalidBody:
    """The deepest of pydantic's complaints: where a body may be one session or a list, it is about the form that was
    meant."""
    deepest = max(error.errors(), key=lambda problem: len(problem["loc"]))
    if deepest["type"] == "json_invalid":
        return InvalidBody("body: not JSON", field="body")
    parts = [str(part) for part in deepest["loc"] if part not in UNION]
    where = ".".join(parts) or "body"
    return InvalidBody(f"{where}: {deepest['msg']}", field=where)


def error_response(error: SandgateError) -> Response:
    """An error as an answer: status, reason, field, and when to come back."""
    headers = {"x-sandgate-reason": error.reason}
    if error.retry_after is not None:
        headers["retry-after"] = str(max(1, round(error.retry_after)))
    body = {
        "message": str(error),
        "type": error.reason,
        "code": error.reason,
        "param": getattr(error, "field", None),
    }
    return JsonBody({"error": body}, error.status, headers)
