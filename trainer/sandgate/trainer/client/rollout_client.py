"""Typed clients of the control API, sync and async; the same calls, the same errors.

Every call is sent again, a bounded number of times, when its answer was lost or the gateway said 429 or 503 (its
Retry-After is kept): all of them are idempotent.
Errors are the contract's: `BadRequest` and below for what the caller did, `Unavailable` when no gateway answers.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from sandgate.contract.errors import SandgateError, Unavailable
from sandgate.contract.job import Task
from sandgate.contract.session import SessionHandle
from sandgate.contract.trajectory import Json, Trajectory
from sandgate.gateway.client import Lease
from sandgate.trainer.client import calls, lease_call
from sandgate.trainer.client.bounded_answers import PLAIN, fetch, fetch_now
from sandgate.trainer.client.calls import ApiAnswer, ApiCall
from sandgate.trainer.client.streaming import Ahead, Groups, groups

T = TypeVar("T")

TIMEOUT_S = 30.0
"""For an answer that is not held back on purpose; finalizing a session of 100k tokens takes well under one."""
CONNECT_S = 5.0
BACKOFF_S = 0.2
"""First wait; doubles, with jitter, so that many trainers do not come back together."""
BACKOFF_MAX_S = 10.0


@dataclass(frozen=True, slots=True)
class Retries:
    """Bounds on trying again."""

    attempts: int = 6
    """Requests sent for one call, the first included."""

    def delay(self, attempt: int, error: SandgateError, chance: float) -> float | None:
        """Seconds until the next attempt, None if that was the last. `attempt` counts from 1; `chance` is in [0, 1)."""
        if attempt >= self.attempts:
            return None
        wait: float = min(BACKOFF_MAX_S, BACKOFF_S * 2 ** (attempt - 1)) * (0.5 + chance / 2)
        return max(wait, min(error.retry_after or 0.0, BACKOFF_MAX_S))


def _request(call: ApiCall[Any], timeout_s: float) -> dict[str, Any]:
    found: dict[str, Any] = {"method": call.method, "url": call.path, "headers": call.headers}
    if call.params:
        found["params"] = call.params
    if call.json is not None:
        found["json"] = call.json
    return found | {"timeout": httpx.Timeout(timeout_s + call.wait_s, connect=CONNECT_S)}


def _answer(found: tuple[httpx.Response, bytes]) -> ApiAnswer:
    response, body = found
    is_json = response.headers.get("content-type", "").startswith("application/json")
    try:
        value = json.loads(body) if is_json and body else None
    except ValueError:  # a proxy's idea of JSON; what is read from it decides
        value = None
    return ApiAnswer(response.status_code, response.headers, body, value)


def _lost(call: ApiCall[Any], error: httpx.HTTPError) -> Unavailable:
    return Unavailable(f"{call.method} {call.path}: {str(error) or type(error).__name__}", retry_after=0.0)


def _options(base_url: str, key: str, transport: Any) -> dict[str, Any]:
    return {
        "base_url": base_url.rstrip("/"),
        "headers": PLAIN | ({"authorization": f"Bearer {key}"} if key else {}),
        "transport": transport,
        "trust_env": False,  # a proxy of the environment has no business between trainer and gateway
    }


def _spec(spec: Mapping[str, Json]) -> dict[str, Json]:
    """With a name, so that a retry cannot make two sessions."""
    given = {key: value for key, value in spec.items() if value is not None}
    return {"session_id": f"s-{uuid.uuid4().hex[:24]}"} | given


class AsyncRolloutClient:
    """Talks to one gateway. Use as `async with`, or call `aclose`."""

    def __init__(
        self,
        base_url: str,
        key: str = "",
        *,
        timeout_s: float = TIMEOUT_S,
        retries: Retries | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`base_url`: the gateway's origin. `key`: scope trainer or admin."""
        self._http = httpx.AsyncClient(**_options(base_url, key, transport))
        self._timeout_s, self._retries = timeout_s, retries or Retries()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close connections. Leases that were not acked are offered again when they expire."""
        await self._http.aclose()

    async def call(self, call: ApiCall[T], retries: Retries | None = None) -> T:
        """Carry out one call, with retries (of its own, or the client's). Raises SandgateError."""
        attempt, retries = 0, retries or self._retries
        while True:
            attempt += 1
            try:
                return calls.read(call, _answer(await fetch(self._http, _request(call, self._timeout_s))))
            except httpx.HTTPError as lost:
                error: SandgateError = _lost(call, lost)
                again = True
            except SandgateError as said:
                error, again = said, calls.may_retry(said)
            delay = retries.delay(attempt, error, random.random()) if again else None
            if delay is None:
                raise error
            await asyncio.sleep(delay)

    async def create_session(self, **spec: Json) -> SessionHandle:
        """Fields as in /openapi.json: session_id, uid, sample_index, group_size, job, attempt, sampling, limits, ..."""
        return await self.call(calls.create(_spec(spec)))

    async def create_sessions(self, specs: Sequence[Mapping[str, Json]]) -> list[SessionHandle]:
        """Many in one request; handles in the order of `specs`."""
        return await self.call(calls.create_many([_spec(spec) for spec in specs]))

    async def session(self, session_id: str) -> dict[str, Json]:
        """State, turns, tokens, forks. Raises NotFound."""
        return await self.call(calls.session(session_id))

    async def sessions(
        self, *, state: str | None = None, job: str | None = None
    ) -> AsyncIterator[dict[str, Json]]:
        """All of them in id order, page by page."""
        after: str | None = ""
        while after is not None:
            page, after = await self.call(calls.sessions(state, job, after))
            for one in page:
                yield one

    async def wait(self, session_id: str, timeout_s: float = 60.0) -> dict[str, Json] | None:
        """The session's state once it is complete or ended; None if it is still open after `timeout_s`."""
        return await self.call(calls.wait(session_id, timeout_s))

    async def reward(
        self,
        session_id: str,
        reward: float,
        *,
        interaction_id: str | None = None,
        reward_info: Mapping[str, Json] | None = None,
    ) -> None:
        """Reward one turn; default: the last. Raises Gone once the session is finalized."""
        await self.call(calls.reward(session_id, reward, interaction_id, reward_info or {}))

    async def finalize(self, session_id: str, **body: Json) -> list[Trajectory]:
        """Seal the session (`outcome`, `reward`, `reward_info`, `discount`). The first call's outcome stands."""
        return await self.call(calls.finalize(session_id, body))

    async def abort(self, session_id: str) -> None:
        """Cancel what is in flight, discard. Siblings are untouched."""
        await self.call(calls.abort(session_id))

    async def tree(self, session_id: str, *, text: bool = True) -> dict[str, Json]:
        """Turns, parents, fork reasons, spans, as the viewer gets them; `text`: decoded too."""
        return await self.call(calls.tree(session_id, text=text))

    async def lease(
        self,
        *,
        job: str | None = None,
        max_groups: int = 1,
        max_tokens: int | None = None,
        ttl_s: float = lease_call.TTL_S,
    ) -> Lease | None:
        """Whole groups that are ready, or None if there are none now. They are ours for `ttl_s` seconds."""
        return await self.call(lease_call.lease(job, max_groups, max_tokens, ttl_s))

    async def renew(self, lease_id: str, ttl_s: float) -> None:
        """Keep a lease: `ttl_s` seconds from now on. Raises Conflict (another trainer was given it), NotFound."""
        await self.call(calls.renew(lease_id, ttl_s))

    async def ack(self, lease: Lease) -> None:
        """These are trained on, or stored: never offered again. Idempotent."""
        await self.call(calls.ack(lease.lease_id))

    async def nack(self, lease: Lease) -> None:
        """Give them back at once."""
        await self.call(calls.nack(lease.lease_id))

    def groups(
        self,
        *,
        job: str | None = None,
        ttl_s: float = lease_call.TTL_S,
        idle_s: float | None = None,
        ahead: Ahead | None = None,
    ) -> Groups:
        """Whole groups as they become ready, each under its own lease, which is renewed while the group is held on to;
        ends after `idle_s` seconds without one. `ahead`: how much may be leased before it is asked for.

        async for group in client.groups(job="shop"):
            async with group:      # acknowledged when the block ends, given back when it raises
                await train(group.trajectories)
        """
        return groups(self, job=job, ttl_s=ttl_s, idle_s=idle_s, ahead=ahead)

    async def push_tasks(self, tasks: Sequence[Task], *, last: bool = False, job: str = "") -> None:
        """To a job with `tasks.queue`, at most 10,000 at once; all of them or none, durable when this returns. `last`:
        no more will come, and the job ends with these. The same again changes nothing. Raises Conflict (a uid that
        waits with another prompt or data, or a new one after the last) and Overloaded: the gateway still holds as many
        unfinished tasks as `tasks.queue.capacity` says, after all attempts."""
        await self.call(calls.push_tasks(tasks, last=last, job=job))

    async def close_group(self, uid: str, *, job: str = "") -> None:
        """No more sessions count for this task: what is there is its group (quorum reached, stragglers cut)."""
        await self.call(calls.close_group(job, uid))

    async def policy_version(self, version: int, *, labelled: bool | None = None) -> None:
        """Tokens sampled from now on carry this version, where the engine itself reports none. `labelled`: every
        engine's weights are labelled with their version (`/update_weight_version`); then an engine whose label has no
        number has lost its weights, and is not used until it has one. False: labels say nothing (any more). None: as
        was told or seen before."""
        await self.call(calls.policy_version(version, labelled))

    async def pause(self) -> None:
        """Hold turns that have not reached the engine; their clients get heartbeats."""
        await self.call(calls.pause())

    async def resume(self) -> None:
        """Let held turns go on."""
        await self.call(calls.resume())

    async def heartbeat(self) -> None:
        """A sign of life, for jobs with `trainer.heartbeatSeconds`; every other call is one too."""
        await self.call(calls.heartbeat())

    async def status(self) -> dict[str, Json]:
        """Load, pause, versions, journal, engines."""
        return await self.call(calls.status())

    @asynccontextmanager
    async def weight_update(self, version: int) -> AsyncIterator[None]:
        """Pause; swap the weights inside the block; then tokens carry `version` and turns go on.

        If the block raises, the old weights are still there: the version stays, and turns go on.
        """
        await self.pause()
        try:
            yield
            await self.policy_version(version)
        finally:
            await asyncio.shield(self.resume())  # a cancelled trainer must not leave agents on hold


class RolloutClient:
    """`AsyncRolloutClient` for programs without an event loop; see there. Use as `with`, or call `close`."""

    def __init__(
        self,
        base_url: str,
        key: str = "",
        *,
        timeout_s: float = TIMEOUT_S,
        retries: Retries | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._http = httpx.Client(**_options(base_url, key, transport))
        self._timeout_s, self._retries = timeout_s, retries or Retries()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close connections."""
        self._http.close()

    def call(self, call: ApiCall[T]) -> T:
        """Carry out one call, with retries. Raises SandgateError."""
        attempt = 0
        while True:
            attempt += 1
            try:
                return calls.read(call, _answer(fetch_now(self._http, _request(call, self._timeout_s))))
            except httpx.HTTPError as lost:
                error: SandgateError = _lost(call, lost)
                again = True
            except SandgateError as said:
                error, again = said, calls.may_retry(said)
            delay = self._retries.delay(attempt, error, random.random()) if again else None
            if delay is None:
                raise error
            time.sleep(delay)

    def create_session(self, **spec: Json) -> SessionHandle:
        """See `AsyncRolloutClient.create_session`."""
        return self.call(calls.create(_spec(spec)))

    def create_sessions(self, specs: Sequence[Mapping[str, Json]]) -> list[SessionHandle]:
        """Many in one request; handles in the order of `specs`."""
        return self.call(calls.create_many([_spec(spec) for spec in specs]))

    def session(self, session_id: str) -> dict[str, Json]:
        """State, turns, tokens, forks. Raises NotFound."""
        return self.call(calls.session(session_id))

    def sessions(self, *, state: str | None = None, job: str | None = None) -> Iterator[dict[str, Json]]:
        """All of them in id order, page by page."""
        after: str | None = ""
        while after is not None:
            page, after = self.call(calls.sessions(state, job, after))
            yield from page

    def wait(self, session_id: str, timeout_s: float = 60.0) -> dict[str, Json] | None:
        """The session's state once it is complete or ended; None if it is still open after `timeout_s`."""
        return self.call(calls.wait(session_id, timeout_s))

    def reward(
        self,
        session_id: str,
        reward: float,
        *,
        interaction_id: str | None = None,
        reward_info: Mapping[str, Json] | None = None,
    ) -> None:
        """Reward one turn; default: the last."""
        self.call(calls.reward(session_id, reward, interaction_id, reward_info or {}))

    def finalize(self, session_id: str, **body: Json) -> list[Trajectory]:
        """Seal the session (`outcome`, `reward`, `reward_info`, `discount`). The first call's outcome stands."""
        return self.call(calls.finalize(session_id, body))

    def abort(self, session_id: str) -> None:
        """Cancel what is in flight, discard."""
        self.call(calls.abort(session_id))

    def tree(self, session_id: str, *, text: bool = True) -> dict[str, Json]:
        """Turns, parents, fork reasons, spans; `text`: decoded too."""
        return self.call(calls.tree(session_id, text=text))

    def lease(
        self,
        *,
        job: str | None = None,
        max_groups: int = 1,
        max_tokens: int | None = None,
        ttl_s: float = lease_call.TTL_S,
    ) -> Lease | None:
        """Whole groups that are ready, or None if there are none now."""
        return self.call(lease_call.lease(job, max_groups, max_tokens, ttl_s))

    def renew(self, lease_id: str, ttl_s: float) -> None:
        """See `AsyncRolloutClient.renew`."""
        self.call(calls.renew(lease_id, ttl_s))

    def ack(self, lease: Lease) -> None:
        """Never offered again. Idempotent."""
        self.call(calls.ack(lease.lease_id))

    def nack(self, lease: Lease) -> None:
        """Give them back at once."""
        self.call(calls.nack(lease.lease_id))

    def push_tasks(self, tasks: Sequence[Task], *, last: bool = False, job: str = "") -> None:
        """See `AsyncRolloutClient.push_tasks`."""
        self.call(calls.push_tasks(tasks, last=last, job=job))

    def close_group(self, uid: str, *, job: str = "") -> None:
        """No more sessions count for this task: what is there is its group."""
        self.call(calls.close_group(job, uid))

    def policy_version(self, version: int, *, labelled: bool | None = None) -> None:
        """See `AsyncRolloutClient.policy_version`."""
        self.call(calls.policy_version(version, labelled))

    def pause(self) -> None:
        """Hold turns that have not reached the engine."""
        self.call(calls.pause())

    def resume(self) -> None:
        """Let held turns go on."""
        self.call(calls.resume())

    def heartbeat(self) -> None:
        """See `AsyncRolloutClient.heartbeat`."""
        self.call(calls.heartbeat())

    def status(self) -> dict[str, Json]:
        """Load, pause, versions, journal, engines."""
        return self.call(calls.status())

    @contextmanager
    def weight_update(self, version: int) -> Iterator[None]:
        """See `AsyncRolloutClient.weight_update`."""
        self.pause()
        try:
            yield
            self.policy_version(version)
        finally:
            self.resume()
