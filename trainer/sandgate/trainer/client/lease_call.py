"""Arrow delivery of a lease: rows as Arrow (no Python object per token), or as JSON from a gateway without Arrow."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import replace
from importlib.util import find_spec
from itertools import islice
from typing import Any, cast

from sandgate.contract import control_api
from sandgate.contract.control_call import JSON, ControlAnswer, ControlCall
from sandgate.contract.lease import (
    ARROW,
    EMPTY_HEADER,
    LEASE_HEADER,
    LEASES_HEADER,
    UNTIL_HEADER,
    Lease,
    empty_names,
    lease_name,
)
from sandgate.contract.trajectory import Trajectory
from sandgate.gateway.client import new_lease_id
from sandgate.trainer.client.streaming import Wanted


def lease(lease_id: str = "", **asked: Any) -> ControlCall[Lease | None]:
    """`asked`: as for control_api.lease. `lease_id`: a new one by default."""
    call = control_api.lease(lease_id=lease_id or new_lease_id(), **asked)
    return replace(call, headers={"accept": _forms()}, read=_read)


def several(wanted: Wanted, lease_id: str = "") -> ControlCall[list[Lease]]:
    """Several groups, each under a lease of its own. `lease_id`: of the first; a new one by default."""
    call = control_api.leases(
        most=wanted.groups,
        max_tokens=wanted.max_tokens,
        ttl_s=wanted.ttl_s,
        job=wanted.job,
        lease_id=lease_id or new_lease_id(),
    )
    return replace(call, headers={"accept": _forms()}, read=_read_several)


@functools.cache
def _forms() -> str:
    """What this process can read. A trainer's environment may lack Arrow; rows as JSON are the same, and slower."""
    return f"{ARROW}, {JSON};q=0.9" if find_spec("pyarrow") is not None else JSON


def _rows(answer: ControlAnswer) -> Iterable[Trajectory]:
    from sandgate.trainer.export.arrow import from_ipc  # loads Arrow

    return from_ipc(answer.body)


def _read_several(answer: ControlAnswer) -> list[Lease]:
    if not answer.headers.get("content-type", "").startswith(ARROW):
        return Lease.several_of(answer.json)
    counts = answer.headers.get(LEASES_HEADER)
    if counts is None:  # asked for one only, or of a gateway that gives one only
        return [one for one in [_read(answer)] if one is not None]
    lease_id, until = answer.headers.get(LEASE_HEADER, ""), float(answer.headers[UNTIL_HEADER])
    rows, found = iter(_rows(answer)), []
    names = empty_names(answer.headers.get(EMPTY_HEADER, ""))
    for number, count in enumerate(map(int, filter(None, counts.split(",")))):
        mine = tuple(islice(rows, count))
        sessions = tuple(dict.fromkeys(row.session_id for row in mine))
        name = lease_name(lease_id, number)
        found.append(Lease(name, until, sessions, mine, *names.get(name, ())))
    return found


def rows(call: ControlCall[list[Trajectory]]) -> ControlCall[list[Trajectory]]:
    """A call for a session's rows, as Arrow where the gateway has it."""

    def read(answer: ControlAnswer) -> list[Trajectory]:
        arrow = answer.headers.get("content-type", "").startswith(ARROW)
        return list(_rows(answer)) if arrow else call.read(answer)

    return replace(call, headers={"accept": _forms()}, read=read)


def raw(call: ControlCall[list[Trajectory]]) -> ControlCall[ControlAnswer]:
    """The same, undecoded: for who passes it on. `rows(call).read` decodes it."""

    def as_it_came(answer: ControlAnswer) -> ControlAnswer:
        return answer

    return replace(cast(Any, call), headers={"accept": _forms()}, read=as_it_came)


def _read(answer: ControlAnswer) -> Lease | None:
    if not answer.headers.get("content-type", "").startswith(ARROW):
        return Lease.of(answer.json)
    lease_id, until = answer.headers.get(LEASE_HEADER), answer.headers[UNTIL_HEADER]
    rows = tuple(_rows(answer))
    if not lease_id:
        return None
    sessions = tuple(dict.fromkeys(row.session_id for row in rows))
    names = empty_names(answer.headers.get(EMPTY_HEADER, ""))
    return Lease(lease_id, float(until), sessions, rows, *names.get(lease_id, ()))
