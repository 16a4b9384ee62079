"""Control API: trajectories are leased, then acked or nacked."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from importlib.util import find_spec
from itertools import islice
from typing import Annotated, Any

import orjson
from fastapi import Header
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from sandgate.contract import endpoints
from sandgate.contract.errors import Conflict
from sandgate.contract.lease import (
    ARROW,
    EMPTY_HEADER,
    FAILED_HEADER,
    LEASE_HEADER,
    LEASES_HEADER,
    UNTIL_HEADER,
    empty_header,
)
from sandgate.contract.trajectory import Trajectory
from sandgate.gateway.journal.records import Leased
from sandgate.gateway.service import auth
from sandgate.gateway.service.gateway_service import GatewayService
from sandgate.gateway.service.rows import Rows, as_json
from sandgate.gateway.service.schemas import (
    AckLeasesBody,
    CloseGroupBody,
    LeaseBody,
    RenewBody,
    RenewLeasesBody,
)
from sandgate.gateway.web.dependencies import Controller, Front, JsonBody, control_router, serves

JSON = "application/json"
FAILED_SAID = 32
"""So many ids of failed sessions in an Arrow answer's header: it stays short."""

router = control_router(tags=["leases"])


@serves(router, endpoints.LEASE)
async def lease(
    core: Front, key: Controller, body: LeaseBody | None = None, accept: Annotated[str, Header()] = "*/*"
) -> Response:
    """Trajectories of whole groups until `until`; not acked by then they are offered again. `lease_id` null: none.

    `failed`: sessions of the lease that have no rows because they cannot be given, each with its reason.

    With `leases` over 1: that many leases at once, of which each is acknowledged by itself; their ids are `lease_id`,
    `lease_id.1` and so on. JSON lists them under `leases`; Arrow has the rows of each in `x-sandgate-leases`. Asked
    again by that id with `leases`, however many, all of them are given again.

    `empty`: the job and task of leases of which no session has a row (nobody took a turn, or the group is lost: all of
    its samples failed by the infrastructure), as no row says it; `x-sandgate-lease-empty`.

    As JSON, or with `Accept: application/vnd.apache.arrow.stream` as Arrow IPC; 406 if the gateway can give neither.
    """
    body = body or LeaseBody()
    auth.control(key, job=body.job)
    if core.writing is not None:
        raise Conflict("trajectories of this job go to files: spec.output.parquet; there is nothing to lease")
    form = wanted(accept, [JSON, ARROW] if has_arrow() else [JSON])
    if form is None:
        raise HTTPException(406, f"rows are given as {JSON}, or as {ARROW} with the extra gateway-arrow")
    leases = await core.lease(body, key)
    until = min((one.until for one in leases), default=core.sessions.by_leases())
    apart = max(body.leases, len(leases)) > 1
    if form == ARROW:
        stream = await core.leasing.rows(*leases, shape=as_arrow)
        headers = {UNTIL_HEADER: repr(until)} | ({LEASE_HEADER: leases[0].lease} if leases else {})
        if apart:
            headers[LEASES_HEADER] = ",".join(str(_count(one, stream)) for one in leases)
        if names := empty_header(_empty(core, leases, stream)):
            headers[EMPTY_HEADER] = names
        if stream.failed:
            headers[FAILED_HEADER] = ",".join(islice(stream.failed, FAILED_SAID))
        return Response(stream.rows, media_type=ARROW, headers=headers)
    rows = await core.leasing.rows(*leases, shape=as_json)
    several = [{"lease_id": one.lease, "sessions": one.sessions, "rows": _count(one, rows)} for one in leases]
    return JsonBody(
        {
            "lease_id": leases[0].lease if leases else None,
            "until": until,
            "sessions": [name for one in leases for name in one.sessions],
            "trajectories": orjson.Fragment(rows.rows),
            "failed": rows.failed,
        }
        | ({"leases": several} if apart else {})
        | ({"empty": empty} if (empty := _empty(core, leases, rows)) else {})
    )


def _count(lease: Leased, rows: Rows[Any]) -> int:
    return sum(rows.counts.get(session, 0) for session in lease.sessions)


def _empty(core: GatewayService, leases: Iterable[Leased], rows: Rows[Any]) -> list[dict[str, str]]:
    """Those without a row that are of one task: who waits for it must know that it is there."""
    found = []
    for lease in leases:
        if _count(lease, rows):
            continue
        specs = [core.sessions.get(session).spec for session in lease.sessions]
        tasks = {(str(spec.get("job") or ""), str(spec.get("uid") or "")) for spec in specs}
        if len(tasks) == 1 and (task := tasks.pop())[1]:
            found.append({"lease_id": lease.lease, "job": task[0], "uid": task[1]})
    return found


@functools.cache
def has_arrow() -> bool:
    """Is the extra installed?"""
    return find_spec("pyarrow") is not None


def wants_arrow(accept: str) -> bool:
    """Whether rows go as Arrow to who also takes JSON."""
    return has_arrow() and wanted(accept, [JSON, ARROW]) == ARROW


def as_arrow(rows: Iterable[Trajectory]) -> bytes:
    from sandgate.gateway.delivery import arrow

    return arrow.to_ipc(rows)


def wanted(accept: str, forms: list[str]) -> str | None:
    """Which of `forms` an Accept header likes most, the first of equals; None if it takes none of them."""
    likes: dict[str, float] = {}
    for part in accept.lower().split(","):
        kind, *parameters = (word.strip() for word in part.split(";"))
        quality = next((word[2:] for word in parameters if word.startswith("q=")), "1")
        try:
            likes[kind] = float(quality)
        except ValueError:
            likes[kind] = 0.0
    ranges = [[form, "application/*", "*/*"] for form in forms]
    found = [next((likes[kind] for kind in one if kind in likes), 0.0) for one in ranges]
    best = max(found)
    return forms[found.index(best)] if best > 0 else None


@serves(router, endpoints.RENEW)
async def renew(core: Front, key: Controller, lease_id: str, body: RenewBody | None = None) -> Any:
    """It is still worked on: `ttl_s` seconds from now on, if nobody else was given any of it (409). `until` null: this
    lease acknowledged all of it."""
    core.of_lease(key, lease_id)
    until = await core.leasing.renew(lease_id, (body or RenewBody()).ttl_s)
    return {"lease_id": lease_id, "state": "acked" if until is None else "leased", "until": until}


@serves(router, endpoints.RENEW_LEASES)
async def renew_leases(core: Front, key: Controller, body: RenewLeasesBody) -> Any:
    """The same for many leases, in one write. `refused`: lease -> why; the others are the trainer's for `ttl_s`
    seconds from now on, or acknowledged all that they had."""
    refused = core.of_leases(key, body.lease_ids)
    refused |= await core.leasing.renew_several(
        [one for one in body.lease_ids if one not in refused], body.ttl_s
    )
    return {
        "renewed": [one for one in dict.fromkeys(body.lease_ids) if one not in refused],
        "refused": refused,
    }


@serves(router, endpoints.ACK)
async def ack(core: Front, key: Controller, lease_id: str) -> Any:
    """The trainer has them for good. 409 if the lease expired and another trainer was given them. Idempotent."""
    core.of_lease(key, lease_id)
    await core.leasing.ack(lease_id)
    return {"lease_id": lease_id, "state": "acked"}


@serves(router, endpoints.ACK_LEASES)
async def ack_leases(core: Front, key: Controller, body: AckLeasesBody) -> Any:
    """The same for many leases, in one write. `refused`: lease -> why; the others are acknowledged. Idempotent."""
    refused = core.of_leases(key, body.lease_ids)
    refused |= await core.leasing.ack_several([one for one in body.lease_ids if one not in refused])
    return {"acked": [one for one in dict.fromkeys(body.lease_ids) if one not in refused], "refused": refused}


@serves(router, endpoints.NACK)
async def nack(core: Front, key: Controller, lease_id: str) -> Any:
    """Give them back; they are offered again at once. Idempotent."""
    core.of_lease(key, lease_id)
    await core.leasing.nack(lease_id)
    return {"lease_id": lease_id, "state": "nacked"}


@serves(router, endpoints.CLOSE_GROUP)
async def close(core: Front, key: Controller, body: CloseGroupBody) -> Any:
    """No more sessions count for this task (quorum reached, stragglers cut). If none counts, its group is lost: it is
    leased once, without rows. Idempotent."""
    auth.control(key, job=body.job or None)
    job = body.job or key.job or core.config.job
    await core.leasing.close_group(job, body.uid)
    return {"job": job, "uid": body.uid, "state": "closed"}
