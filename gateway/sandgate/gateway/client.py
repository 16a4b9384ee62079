"""THE FRONT DOOR for other rooms: a typed client of a gateway's control API (docs/reference/gateway.md).

Every call may be repeated: sessions are created by id, rewards and outcomes are set, a lease whose answer was lost
runs out. So the client repeats by itself, on a broken connection, 429 and 503, until its deadline: a gateway that
restarts is a pause, not an error.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import Any, Self
from urllib.parse import quote

import aiohttp

from sandgate.contract.errors import EngineFailed, InvalidBody, SandgateError, Unavailable
from sandgate.contract.job import Task
from sandgate.contract.session import (
    CURSOR_STEPS_S,
    SessionHandle,
    SessionOutcome,
    SessionSpec,
    SessionSummary,
)
from sandgate.contract.trajectory import Trajectory, from_json

Json = Any

DEADLINE_S = 60.0
"""How long one call is repeated; a gateway restarts and replays its journal in a few seconds."""
ATTEMPT_S = 30.0
"""One attempt's answer, beyond what the call itself waits for."""
BACKOFF_S = (0.05, 0.1, 0.2, 0.5, 1.0)
"""Pauses between attempts where the gateway does not say; then the last one."""
RETRY_AFTER_S_MAX = 10.0
"""A longer Retry-After is cut: looking again is cheap."""
ENGINES_S = 30.0
"""New engines are asked what they are before the answer; one that hangs takes three timeouts of 10 s."""
CREATE_BATCH = 500
"""Sessions per POST: keeps a body under a few MB and an answer under a second."""
ERROR_CHARS_MAX = 2_000
"""Of an answer that is quoted in an error."""
ANSWER_BYTES_MAX = 8 * 1024 * 1024
"""Of an answer: ten thousand events, or the handles of CREATE_BATCH sessions, have about 1 MB."""
PAGE_BYTES_MAX = 64 * 1024 * 1024
"""Of a page of sessions or tasks: what their creators say about them has no other bound than a body's."""
ROWS_BYTES_MAX = 1024 * 1024 * 1024
"""Of an answer that holds rows or a tree: 64 samples of 128,000 tokens have 330 MB as JSON."""
ERROR_BYTES_MAX = 256 * 1024
"""Of an answer that is an error."""
LISTED_BYTES_MAX = 256 * 1024 * 1024
"""Of all pages of one listing: 300,000 sessions."""
PAGES_MAX = 2_000
"""Of one listing; a page has a thousand sessions."""
LISTING_S = 600.0
"""From the first page of a listing to the last; each takes milliseconds."""


@dataclass(frozen=True, slots=True)
class Lease:
    """Whole groups on loan: acknowledge them, or they are offered again after `until` (unix seconds)."""

    lease_id: str
    until: float
    sessions: tuple[str, ...]
    """All of them; one that never took a turn has no trajectory."""
    trajectories: tuple[Trajectory, ...]
    """By group, sample and trajectory id."""

    def groups(self) -> dict[tuple[str, str], list[Trajectory]]:
        """(job, task uid) -> its rows. A session without a task is a group of its own, named by its id."""
        found: dict[tuple[str, str], list[Trajectory]] = {}
        for row in self.trajectories:
            found.setdefault((row.job, row.uid or row.session_id), []).append(row)
        return found


@dataclass(frozen=True, slots=True)
class Events:
    """State changes after a cursor. `reset`: the cursor was of another life of the gateway; list the sessions anew."""

    cursor: int
    epoch: str
    reset: bool
    sessions: tuple[tuple[str, str], ...] = field(default=())
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


class GatewayClient:
    """One gateway's control API. `key` needs scope admin or trainer. Raises what the gateway says (contract.errors by
    status and x-sandgate-reason), or Unavailable when it did not answer within the deadline."""

    def __init__(
        self,
        origin: str,
        key: str,
        *,
        http: aiohttp.ClientSession | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        self.origin = origin.rstrip("/")
        self._headers = {"Authorization": f"Bearer {key}"}
        self._http, self._own = http, http is None
        self._deadline_s = deadline_s

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections that this client opened."""
        if self._own and self._http is not None:
            await self._http.close()
            self._http = None

    # -- sessions -----------------------------------------------------------------------------------------------------

    async def create(self, spec: SessionSpec) -> SessionHandle:
        """Open a session, or get the handle of the one that has this id."""
        return SessionHandle.of(await self._call("POST", "/v1/sessions", spec.body()))

    async def create_many(self, specs: Sequence[SessionSpec]) -> list[SessionHandle]:
        """The same for many, in order; in batches."""
        handles: list[SessionHandle] = []
        for start in range(0, len(specs), CREATE_BATCH):
            body = [spec.body() for spec in specs[start : start + CREATE_BATCH]]
            answer = await self._call("POST", "/v1/sessions", body)
            handles += [SessionHandle.of(one) for one in _list(answer)]
        return handles

    async def get(self, session_id: str) -> SessionSummary:
        """How a session stands. Raises NotFound."""
        return SessionSummary.of(await self._call("GET", _session(session_id)))

    async def sessions(self, *, state: str = "", job: str = "") -> AsyncIterator[SessionSummary]:
        """All sessions, in order of id, page by page. Raises InvalidBody for pages without an end."""
        after: str = ""
        left, end = LISTED_BYTES_MAX, time.monotonic() + LISTING_S
        for _ in range(PAGES_MAX):
            query = {name: text for name, text in (("state", state), ("job", job), ("after", after)) if text}
            page, size = await self._sized("GET", "/v1/sessions", query=query, most=min(PAGE_BYTES_MAX, left))
            for one in page["sessions"]:
                yield SessionSummary.of(one)
            following = page.get("next")
            if following is None:
                return
            if not isinstance(following, str) or following <= after or time.monotonic() > end:
                break
            after, left = following, left - size
        raise InvalidBody(f"{self.origin}: its list of sessions does not end", field="next")

    async def wait(self, session_id: str, timeout_s: float) -> SessionSummary | None:
        """wait_for_completion: the session once it is complete or ended; None after `timeout_s`."""
        answer = await self._call(
            "GET", f"{_session(session_id)}/wait", query={"timeout_s": f"{timeout_s:g}"}, waits_s=timeout_s
        )
        return None if answer is None else SessionSummary.of(answer)

    async def reward(
        self,
        session_id: str,
        reward: float,
        *,
        interaction_id: str | None = None,
        info: Mapping[str, Json] | None = None,
    ) -> None:
        """Set the reward of a turn; default the last one. Raises Gone once the session ended."""
        body: dict[str, Json] = {"reward": reward, "reward_info": dict(info or {})}
        if interaction_id is not None:
            body["interaction_id"] = interaction_id
        await self._call("POST", f"{_session(session_id)}/reward", body)

    async def finalize(self, session_id: str, outcome: SessionOutcome) -> None:
        """Seal the session; its trajectories go to the lease queue. The first outcome stands. Raises Gone if it was
        aborted."""
        await self._call("POST", f"{_session(session_id)}/finalize", outcome.body())

    async def finalize_rows(self, session_id: str, outcome: SessionOutcome) -> list[Trajectory]:
        """The same, and give its trajectories at once."""
        body = outcome.body(trajectories=True)
        answer = await self._call("POST", f"{_session(session_id)}/finalize", body, most=ROWS_BYTES_MAX)
        return [from_json(one) for one in answer["trajectories"]]

    async def complete(self, session_id: str) -> None:
        """The agent's own signal, given for it: no more turns. Idempotent."""
        await self._call("POST", f"{_session(session_id)}/complete", {})

    async def abort(self, session_id: str) -> None:
        """Cancel and discard; siblings are untouched. A session that was finalized stays so."""
        await self._call("POST", f"{_session(session_id)}/abort", {})

    async def tree(self, session_id: str) -> dict[str, Json]:
        """Turns, parents, fork reasons, spans; for viewers."""
        path = f"{_session(session_id)}/tree"
        found: dict[str, Json] = await self._call("GET", path, most=ROWS_BYTES_MAX)
        return found

    async def close_group(self, uid: str, *, job: str = "") -> None:
        """No more sessions count for this task: what ended well of it may be leased now. Raises NotFound."""
        await self._call("POST", "/v1/groups/close", {"job": job, "uid": uid})

    async def task(self, session_id: str) -> Json:
        """The task document that the session was created with. Raises NotFound if it was created without."""
        return await self._call("GET", f"{_session(session_id)}/task", most=PAGE_BYTES_MAX)

    # -- tasks --------------------------------------------------------------------------------------------------------

    async def push_tasks(self, tasks: Sequence[Task], *, last: bool = False) -> None:
        """To the queue of a running job, at most 10,000 at once. Repeats change nothing, unless the task was finished
        and forgotten meanwhile; at capacity it is asked again until the deadline. Raises Conflict (a uid with another
        prompt or data; or the queue was ended), Overloaded."""
        body = {"tasks": [asdict(task) for task in tasks], "last": last}
        await self._call("POST", "/v1/tasks", body)

    async def tasks(self, after: int = 0, *, wait_s: float = 0.0) -> TaskPage:
        """The next page of the queue beyond number `after`, waiting up to `wait_s` for the first task or the end."""
        query = {"after": str(after), "wait_s": f"{wait_s:g}"}
        page = await self._call("GET", "/v1/tasks", query=query, waits_s=wait_s, most=PAGE_BYTES_MAX)
        found = (
            (one["number"], Task(uid=one["uid"], prompt=one["prompt"], data=one["data"]))
            for one in page["tasks"]
        )
        return TaskPage(int(page["cursor"]), bool(page["last"]), tuple(found))

    async def forget_tasks(self, upto: int) -> None:
        """Tasks up to this number are finished: their places are free. Raises NotFound for a number not given yet."""
        await self._call("POST", "/v1/tasks/forget", {"upto": upto})

    # -- leases -------------------------------------------------------------------------------------------------------

    async def lease(
        self,
        *,
        max_groups: int,
        ttl_s: float,
        job: str | None = None,
        max_tokens: int | None = None,
        whole_groups: bool = True,
    ) -> Lease | None:
        """The oldest groups that are ready, or None if there is none now."""
        body: dict[str, Json] = {"max_groups": max_groups, "ttl_s": ttl_s, "whole_groups": whole_groups}
        body |= {name: value for name, value in (("job", job), ("max_tokens", max_tokens)) if value}
        answer = await self._call("POST", "/v1/leases", body, most=ROWS_BYTES_MAX)
        return None if not answer or not answer.get("lease_id") else _lease(answer)

    async def ack(self, lease_id: str) -> None:
        """They are with the trainer for good. Raises NotFound, Conflict (given to another since)."""
        await self._call("POST", f"/v1/leases/{quote(lease_id, safe='')}/ack", {})

    async def nack(self, lease_id: str) -> None:
        """Give back what was not acknowledged."""
        await self._call("POST", f"/v1/leases/{quote(lease_id, safe='')}/nack", {})

    # -- the process --------------------------------------------------------------------------------------------------

    async def events(self, after: int, *, wait_s: float = 30.0) -> Events:
        """State changes after the cursor, waiting up to `wait_s` for the first."""
        query = {"after": str(after), "wait_s": f"{wait_s:g}"}
        answer = await self._call("GET", "/v1/events", query=query, waits_s=wait_s)
        changed = tuple((str(one["session_id"]), str(one["state"])) for one in answer["events"])
        return Events(int(answer["cursor"]), str(answer["epoch"]), bool(answer["reset"]), changed)

    async def pause(self) -> None:
        """Hold turns that have not reached the engine."""
        await self._call("POST", "/v1/pause", {})

    async def resume(self) -> None:
        """Let held turns go on."""
        await self._call("POST", "/v1/resume", {})

    async def set_policy_version(self, version: int) -> None:
        """Tokens sampled from now on carry this version."""
        await self._call("PUT", "/v1/policy-version", {"version": version})

    async def set_engines(self, urls: Sequence[str]) -> None:
        """Replace the engine's replicas; running generations end where they are. Survives a restart of the gateway."""
        await self._call("PUT", "/v1/engines", {"urls": list(urls)}, waits_s=ENGINES_S)

    async def heartbeat(self) -> float:
        """A trainer lives; when the gateway heard it, in unix seconds."""
        return float((await self._call("POST", "/v1/heartbeat", {}))["trainer_seen_at"])

    async def status(self) -> dict[str, Json]:
        """Load, pause, versions, journal, engines."""
        found: dict[str, Json] = await self._call("GET", "/v1/status")
        return found

    async def ready(self, *, timeout_s: float = ATTEMPT_S) -> str:
        """Why it takes no turns now; empty when it does. Asked once. Raises Unavailable if nothing answers."""
        try:
            answer, _ = await self._once(
                "GET", "/readyz", None, None, timeout_s, (200, 503), ANSWER_BYTES_MAX
            )
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise Unavailable(f"{self.origin} does not answer: {_said(error)}") from error
        return "" if answer.get("ready") else str(answer.get("detail") or "not ready")

    async def healthy(self) -> bool:
        """Can turns be made durable? Raises Unavailable if nothing answers at all."""
        return bool((await self._call("GET", "/healthz", wanted=(200, 503))).get("healthy"))

    # -- one call, repeated -------------------------------------------------------------------------------------------

    async def _call(
        self,
        method: str,
        path: str,
        body: Json = None,
        *,
        query: Mapping[str, str] | None = None,
        waits_s: float = 0.0,
        wanted: tuple[int, ...] = (200, 201, 204, 408),
        most: int = ANSWER_BYTES_MAX,
    ) -> Json:
        """The JSON answer; None for 204 and 408. Raises InvalidBody for one of more than `most` bytes."""
        said, _ = await self._sized(
            method, path, body, query=query, waits_s=waits_s, wanted=wanted, most=most
        )
        return said

    async def _sized(
        self,
        method: str,
        path: str,
        body: Json = None,
        *,
        query: Mapping[str, str] | None = None,
        waits_s: float = 0.0,
        wanted: tuple[int, ...] = (200, 201, 204, 408),
        most: int,
    ) -> tuple[Json, int]:
        """The JSON answer, and how many bytes it had."""
        end = time.monotonic() + self._deadline_s + waits_s
        tries = 0
        while True:
            pause = BACKOFF_S[min(tries, len(BACKOFF_S) - 1)]
            try:
                return await self._once(method, path, body, query, ATTEMPT_S + waits_s, wanted, most)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                last: Exception = error
            except SandgateError as error:
                if error.status not in (429, 503):
                    raise
                last = error
                pause = min(error.retry_after or pause, RETRY_AFTER_S_MAX)
            tries += 1
            if time.monotonic() + pause >= end:
                if isinstance(last, SandgateError):
                    raise last
                raise Unavailable(f"{self.origin} does not answer: {_said(last)}") from last
            await asyncio.sleep(pause)

    async def _once(
        self,
        method: str,
        path: str,
        body: Json,
        query: Mapping[str, str] | None,
        timeout_s: float,
        wanted: tuple[int, ...],
        most: int,
    ) -> tuple[Json, int]:
        if self._http is None:
            self._http = aiohttp.ClientSession(trust_env=False)
        data = None if body is None else json.dumps(body, allow_nan=False).encode()
        headers = {**self._headers, "Accept-Encoding": "identity"}  # nothing grows on its way
        if data is not None:
            headers["Content-Type"] = "application/json"
        async with self._http.request(
            method,
            self.origin + path,
            data=data,
            params=query,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=timeout_s),
            allow_redirects=False,  # the key, and what is done with it, are for this origin
        ) as answer:
            good = answer.status in wanted
            raw = await _read(answer.content, most if good else min(most, ERROR_BYTES_MAX), self.origin)
            if 300 <= answer.status < 400:
                raise InvalidBody(f"{self.origin} redirects (HTTP {answer.status}); that is not followed")
            if not good:
                raise error_of(answer.status, answer.headers, raw)
            if answer.status in (204, 408) or not raw:
                return None, len(raw)
            return _json(raw), len(raw)


async def _read(content: aiohttp.StreamReader, most: int, origin: str) -> bytes:
    """All of it. Raises InvalidBody once there are more than `most` bytes."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in content.iter_any():
        size += len(chunk)
        if size > most:
            raise InvalidBody(f"{origin} answers with more than {most} bytes")
        chunks.append(chunk)
    return b"".join(chunks)


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


def error_of(status: int, headers: Mapping[str, str], raw: bytes) -> SandgateError:
    """The exception that an answer stands for: by x-sandgate-reason, else by status."""
    try:
        said = json.loads(raw)["error"]
        message, field_name = str(said["message"])[:ERROR_CHARS_MAX], said.get("param")
    except (ValueError, KeyError, TypeError, RecursionError):
        message = f"HTTP {status}: {raw[:ERROR_CHARS_MAX].decode('utf-8', 'replace').strip()}"
        field_name = None
    by_reason, by_status = _classes()
    kind = by_reason.get(headers.get("x-sandgate-reason", "")) or by_status.get(status)
    if kind is None:
        kind = EngineFailed if 502 <= status <= 504 else SandgateError
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    error.__dict__.update(field=field_name, retry_after=_seconds(headers.get("Retry-After")))
    return error


def _classes() -> tuple[dict[str, type[SandgateError]], dict[int, type[SandgateError]]]:
    """By reason, and per status the most general class."""
    by_reason: dict[str, type[SandgateError]] = {}
    by_status: dict[int, type[SandgateError]] = {}
    kinds = [SandgateError]
    for kind in kinds:
        by_reason.setdefault(kind.reason, kind)
        by_status.setdefault(kind.status, kind)
        kinds += kind.__subclasses__()
    return by_reason, by_status


def _seconds(text: str | None) -> float | None:
    try:
        return None if text is None else max(0.0, float(text))
    except ValueError:
        return None


def _json(raw: bytes) -> Json:
    try:
        return json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise Unavailable(f"the gateway's answer is not JSON: {error}") from error


def _list(answer: Json) -> list[Json]:
    if not isinstance(answer, list):
        raise Unavailable("the gateway's answer is not a list")
    return answer


def _lease(answer: Json) -> Lease:
    return Lease(
        str(answer["lease_id"]),
        float(answer["until"]),
        tuple(str(one) for one in answer["sessions"]),
        tuple(from_json(row) for row in answer["trajectories"]),
    )


def _session(session_id: str) -> str:
    return f"/v1/sessions/{quote(session_id, safe='')}"
