"""Control API: the queue of tasks that a trainer pushes and the operator works off."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from fastapi.responses import Response

from sandgate.contract import endpoints
from sandgate.gateway.service import auth
from sandgate.gateway.service.schemas import ForgetTasks, PushTasks
from sandgate.gateway.web.dependencies import (
    WAIT_S_MAX,
    Admin,
    Controller,
    Front,
    JsonBody,
    control_router,
    serves,
)

router = control_router(tags=["tasks"])


@serves(router, endpoints.PUSH_TASKS)
async def push(core: Front, key: Controller, body: PushTasks) -> Any:
    """Push tasks to the job, all of them or none; durable when answered. The same again changes nothing; a uid with
    another prompt or data is 409, as is any task where the job has no queue. `finished`: uids of those that had
    finished before, among the newest 10,000 that did, and whose groups this gateway does not hold for a trainer; they
    do not run anew. 429 while as many tasks are unfinished as the gateway holds."""
    auth.control(key, job=body.job)
    return await core.push_tasks(body, key)


@serves(router, endpoints.TASKS)
async def look(
    core: Front,
    _: Admin,
    after: Annotated[int, Query(ge=0)] = 0,
    wait_s: Annotated[float, Query(ge=0, le=WAIT_S_MAX)] = 0.0,
) -> Response:
    """Tasks numbered over `after`, in order, a page of them; go on from `cursor`. `last`: these are the last of all."""
    return JsonBody(await core.tasks(after, wait_s))


@serves(router, endpoints.FORGET_TASKS)
async def forget(core: Front, _: Admin, body: ForgetTasks) -> Any:
    """Tasks up to this number are finished: their places are free. Idempotent."""
    return await core.forget_tasks(body.upto)
