"""Endpoints of AReaL's proxy (PyPI `areal` 1.0.4, areal/experimental/openai/proxy): its client works unchanged.

Paths have no /v1. Status codes are AReaL's, because its client retries some for ever (408, 429, 502-504) and swallows
others (400 of set_reward): a body that does not fit is 422, a wrong admin key 403, an unknown session key 401.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Coroutine, Iterable
from typing import Annotated, Any

import orjson
from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException

from sandgate.contract.errors import Forbidden, Gone, NotFound, Unauthorized
from sandgate.contract.keys import KEY_CHARS_MAX, Key, Scope
from sandgate.contract.trajectory import Json
from sandgate.gateway.service import auth
from sandgate.gateway.service.areal import Areal
from sandgate.gateway.service.prompts import off_loop
from sandgate.gateway.service.schemas import Complete, LaxReward
from sandgate.gateway.service.session import Session
from sandgate.gateway.trajectories.interactions import Interaction, Tensor
from sandgate.gateway.web.dependencies import WAIT_S_MAX, ControlRoute, Front, KeyTwice, control_router, own


class _Strict422(ControlRoute):
    """A route that answers 422, FastAPI's own status, to a body that does not fit; our other routes answer 400."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        inner = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                return await inner(request)
            except KeyTwice as error:
                raise HTTPException(422, str(error)) from None
            except RequestValidationError as error:
                first = error.errors()[0]
                where = ".".join(str(part) for part in first["loc"][1:]) or "body"
                raise HTTPException(422, f"{where}: {first['msg']}") from None

        return handler


router = control_router(tags=["areal"], route_class=_Strict422)


class StartBody(BaseModel):
    """Body of /rl/start_session. `api_key`: a key to use again, of a session that is over."""

    task_id: str = Field(max_length=512)
    api_key: str | None = Field(default=None, max_length=KEY_CHARS_MAX)


class SetRewardBody(BaseModel):
    """Body of /rl/set_reward. `interaction_id` null: the last one."""

    interaction_id: str | None = Field(default=None, max_length=512)
    reward: LaxReward


class ExportBody(BaseModel):
    """Body of /export_trajectories."""

    session_id: str
    discount: float = 1.0
    style: str = "individual"


async def _areal(request: Request) -> Areal:
    areal: Areal = request.app.state.areal
    return areal


async def _admin(request: Request) -> Key:
    """The caller's key: an admin's, a trainer's, or the one that AReaL was configured with. Raises Forbidden."""
    areal: Areal = request.app.state.areal
    text = auth.bearer(request.scope["headers"])
    if (own := areal.admin(text)) is not None:
        return own
    try:
        key = areal.core.gate.key(request.scope["headers"])
    except Unauthorized:
        raise Forbidden("not the admin key") from None
    auth.control(key)
    return key


async def _session(request: Request) -> Session:
    """The session of the caller's key. Raises Forbidden, and Gone once the session has ended."""
    core = request.app.state.core
    key = core.gate.key(request.scope["headers"])
    if key.scope is not Scope.AGENT:
        raise Forbidden(f"keys of scope {key.scope.value} are no session's")
    try:
        session: Session = core.sessions.get(key.session)
    except NotFound:
        raise Gone("the session of this key has ended") from None
    auth.of_job(key, session.spec.get("job", ""))
    return session


Service = Annotated[Areal, Depends(_areal)]
Admin = Annotated[Key, Depends(_admin)]
Own = Annotated[Session, Depends(_session)]


@router.post("/grant_capacity")
async def grant_capacity(areal: Service, _: Admin) -> Any:
    """One more session may start. Any body, of any type, also none."""
    return {"capacity": await areal.grant()}


@router.post("/rl/start_session")
async def start_session(areal: Service, key: Admin, body: StartBody) -> Any:
    """A session and its key. 429 without granted capacity; 409 if the given key is an active session's."""
    return await areal.start(body.task_id, body.api_key or "", key)


@router.post("/rl/set_reward")
async def set_reward(areal: Service, session: Own, body: SetRewardBody) -> Any:
    """Reward of one interaction or the last one. 400 if there is none such; 410 if the session was exported."""
    if session.spec.get("reward_source") != "agent":
        raise Forbidden("this key may not set this session's reward")
    await areal.reward(session, body.reward, body.interaction_id)
    return {"message": "success"}


@router.post("/rl/end_session")
async def end_session(core: Front, session: Own) -> Any:
    """The agent is done. Idempotent; 410 if the session was aborted."""
    await core.complete(session, Complete())
    return {"message": "success", "interaction_count": session.turns}


@router.post("/export_trajectories")
async def export_trajectories(core: Front, areal: Service, key: Admin, body: ExportBody) -> Response:
    """The session's interactions after discounting, in order of creation; waits for its end, 408 after 600 s.

    404 if there is no such session; 400 for a style or discount that cannot be; 413 if it is too large.
    """
    session = await own(core, key, body.session_id)
    try:
        await areal.wait_ended(session, WAIT_S_MAX)
    except TimeoutError:
        raise HTTPException(408, f"session {session.session_id} was not ended") from None
    interactions = await areal.export(session, body.discount, body.style)
    return Response(await off_loop(core.exports, as_json, interactions), media_type="application/json")


def as_json(interactions: Iterable[Interaction]) -> bytes:
    """The JSON that AReaL's `deserialize_interactions` reads; interactions have the ids that agents saw."""
    out: dict[str, Json] = {}
    for interaction in interactions:
        name = f"chatcmpl-{interaction.turn}"
        tensors = {key: encoded(tensor) for key, tensor in interaction.tensors.items()}
        out[name] = {"tensor_dict": tensors, "reward": interaction.reward, "interaction_id": name}
    return orjson.dumps({"interactions": out})


def encoded(tensor: Tensor) -> dict[str, Json]:
    """A tensor as AReaL's SerializedTensor."""
    return {
        "type": "tensor",
        "data": base64.b64encode(tensor.data).decode("ascii"),
        "shape": tensor.shape,
        "dtype": f"torch.{tensor.dtype}",
    }
