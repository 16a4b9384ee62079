"""Arrow delivery of a lease: rows as Arrow (no Python object per token), or as JSON from a gateway without Arrow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sandgate.contract import control_api
from sandgate.contract.control_call import JSON, ControlAnswer, ControlCall
from sandgate.contract.lease import ARROW, LEASE_HEADER, UNTIL_HEADER, Lease
from sandgate.gateway.client import new_lease_id
from sandgate.trainer.export.arrow import from_ipc


def lease(lease_id: str = "", **asked: Any) -> ControlCall[Lease | None]:
    """`asked`: as for control_api.lease. `lease_id`: a new one by default."""
    call = control_api.lease(lease_id=lease_id or new_lease_id(), **asked)
    return replace(call, headers={"accept": f"{ARROW}, {JSON};q=0.9"}, read=_read)


def _read(answer: ControlAnswer) -> Lease | None:
    if not answer.headers.get("content-type", "").startswith(ARROW):
        return Lease.of(answer.json)
    lease_id, until = answer.headers.get(LEASE_HEADER), answer.headers[UNTIL_HEADER]
    rows = tuple(from_ipc(answer.body))
    if not lease_id:
        return None
    return Lease(lease_id, float(until), tuple(dict.fromkeys(row.session_id for row in rows)), rows)
