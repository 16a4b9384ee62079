"""Control API: sessions."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import Body, Header, Query
from fastapi.responses import Response

from sandgate.contract import endpoints
from sandgate.contract.choices import RewardSource
from sandgate.contract.errors import NotFound
from sandgate.contract.keys import Scope
from sandgate.contract.lease import ARROW
from sandgate.contract.session import agents_task
from sandgate.gateway.service import auth
from sandgate.gateway.service.schemas import Complete, Finalize, RewardBody, SessionBody
from sandgate.gateway.service.session import SessionPhase
from sandgate.gateway.web.dependencies import (
    PAGE,
    WAIT_S_MAX,
    AnyKey,
    Controller,
    Front,
    JsonBody,
    control_router,
    own,
    serves,
)
from sandgate.gateway.web.leases import as_arrow, wants_arrow

router = control_router(tags=["sessions"])
Accept = Annotated[str, Header()]


@serves(router, endpoints.CREATE_SESSIONS, status_code=201)
async def create(
    core: Front, key: Controller, body: Annotated[SessionBody | list[SessionBody], Body()]
) -> Response:
    """Create one session, or many with a list body; the same id again gives the same handle (200). Another id for an
    attempt at a sample that a session stands for already is 409 where `group_size` is more than 1, and else a group of
    its own."""
    many = body if isinstance(body, list) else [body]
    made = [await core.open(spec, key) for spec in many]
    fresh = any(created for _, created in made)
    handles = [handle for handle, _ in made]
    return JsonBody(handles if isinstance(body, list) else handles[0], 201 if fresh else 200)


@serves(router, endpoints.LIST_SESSIONS)
async def listing(
    core: Front,
    key: Controller,
    state: str | None = None,
    job: str | None = None,
    after: str = "",
    limit: int = PAGE,
) -> Any:
    """Sessions in id order after `after`; `next` is the cursor of the next page or null. What /complete said is left
    out, and stands in the session's own answer: `has_complete_info`. Of a `retired` one only its end is known."""
    job = job or key.job or None
    auth.control(key, job=job)
    limit = max(1, min(limit, PAGE))
    found = await core.sessions.page(state, job, after, limit + 1)
    page = [core.sessions.summary(session, whole=False) for session in found[:limit]]
    return {"sessions": page, "next": page[-1]["session_id"] if len(found) > limit else None}


@serves(router, endpoints.SESSION)
async def one(core: Front, key: Controller, session_id: str) -> Any:
    """State, turns, tokens, forks, in flight, timestamps."""
    return core.sessions.summary(await own(core, key, session_id))


@serves(router, endpoints.WAIT)
async def wait(
    core: Front,
    key: Controller,
    session_id: str,
    timeout_s: Annotated[float, Query(ge=0, le=WAIT_S_MAX)] = 60.0,
) -> Any:
    """wait_for_completion: 200 when the session is complete or ended, 408 at the timeout; 503 when this process ends
    before: ask again."""
    session = await own(core, key, session_id)
    try:
        async with asyncio.timeout(timeout_s):
            while session.phase is SessionPhase.OPEN:
                core.turns.admission.refuse_if_draining()
                await core.sessions.changed.wait()
    except TimeoutError:
        return JsonBody(core.sessions.summary(session), 408)
    return core.sessions.summary(session)


@serves(router, endpoints.SESSION_TASK)
async def task(core: Front, key: AnyKey, session_id: str) -> Any:
    """The task that the session was created with; of its `data` an agent sees what is under `public`. 404 if it was
    created without; 410 once it is retired."""
    session = await core.sessions.find(session_id)
    auth.may_read_task(key, session_id, job=session.spec.get("job", ""))
    session.refuse_if_retired()
    found = session.spec.get("task")
    if key.scope is Scope.AGENT:
        found = agents_task(found)
    if found is None:
        raise NotFound(f"session {session_id!r} was created without a task")
    return JsonBody(found)


@serves(router, endpoints.REWARD)
async def reward(core: Front, key: AnyKey, session_id: str, body: RewardBody) -> Any:
    """Set the reward of a turn (default: the last one that its agent was sent), or by its verifier of the session. With
    the caller's own `reward_id` it may be asked again: the first time counts, and is the answer, also behind the
    session's end."""
    session = await core.sessions.find(session_id)
    auth.may_reward(
        key,
        session_id,
        job=session.spec.get("job", ""),
        reward_source=session.spec.get("reward_source", "trainer"),
    )
    by_verifier = key.scope is Scope.REWARD and session.spec.get("reward_source") == RewardSource.VERIFIER
    given = await core.reward(session, body, by_agent=key.scope is Scope.AGENT, by_verifier=by_verifier)
    return {"session_id": session_id, "interaction_id": given.turn, "reward": given.reward}


@serves(router, endpoints.COMPLETE)
async def complete(core: Front, key: Controller, session_id: str, body: Complete | None = None) -> Any:
    """The same signal as the agent's /complete, for drivers."""
    return await core.complete(await own(core, key, session_id), body or Complete())


@serves(router, endpoints.FINALIZE)
async def finalize(
    core: Front, key: Controller, session_id: str, body: Finalize | None = None, accept: Accept = "*/*"
) -> Any:
    """Seal the session's tree and linearize it. Idempotent: the first outcome stands. Trajectories as JSON, or as Arrow
    IPC where that is accepted, as of a lease."""
    session, body = await own(core, key, session_id), body or Finalize()
    if body.trajectories and wants_arrow(accept):
        await core.seal(session, body)
        return Response(await core.rows(session, as_arrow), media_type=ARROW)
    return JsonBody(await core.finalize(session, body))


@serves(router, endpoints.TRAJECTORIES)
async def trajectories(core: Front, key: Controller, session_id: str, accept: Accept = "*/*") -> Any:
    """The trajectories of a finalized session; 409 while it has not ended, 410 once it is retired: whoever acknowledged
    them has them. Reads only: they stay to be leased. As JSON, or as Arrow IPC where that is accepted."""
    if wants_arrow(accept):
        return Response(await core.rows(await own(core, key, session_id), as_arrow), media_type=ARROW)
    return JsonBody(await core.trajectories(await own(core, key, session_id)))


@serves(router, endpoints.ABORT)
async def abort(core: Front, key: Controller, session_id: str) -> Any:
    """Cancel in-flight engine calls and discard; siblings are untouched. Idempotent."""
    session = await own(core, key, session_id)
    await core.abort(session)
    return core.sessions.summary(session)


@serves(router, endpoints.TREE)
async def tree(core: Front, key: Controller, session_id: str, text: bool = True) -> Any:
    """Turns, parents, fork reasons, per-token spans; 410 once it is retired."""
    return JsonBody(await core.tree(await own(core, key, session_id), text=text))
