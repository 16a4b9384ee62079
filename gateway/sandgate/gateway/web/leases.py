"""Control API: trajectories are leased, then acked or nacked."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import Response

from sandgate.gateway.web import auth
from sandgate.gateway.web.doors import Controller, Front, JsonBody
from sandgate.gateway.web.shapes import CloseGroup, LeaseBody

router = APIRouter(prefix="/v1", tags=["leases"])


@router.post("/leases")
async def lease(core: Front, key: Controller, body: LeaseBody | None = None) -> Response:
    """Trajectories of whole groups until `until`; not acked by then they are offered again. `lease_id` null: none."""
    body = body or LeaseBody()
    auth.control(key, job=body.job)
    return JsonBody(await core.lease(body, key))


@router.post("/leases/{lease_id}/ack")
async def ack(core: Front, _: Controller, lease_id: str) -> Any:
    """The trainer has them for good. 409 if the lease expired and another trainer was given them. Idempotent."""
    return await core.ack(lease_id)


@router.post("/leases/{lease_id}/nack")
async def nack(core: Front, _: Controller, lease_id: str) -> Any:
    """Give them back; they are offered again at once. Idempotent."""
    return await core.nack(lease_id)


@router.post("/groups/close")
async def close(core: Front, key: Controller, body: CloseGroup) -> Any:
    """No more sessions count for this task (quorum reached, stragglers cut). Idempotent."""
    auth.control(key, job=body.job or None)
    return await core.close_group(body, key)
