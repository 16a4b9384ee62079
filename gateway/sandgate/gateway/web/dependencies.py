"""FastAPI dependencies of the control API: the service, the caller's checked key; page size, longest long poll."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Annotated, Any

import orjson
from fastapi import APIRouter, Depends, Request, Response
from fastapi.routing import APIRoute
from fastapi.types import DecoratedCallable
from starlette.exceptions import HTTPException

from sandgate.contract.endpoints import Endpoint
from sandgate.contract.errors import BadManifest, InvalidBody
from sandgate.contract.keys import Key
from sandgate.contract.manifest_decoder import once
from sandgate.gateway.service import auth
from sandgate.gateway.service.gateway_service import GatewayService
from sandgate.gateway.service.session import Session

WAIT_S_MAX = 600.0
"""A long poll ends after so many seconds at the latest; proxies give up sooner or later anyway."""
PAGE = 1_000
"""Sessions in one listing."""


async def _core(request: Request) -> GatewayService:
    core: GatewayService = request.app.state.core
    return core


async def _any(request: Request) -> Key:
    core: GatewayService = request.app.state.core
    return core.gate.key(request.scope["headers"])


async def _controller(request: Request) -> Key:
    key = await _any(request)
    auth.control(key)
    return key


async def _admin(request: Request) -> Key:
    key = await _any(request)
    auth.admin(key)
    return key


class KeyTwice(InvalidBody):
    """A key stands twice in a body's object: JSON lets the last one win, silently."""


class _Once(Request):
    async def json(self) -> Any:
        """Raises BadManifest for a key that stands twice."""
        return json.loads(await self.body(), object_pairs_hook=once)


class ControlRoute(APIRoute):
    """A route that raises KeyTwice."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        inner = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                return await inner(_Once(request.scope, request.receive))
            except HTTPException as error:  # FastAPI's word for whatever the reading of a body raises
                if isinstance(cause := error.__cause__, BadManifest):
                    raise KeyTwice(str(cause), field=cause.field) from None
                raise

        return handler


def control_router(**more: Any) -> APIRouter:
    """For endpoints of the control API. Its routes are used as they are by every app (`control.build`), so they say all
    that an app would say for them."""
    # What comes is JSON, whether it says so or not.
    more.setdefault("route_class", ControlRoute)
    return APIRouter(default_response_class=JsonBody, strict_content_type=False, **more)


def serves(
    router: APIRouter, endpoint: Endpoint, status_code: int = 200
) -> Callable[[DecoratedCallable], DecoratedCallable]:
    """The decorated function answers this endpoint of the contract."""
    return router.api_route(endpoint.path, methods=[endpoint.method], status_code=status_code)


class JsonBody(Response):
    """JSON by orjson: trajectories are large, and FastAPI's own encoder walks every token."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)


Front = Annotated[GatewayService, Depends(_core)]
AnyKey = Annotated[Key, Depends(_any)]
"""A verified key; the endpoint checks its scope."""
Controller = Annotated[Key, Depends(_controller)]
"""A key of scope admin or trainer."""
Admin = Annotated[Key, Depends(_admin)]
"""A key of scope admin, which is the operator's."""


async def own(core: GatewayService, key: Key, session_id: str) -> Session:
    """The session, if the key is for the session's job; one that was retired, too. Raises NotFound, Forbidden."""
    session = await core.sessions.find(session_id)
    auth.control(key, job=session.spec.get("job"))
    return session
