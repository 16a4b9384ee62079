"""The calls of a gateway's control API: what is asked of each endpoint, and what its answer is read as.

All may be repeated: sessions are created by id, outcomes are set, a reward and a lease have ids of their own. (pure)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any, Final

from sandgate.contract import endpoints
from sandgate.contract.control_call import (
    ANSWER_BYTES_MAX,
    PAGE_BYTES_MAX,
    ROWS_BYTES_MAX,
    ControlAnswer,
    ControlCall,
)
from sandgate.contract.errors import InvalidBody
from sandgate.contract.job import Task
from sandgate.contract.lease import LEASE_TTL_S, Lease
from sandgate.contract.session import CURSOR_STEPS_S, SessionHandle, SessionSpec, SessionSummary
from sandgate.contract.trajectory import Json, Trajectory, from_json

Document = dict[str, Json]

CREATE_BATCH: Final = 500
"""Sessions per POST: keeps a body under a few MB and an answer under a second."""
ENGINES_S: Final = 30.0
"""New engines are asked what they are before the answer; one that hangs takes three time-outs of 10 s."""
SESSION_FIELDS: Final = tuple(each.name for each in fields(SessionSpec))


# -- what answers are -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionPage:
    """Part of a listing."""

    sessions: list[Document]
    next: Json
    """The cursor of the page after it; None if it is the last. As the gateway said it: it may be anything."""


@dataclass(frozen=True, slots=True)
class SessionEvents:
    """State changes after a cursor. `reset`: the cursor was of another life of the gateway; list the sessions anew."""

    cursor: int
    epoch: str
    reset: bool
    sessions: tuple[tuple[str, str], ...] = ()
    """(session id, new state), in order; a session may stand there more than once. `committed` is no state but the news
    that all its trajectories were acknowledged."""

    @property
    def began(self) -> float:
        """Unix seconds at which this life of the gateway began, by its own clock; late by a step of CURSOR_STEPS_S
        for each event."""
        return self.cursor / CURSOR_STEPS_S


@dataclass(frozen=True, slots=True)
class TaskPage:
    """Part of a job's queue. `cursor`: ask for what is after it next time. `last`: nothing will ever be after it."""

    cursor: int
    last: bool
    tasks: tuple[tuple[int, Task], ...]
    """(number, task), in order; numbers start from 1 and are the gateway's own."""


def document(answer: ControlAnswer) -> Document:
    """The JSON object as it came. Raises TypeError for anything else."""
    body = answer.json
    if not isinstance(body, dict):
        raise TypeError("not a JSON object")
    return body


def nothing(answer: ControlAnswer) -> None:
    """What is said does not matter, only that it was done."""


def summary(answer: ControlAnswer) -> SessionSummary:
    """How a session stands. Raises InvalidBody."""
    return SessionSummary.of(answer.json)


# -- sessions ---------------------------------------------------------------------------------------------------------


def create(spec: Mapping[str, Json]) -> ControlCall[SessionHandle]:
    """A session; the same `session_id` again gives the same handle. Raises InvalidBody without one: a repeat would
    make a second session."""
    _named(spec)
    return endpoints.CREATE_SESSIONS.call(lambda answer: SessionHandle.of(answer.json), json=dict(spec))


def create_many(specs: Sequence[Mapping[str, Json]]) -> ControlCall[list[SessionHandle]]:
    """Many at once, in order."""
    for spec in specs:
        _named(spec)
    return endpoints.CREATE_SESSIONS.call(_handles, json=[dict(spec) for spec in specs])


def session(session_id: str) -> ControlCall[Document]:
    """State, turns, tokens, forks, in flight, timestamps."""
    return endpoints.SESSION.call(document, _session(session_id))


def sessions(state: str = "", job: str = "", after: str = "") -> ControlCall[SessionPage]:
    """One page, in order of id."""
    params = {name: text for name, text in (("state", state), ("job", job), ("after", after)) if text}
    return endpoints.LIST_SESSIONS.call(_page, params=params, most=PAGE_BYTES_MAX)


def wait(session_id: str, timeout_s: float) -> ControlCall[Document | None]:
    """The session's state once it is complete; None at the time-out."""
    return endpoints.WAIT.call(
        lambda answer: None if answer.status == 408 else document(answer),
        _session(session_id),
        params={"timeout_s": f"{timeout_s:g}"},
        wait_s=timeout_s,
        also=(408,),
    )


def session_task(session_id: str) -> ControlCall[Json]:
    """The task document that the session was created with."""
    return endpoints.SESSION_TASK.call(_json, _session(session_id), most=PAGE_BYTES_MAX)


def reward(
    session_id: str, value: float, interaction_id: str | None, info: Mapping[str, Json], *, reward_id: str
) -> ControlCall[None]:
    """Reward one turn; default: the last. `reward_id`: of the caller's own, so that the request sent again, because its
    answer was lost, rewards no later turn."""
    body: Document = {"reward": value, "reward_info": dict(info), "reward_id": reward_id}
    if interaction_id is not None:
        body["interaction_id"] = interaction_id
    return endpoints.REWARD.call(nothing, _session(session_id), json=body)


def complete(session_id: str) -> ControlCall[None]:
    """The agent's own signal, given for it: no more turns."""
    return endpoints.COMPLETE.call(nothing, _session(session_id), json={})


def finalize(session_id: str, body: Mapping[str, Json]) -> ControlCall[list[Trajectory]]:
    """Seal the session; its trajectories if `body` asks for them. The first outcome stands."""
    most = ROWS_BYTES_MAX if body.get("trajectories") else ANSWER_BYTES_MAX
    return endpoints.FINALIZE.call(_rows, _session(session_id), json=dict(body), most=most)


def trajectories(session_id: str) -> ControlCall[list[Trajectory]]:
    """Those of a finalized session; only reads."""
    return endpoints.TRAJECTORIES.call(_rows, _session(session_id), most=ROWS_BYTES_MAX)


def abort(session_id: str) -> ControlCall[None]:
    """Cancel and discard; siblings are untouched."""
    return endpoints.ABORT.call(nothing, _session(session_id), json={})


def tree(session_id: str, *, text: bool = True) -> ControlCall[Document]:
    """Turns, parents, fork reasons, spans; `text`: the spans decoded too."""
    params = {"text": "true" if text else "false"}
    return endpoints.TREE.call(document, _session(session_id), params=params, most=ROWS_BYTES_MAX)


# -- leases and groups ------------------------------------------------------------------------------------------------


def lease(
    *,
    max_groups: int = 1,
    ttl_s: float = LEASE_TTL_S,
    job: str | None = None,
    max_tokens: int | None = None,
    whole_groups: bool = True,
    lease_id: str,
) -> ControlCall[Lease | None]:
    """The oldest groups that are ready, as JSON; None if there is none now. `lease_id`: of the caller's own, so that
    the request sent again, because its answer was lost, gives the same groups."""
    body: Document = {
        "max_groups": max_groups,
        "ttl_s": ttl_s,
        "whole_groups": whole_groups,
        "lease_id": lease_id,
    }
    body |= {name: value for name, value in (("job", job), ("max_tokens", max_tokens)) if value}
    return endpoints.LEASE.call(lambda answer: Lease.of(answer.json), json=body, most=ROWS_BYTES_MAX)


def leases(
    *,
    most: int,
    ttl_s: float = LEASE_TTL_S,
    job: str | None = None,
    max_tokens: int | None = None,
    lease_id: str,
) -> ControlCall[list[Lease]]:
    """The same for up to `most` groups, each under a lease of its own, the first of which has the id `lease_id` (see
    `lease.lease_name`). `max_tokens`: of all of them; one group is given even if it alone has more. Sent again by the
    same id, all that it made are given, also if `most` is less by then."""
    body: Document = {"leases": most, "ttl_s": ttl_s, "lease_id": lease_id}
    body |= {name: value for name, value in (("job", job), ("max_tokens", max_tokens)) if value}
    return endpoints.LEASE.call(lambda answer: Lease.several_of(answer.json), json=body, most=ROWS_BYTES_MAX)


def renew(lease_id: str, ttl_s: float) -> ControlCall[None]:
    """The trainer still works on these."""
    return endpoints.RENEW.call(nothing, {"lease_id": lease_id}, json={"ttl_s": ttl_s})


def renew_leases(lease_ids: Sequence[str], ttl_s: float) -> ControlCall[dict[str, str]]:
    """The same for many leases, in one write; those that are refused, and why. At most LEASES_MAX."""
    return endpoints.RENEW_LEASES.call(_refused, json={"lease_ids": list(lease_ids), "ttl_s": ttl_s})


def ack(lease_id: str) -> ControlCall[None]:
    """The trainer has these for good."""
    return endpoints.ACK.call(nothing, {"lease_id": lease_id}, json={})


def ack_leases(lease_ids: Sequence[str]) -> ControlCall[dict[str, str]]:
    """The same for many leases, in one write; those that are refused, and why. At most LEASES_MAX."""
    return endpoints.ACK_LEASES.call(_refused, json={"lease_ids": list(lease_ids)})


def nack(lease_id: str) -> ControlCall[None]:
    """Give them back, to be offered again at once."""
    return endpoints.NACK.call(nothing, {"lease_id": lease_id}, json={})


def close_group(job: str, uid: str) -> ControlCall[None]:
    """No more sessions count for this task."""
    return endpoints.CLOSE_GROUP.call(nothing, json={"job": job, "uid": uid})


# -- tasks ------------------------------------------------------------------------------------------------------------


def push_tasks(tasks: Sequence[Task], *, last: bool, job: str = "") -> ControlCall[tuple[str, ...]]:
    """Further tasks of a job whose tasks come from a queue. Uids of those that had finished before, and whose
    groups the gateway does not hold for a trainer."""
    body = {"job": job, "tasks": [asdict(task) for task in tasks], "last": last}
    return endpoints.PUSH_TASKS.call(_finished, json=body)


def tasks(after: int, wait_s: float = 0.0) -> ControlCall[TaskPage]:
    """The next page of the queue, once there is a task in it or the end."""
    params = {"after": str(after), "wait_s": f"{wait_s:g}"}
    return endpoints.TASKS.call(_task_page, params=params, wait_s=wait_s, most=PAGE_BYTES_MAX)


def forget_tasks(upto: int) -> ControlCall[None]:
    """Tasks up to this number are finished: their places are free."""
    return endpoints.FORGET_TASKS.call(nothing, json={"upto": upto})


# -- the process ------------------------------------------------------------------------------------------------------


def events(after: int, wait_s: float) -> ControlCall[SessionEvents]:
    """State changes after the cursor, once there is one."""
    params = {"after": str(after), "wait_s": f"{wait_s:g}"}
    return endpoints.EVENTS.call(_events, params=params, wait_s=wait_s)


def pause(update: str = "") -> ControlCall[None]:
    """Hold turns that have not reached the engine. `update`: the name of the weight update that begins by this (twelve
    digits, a point, what is its own): what one of a lesser name says from now on is a Conflict."""
    return endpoints.PAUSE.call(nothing, json=_of_update(update))


def resume(update: str = "") -> ControlCall[None]:
    """Let held turns go on."""
    return endpoints.RESUME.call(nothing, json=_of_update(update))


def _of_update(update: str) -> Document:
    return {"update": update} if update else {}


def policy_version(
    version: int,
    labelled: bool | None = None,
    adapter: str = "",
    *,
    if_untold: bool = False,
    update: str = "",
) -> ControlCall[None]:
    """Tokens sampled from now on carry this version, where the engine itself reports none. `adapter`: they are sampled
    by this LoRA adapter, and carry its version. `if_untold`: nothing changes if a version was told before."""
    body: Document = {"version": version, **_of_update(update)}
    if labelled is not None:
        body["labelled"] = labelled
    if adapter:
        body["adapter"] = adapter
    if if_untold:
        body["if_untold"] = True
    return endpoints.POLICY_VERSION.call(nothing, json=body)


def engines(urls: Sequence[str], nodes: Mapping[str, str] | None = None) -> ControlCall[None]:
    """Replace the engine's replicas. `nodes`: URL -> node, where that is known."""
    body: dict[str, Json] = {"urls": list(urls)}
    if nodes:
        body["nodes"] = dict(nodes)
    return endpoints.ENGINES.call(nothing, json=body, wait_s=ENGINES_S)


def heartbeat() -> ControlCall[float]:
    """The trainer lives; when the gateway heard it, in unix seconds."""
    return endpoints.HEARTBEAT.call(lambda answer: float(answer.json["trainer_seen_at"]), json={})


def status() -> ControlCall[Document]:
    """Load, pause, versions, journal, engines."""
    return endpoints.STATUS.call(document)


def ready() -> ControlCall[str]:
    """Why it takes no turns now; empty when it does."""
    return endpoints.READYZ.call(_unready, also=(503,))


def healthy() -> ControlCall[bool]:
    """Can turns be made durable?"""
    return endpoints.HEALTHZ.call(lambda answer: bool(document(answer).get("healthy")), also=(503,))


# -- reading ----------------------------------------------------------------------------------------------------------


def _refused(answer: ControlAnswer) -> dict[str, str]:
    return {str(name): str(why) for name, why in document(answer)["refused"].items()}


def _named(spec: Mapping[str, Json]) -> None:
    if not spec.get("session_id"):
        raise InvalidBody("session_id is missing", field="session_id")
    for name in spec.keys() - set(SESSION_FIELDS):  # a gateway ignores what a newer client may say
        raise InvalidBody(f"{name}: no field of a session; there are {', '.join(SESSION_FIELDS)}", field=name)


def _session(session_id: str) -> dict[str, str]:
    return {"session_id": session_id}


def _json(answer: ControlAnswer) -> Any:
    return answer.json


def _handles(answer: ControlAnswer) -> list[SessionHandle]:
    body = answer.json
    if not isinstance(body, list):
        raise TypeError("not a list")
    return [SessionHandle.of(handle) for handle in body]


def _page(answer: ControlAnswer) -> SessionPage:
    body = answer.json
    return SessionPage(body["sessions"], body["next"])


def _rows(answer: ControlAnswer) -> list[Trajectory]:
    return [from_json(row) for row in (answer.json or {}).get("trajectories") or ()]


def _events(answer: ControlAnswer) -> SessionEvents:
    body = answer.json
    changed = tuple((str(each["session_id"]), str(each["state"])) for each in body["events"])
    return SessionEvents(int(body["cursor"]), str(body["epoch"]), bool(body["reset"]), changed)


def _finished(answer: ControlAnswer) -> tuple[str, ...]:
    return tuple(map(str, document(answer).get("finished", ())))  # an older gateway does not know


def _task_page(answer: ControlAnswer) -> TaskPage:
    body = answer.json
    rows = (
        (each["number"], Task(uid=each["uid"], prompt=each["prompt"], data=each["data"]))
        for each in body["tasks"]
    )
    return TaskPage(int(body["cursor"]), bool(body["last"]), tuple(rows))


def _unready(answer: ControlAnswer) -> str:
    body = document(answer)
    return "" if body.get("ready") else str(body.get("detail") or "not ready")
