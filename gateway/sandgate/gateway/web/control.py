"""Control API (api.md section 2) on FastAPI: errors in one shape, routers, OpenAPI."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response

from sandgate.contract.errors import InvalidBody, SandgateError
from sandgate.gateway.core import Core
from sandgate.gateway.web import leases, process, sessions
from sandgate.gateway.web.doors import JsonBody


def build(core: Core) -> FastAPI:
    """The app; `core` is all it knows."""
    app = FastAPI(
        title="Sandgate gateway", version="1", default_response_class=JsonBody, redirect_slashes=False
    )
    app.state.core = core

    def on_error(_: Request, error: Exception) -> Response:
        assert isinstance(error, SandgateError)
        core.metrics.error(error.reason)
        return error_response(error)

    def on_invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"] if part != "body") or "body"
        return on_error(_, InvalidBody(f"{where}: {first['msg']}", field=where))

    app.add_exception_handler(SandgateError, on_error)
    app.add_exception_handler(RequestValidationError, on_invalid)
    for router in (sessions.router, leases.router, process.router, process.probes):
        app.include_router(router)
    return app


def error_response(error: SandgateError) -> Response:
    """Status, reason, field, and when to come back."""
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
