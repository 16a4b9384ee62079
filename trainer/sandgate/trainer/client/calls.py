"""The control API (docs/reference/gateway.md) as data: what to send, and how to read what comes back. No I/O.

One function per endpoint gives a `ApiCall`; the sync and the async client only carry calls out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Generic, TypeVar
from urllib.parse import quote

from sandgate.contract.errors import (
    CorruptRecord,
    EngineFailed,
    InvalidBody,
    Overloaded,
    SandgateError,
    Unavailable,
)
from sandgate.contract.job import Task
from sandgate.contract.session import SessionHandle, SessionSpec
from sandgate.contract.trajectory import Json, Trajectory, from_json
from sandgate.gateway.client import error_of

T = TypeVar("T")

ARROW = "application/vnd.apache.arrow.stream"


class NoRun(Unavailable):
    """The run of this machine that is talked to is not there, and was waited for: asking again at once is no use."""


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """An HTTP answer with a status below 400, or one that the call reads itself."""

    status: int
    headers: Mapping[str, str]
    """Looked up whatever their case."""
    body: bytes
    json: Json


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiCall(Generic[T]):
    """One request, and what its answer means."""

    method: str
    path: str
    read: Callable[[ApiAnswer], T]
    json: Json = None
    params: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    wait_s: float = 0.0
    """How long the server may hold the answer back on purpose; added to the client's own timeout."""
    also: tuple[int, ...] = ()
    """Statuses over 400 that `read` understands."""


def create(spec: Mapping[str, Json]) -> ApiCall[SessionHandle]:
    """A session; the same `session_id` again gives the same handle. Raises InvalidBody without one: a repeat would
    make a second session."""
    _named(spec)
    return ApiCall(
        method="POST", path="/v1/sessions", json=dict(spec), read=lambda answer: SessionHandle.of(answer.json)
    )


def create_many(specs: Sequence[Mapping[str, Json]]) -> ApiCall[list[SessionHandle]]:
    """Many at once, in order."""
    for spec in specs:
        _named(spec)
    return ApiCall(
        method="POST",
        path="/v1/sessions",
        json=[dict(spec) for spec in specs],
        read=lambda answer: [SessionHandle.of(one) for one in answer.json],
    )


SESSION_FIELDS = tuple(field.name for field in fields(SessionSpec))


def _named(spec: Mapping[str, Json]) -> None:
    if not spec.get("session_id"):
        raise InvalidBody("session_id is missing", field="session_id")
    for name in spec.keys() - set(SESSION_FIELDS):  # a gateway ignores what a newer client may say
        raise InvalidBody(f"{name}: no field of a session; there are {', '.join(SESSION_FIELDS)}", field=name)


def session(session_id: str) -> ApiCall[dict[str, Json]]:
    """State, turns, tokens, forks, in flight, timestamps."""
    return ApiCall(method="GET", path=_of(session_id), read=_json)


def sessions(
    state: str | None, job: str | None, after: str
) -> ApiCall[tuple[list[dict[str, Json]], str | None]]:
    """One page, and the cursor of the next or None."""
    params = {key: value for key, value in (("state", state), ("job", job), ("after", after)) if value}
    return ApiCall(
        method="GET",
        path="/v1/sessions",
        params=params,
        read=lambda answer: (answer.json["sessions"], answer.json["next"]),
    )


def wait(session_id: str, timeout_s: float) -> ApiCall[dict[str, Json] | None]:
    """The session's state once it is complete; None at the timeout (408)."""
    return ApiCall(
        method="GET",
        path=f"{_of(session_id)}/wait",
        params={"timeout_s": timeout_s},
        wait_s=timeout_s,
        also=(408,),
        read=lambda answer: None if answer.status == 408 else answer.json,
    )


def reward(
    session_id: str, value: float, interaction_id: str | None, info: Mapping[str, Json]
) -> ApiCall[dict[str, Json]]:
    """Reward one turn; default: the last."""
    body = {"reward": value, "interaction_id": interaction_id, "reward_info": dict(info)}
    return ApiCall(method="POST", path=f"{_of(session_id)}/reward", json=body, read=_json)


def finalize(session_id: str, body: Mapping[str, Json]) -> ApiCall[list[Trajectory]]:
    """Seal the session; its trajectories. Idempotent: the first outcome stands."""
    return ApiCall(method="POST", path=f"{_of(session_id)}/finalize", json=dict(body), read=_rows)


def trajectories(session_id: str) -> ApiCall[list[Trajectory]]:
    """Those of a finalized session; only reads."""
    return ApiCall(method="GET", path=f"{_of(session_id)}/trajectories", read=_rows)


def abort(session_id: str) -> ApiCall[dict[str, Json]]:
    """Cancel and discard; siblings are untouched."""
    return ApiCall(method="POST", path=f"{_of(session_id)}/abort", read=_json)


def tree(session_id: str, *, text: bool) -> ApiCall[dict[str, Json]]:
    """Turns, parents, fork reasons, spans; `text`: the spans decoded too."""
    return ApiCall(
        method="GET", path=f"{_of(session_id)}/tree", params={"text": "true" if text else "false"}, read=_json
    )


def ack(lease_id: str) -> ApiCall[dict[str, Json]]:
    """The trainer has these for good."""
    return ApiCall(method="POST", path=f"/v1/leases/{quote(lease_id, safe='')}/ack", read=_json)


def renew(lease_id: str, ttl_s: float) -> ApiCall[dict[str, Json]]:
    """The trainer still works on these."""
    path = f"/v1/leases/{quote(lease_id, safe='')}/renew"
    return ApiCall(method="POST", path=path, json={"ttl_s": ttl_s}, read=_json)


def nack(lease_id: str) -> ApiCall[dict[str, Json]]:
    """Give them back, to be offered again at once."""
    return ApiCall(method="POST", path=f"/v1/leases/{quote(lease_id, safe='')}/nack", read=_json)


def push_tasks(tasks: Sequence[Task], *, last: bool, job: str) -> ApiCall[dict[str, Json]]:
    """Further tasks of a job whose tasks come from a queue."""
    body = {"job": job, "tasks": [asdict(task) for task in tasks], "last": last}
    return ApiCall(method="POST", path="/v1/tasks", json=body, read=_json)


def close_group(job: str, uid: str) -> ApiCall[dict[str, Json]]:
    """No more sessions count for this task."""
    return ApiCall(method="POST", path="/v1/groups/close", json={"job": job, "uid": uid}, read=_json)


def pause() -> ApiCall[dict[str, Json]]:
    """Hold turns that have not reached the engine."""
    return ApiCall(method="POST", path="/v1/pause", read=_json)


def resume() -> ApiCall[dict[str, Json]]:
    """Let held turns go on."""
    return ApiCall(method="POST", path="/v1/resume", read=_json)


def policy_version(version: int, labelled: bool | None = None) -> ApiCall[dict[str, Json]]:
    """Tokens sampled from now on carry this version, where the engine itself reports none."""
    body: dict[str, Json] = {"version": version}
    if labelled is not None:
        body["labelled"] = labelled
    return ApiCall(method="PUT", path="/v1/policy-version", json=body, read=_json)


def heartbeat() -> ApiCall[dict[str, Json]]:
    """The trainer lives; it need not ask for anything."""
    return ApiCall(method="POST", path="/v1/heartbeat", read=_json)


def status() -> ApiCall[dict[str, Json]]:
    """Load, pause, versions, journal, engines."""
    return ApiCall(method="GET", path="/v1/status", read=_json)


def _of(session_id: str) -> str:
    return f"/v1/sessions/{quote(session_id, safe='')}"


def _json(answer: ApiAnswer) -> Any:
    return answer.json


def _rows(answer: ApiAnswer) -> list[Trajectory]:
    return [from_json(row) for row in answer.json.get("trajectories", ())]


def read(call: ApiCall[T], answer: ApiAnswer) -> T:
    """What the answer means. Raises the contract's error for its reason, CorruptRecord if it is not what was agreed."""
    if answer.status >= 400 and answer.status not in call.also:
        raise error_of(answer.status, answer.headers, answer.body)
    try:
        return call.read(answer)
    except InvalidBody as error:
        raise CorruptRecord(f"{call.method} {call.path}: {error}") from error
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise CorruptRecord(f"{call.method} {call.path} answered something else: {error!r}") from error


def may_retry(error: SandgateError) -> bool:
    """429 and 503 say so themselves; a bad gateway between us may have let the request through, which does no harm:
    sending any call twice is sending it once."""
    return isinstance(error, Overloaded | Unavailable | EngineFailed) and not isinstance(error, NoRun)
