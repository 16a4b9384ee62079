"""The lease call: whole groups as Arrow (no Python object per token) or, from a gateway without Arrow, as JSON."""

from __future__ import annotations

import uuid
from typing import Any

from sandgate.contract.trajectory import from_json
from sandgate.gateway.client import Lease
from sandgate.trainer.client.calls import ARROW, ApiAnswer, ApiCall
from sandgate.trainer.export.arrow import from_ipc

TTL_S = 300.0
"""How long a trainer usually has: a step on one batch of groups, with room."""
LEASE_HEADER, UNTIL_HEADER = "x-sandgate-lease", "x-sandgate-lease-until"
"""Where an Arrow answer says what JSON says in its body."""


def new_id() -> str:
    """Of a lease."""
    return f"l-{uuid.uuid4().hex[:24]}"


def lease(
    job: str | None, max_groups: int, max_tokens: int | None, ttl_s: float, lease_id: str = ""
) -> ApiCall[Lease | None]:
    """One lease, under an id of its own: sent again because the answer was lost, it gives the same groups."""
    body: dict[str, Any] = {"job": job, "max_groups": max_groups, "max_tokens": max_tokens, "ttl_s": ttl_s}
    return ApiCall(
        method="POST",
        path="/v1/leases",
        json=body | {"whole_groups": True, "lease_id": lease_id or new_id()},
        headers={"accept": f"{ARROW}, application/json;q=0.9"},
        read=_read,
    )


def _read(answer: ApiAnswer) -> Lease | None:
    if answer.headers.get("content-type", "").startswith(ARROW):
        named, until = answer.headers.get(LEASE_HEADER), answer.headers[UNTIL_HEADER]
        rows = tuple(from_ipc(answer.body))
        return (
            Lease(named, float(until), tuple(dict.fromkeys(row.session_id for row in rows)), rows)
            if named
            else None
        )
    found = answer.json
    if found["lease_id"] is None:
        return None
    rows = tuple(from_json(one) for one in found["trajectories"])
    return Lease(str(found["lease_id"]), float(found["until"]), tuple(map(str, found["sessions"])), rows)
