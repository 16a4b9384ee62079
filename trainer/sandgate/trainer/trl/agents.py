"""Runs the tasks of a round: by agents in the trainer's process, or by those that the job's operator starts."""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any, Protocol

from sandgate.contract.errors import Conflict, SandgateError, Unavailable
from sandgate.contract.failure_reasons import FAILURE_CLASS, FailureClass, FailureReason
from sandgate.contract.job import Task
from sandgate.contract.names import session_id, short_hash
from sandgate.contract.session import SessionHandle, finite
from sandgate.contract.trajectory import Json
from sandgate.trainer.client.fleet import AsyncFleet
from sandgate.trainer.client.group_size import group_size
from sandgate.trainer.client.rollout_client import AsyncRolloutClient

log = logging.getLogger(__name__)

PARALLEL = 32
"""Agents at once, each with a session; as many as a small vLLM batches."""
ATTEMPTS = 3
"""At a sample, where engine, gateway or network failed; what an agent does wrong is not tried again."""
SESSION_S = 600.0
"""Of an agent; then the session is sealed, and its next call refused. Agents take minutes; for one that takes hours
`Rollouts(session_s=...)`."""
HANGING = 8
"""Times as many plain functions as may run at once may hang in their threads after their sessions: idle threads cost
little, and most end when their own request does. More is an agent that will hang for ever."""

Agent = Callable[..., Any]
"""`agent(*, session, raw_prompt, sample_index, tools_kwargs) -> reward`, async or not: the same as verl's runners.
`session` is a SessionHandle, `tools_kwargs` the task's data. A plain function runs in a thread."""


class Listener(Protocol):
    """Whoever waits for groups."""

    def look(self) -> None:
        """A group may have become whole."""
        ...

    async def nothing(self, uid: str) -> None:
        """No session of this group counts: it will never be offered."""
        ...

    async def fail(self, error: BaseException) -> None:
        """No group will come any more."""
        ...


class Driver(Protocol):
    """Carries out tasks; each becomes a group that its gateway offers for lease."""

    def tell(self, listener: Listener) -> None:
        """Before the first start."""
        ...

    async def start(self, tasks: Sequence[Task], n: int) -> None:
        """Returns at once. The same tasks again change nothing. `n`: sessions of each."""
        ...

    async def took(self, sessions: Sequence[str]) -> None:
        """A group of these was leased. Raises Conflict if it is none of those that were asked for."""
        ...


class QueuedAgents:
    """The job's operator runs the agents: tasks go to the job's queue (`tasks: {queue: {}}`); its `groupSize` is n."""

    def __init__(self, fleet: AsyncFleet) -> None:
        self._fleet = fleet
        self._asked: set[int] = set()
        self._size: int | None = None
        """The job's `groupSize`, known once it has made a session."""

    def tell(self, listener: Listener) -> None:
        """Nothing is known here before the gateways offer it."""

    async def start(self, tasks: Sequence[Task], n: int) -> None:
        """Raises Overloaded if the queue is full, after all attempts; Conflict if the job's groups are of another size.
        Smaller ones would be filled with rows that teach nothing, and nobody told."""
        self._asked.add(n)
        self._check_size()
        await self._fleet.push_tasks(tasks)

    async def took(self, sessions: Sequence[str]) -> None:
        """See Driver. The first group says what `groupSize` is: it is that of all."""
        if self._size is None and sessions:
            self._size = await group_size(self._fleet.clients, sessions[0])
            self._check_size()

    def _check_size(self) -> None:
        for n in sorted(self._asked):
            if self._size not in (None, n):
                raise Conflict(
                    f"the job's groupSize is {self._size}, and groups of {n} are asked for: make it the same as"
                    " num_generations (in an evaluation num_generations_eval)"
                )


class Inline:
    """Agents in this process, each with a session of its own at the gateway of its group.

    What an agent raises is its own failure: the session is kept with what it sampled, and masked. Where the engine or
    the gateway failed, the sample is tried again.

    Each call of a plain function has a thread of its own: no thread can be ended from outside, and of a pool one that
    hangs would be missing to the agents after it, whose sessions would time out without a call.
    """

    def __init__(
        self,
        fleet: AsyncFleet,
        agent: Agent,
        *,
        job: str,
        options: dict[str, Json],
        parallel: int,
        session_s: float,
    ) -> None:
        """`options`: further fields of a session's creation (sampling, limits)."""
        self._fleet, self._agent, self._options, self._job = fleet, agent, options, job
        self._parallel, self._session_s = parallel, session_s
        self._slots = asyncio.Semaphore(parallel)
        self._running: set[Future[Any]] = set()
        """Plain functions in their threads."""
        self._groups: dict[str, asyncio.Task[None]] = {}
        self._earlier: dict[str, dict[int, list[dict[str, Json]]]] = {}
        """uid -> sample -> sessions of a trainer that is gone."""
        self._listener: Listener | None = None

    async def look(self, wanted: Callable[[str], bool]) -> None:
        """What earlier processes left at the gateways, of the groups that are `wanted`."""
        async for one in self._fleet.sessions():
            if wanted(uid := str(one.get("uid") or "")):
                samples = self._earlier.setdefault(uid, {})
                samples.setdefault(int(one.get("sample_index") or 0), []).append(one)

    async def start(self, tasks: Sequence[Task], n: int) -> None:
        """See Driver."""
        for task in tasks:
            if task.uid not in self._groups:
                running = asyncio.get_running_loop().create_task(self._group(task, n))
                self._groups[task.uid] = running
                running.add_done_callback(lambda _, uid=task.uid: self._groups.pop(uid, None))  # type: ignore[misc]

    async def took(self, sessions: Sequence[str]) -> None:
        """They are those that were made here."""

    async def aclose(self) -> None:
        """Stop. Sessions stay as they are at their gateways; the next process goes on with the finished ones."""
        left = list(self._groups.values())
        for running in left:
            running.cancel()
        await asyncio.gather(*left, return_exceptions=True)

    def tell(self, listener: Listener) -> None:
        """See Driver."""
        self._listener = listener

    async def _group(self, task: Task, n: int) -> None:
        try:
            counts = await self._run_all(task, n)
        except Exception as error:  # noqa: BLE001 - raised to whoever waits
            await self._listening.fail(error)
            return
        self._earlier.pop(task.uid, None)
        if counts:
            self._listening.look()
        else:
            await self._listening.nothing(task.uid)

    @property
    def _listening(self) -> Listener:
        assert self._listener is not None, "told before the first start"
        return self._listener

    async def _run_all(self, task: Task, n: int) -> bool:
        """Whether the group will be offered. Raises SandgateError when its gateway is gone for good."""
        names = sorted(self._fleet.clients)  # all samples at one gateway: only there the group is whole
        client = self._fleet.clients[names[int(short_hash(task.uid), 16) % len(names)]]
        counts = await asyncio.gather(*(self._sample(client, task, sample, n) for sample in range(n)))
        if not all(counts) and any(counts):
            await client.close_group(task.uid, job=self._job)
        return any(counts)

    async def _sample(self, client: AsyncRolloutClient, task: Task, sample: int, n: int) -> bool:
        """Whether a session of it counts in the end."""
        earlier = self._earlier.get(task.uid, {}).get(sample, [])
        for one in earlier:
            if one.get("committed"):
                raise Conflict(
                    f"group {task.uid!r} was trained on and acknowledged: the checkpoint is older than that;"
                    " give the run another name (run=)"
                )
            if one["state"] == "finalized" and one.get("failure_class") != FailureClass.INFRA.value:
                return True
        first = max((int(one.get("attempt") or 0) + 1 for one in earlier), default=0)
        for one in earlier:
            if one["state"] in ("open", "complete"):  # its agent went with its process
                await client.abort(str(one["session_id"]))
        for attempt in range(first, first + ATTEMPTS):
            async with self._slots:
                self._check_hanging()
                why = await self._attempt(client, task, sample, attempt, n)
            if why is None or FAILURE_CLASS[why] is not FailureClass.INFRA:
                return True
        return False

    async def _attempt(
        self, client: AsyncRolloutClient, task: Task, sample: int, attempt: int, n: int
    ) -> FailureReason | None:
        """From the session's creation to its seal: why it failed, None if it did not. Raises Unavailable when the
        gateway is gone for good."""
        session = await client.create_session(
            session_id=session_id(self._job, task.uid, sample, attempt),
            uid=task.uid,
            sample_index=sample,
            group_size=n,
            job=self._job,
            attempt=attempt,
            task={"prompt": task.prompt, "data": task.data},
            **self._options,
        )
        reward, why, detail = None, None, ""
        bound = asyncio.timeout(self._session_s)
        try:
            async with bound:
                reward = finite(await self._run(session, task, sample))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever an agent raises is of its session alone
            if bound.expired():
                why, detail = FailureReason.SESSION_TIMEOUT, f"longer than {self._session_s:g} s"
            else:
                why, detail = await self._blame(client, session, error), f"{type(error).__name__}: {error}"
            log.warning("session %s: %s", session.session_id, detail)
        outcome: dict[str, Json] = {"complete": why is None, "detail": detail[:1000]}
        if why is not None:
            outcome |= {"failure_class": FAILURE_CLASS[why].value, "failure_reason": why.value}
        await client.finalize(session.session_id, outcome=outcome, reward=reward, trajectories=False)
        return why

    async def _run(self, session: SessionHandle, task: Task, sample: int) -> Any:
        said = {"raw_prompt": task.prompt, "sample_index": sample, "tools_kwargs": task.data}
        if inspect.iscoroutinefunction(self._agent) or inspect.iscoroutinefunction(
            getattr(self._agent, "__call__", None)  # noqa: B004 - of an instance, not "is it callable"
        ):
            return await self._agent(session=session, **said)
        running = _in_thread(lambda: self._agent(session=session, **said), f"agent {session.session_id}")
        self._running.add(running)
        running.add_done_callback(self._running.discard)
        return await asyncio.wrap_future(running)

    def _check_hanging(self) -> None:
        """Raises Conflict where agents do not end with their sessions: each would leave a thread behind. Called where a
        slot is free, so that all but `parallel` of those that run are of sessions that have ended."""
        if len(self._running) > (HANGING + 1) * self._parallel:
            raise Conflict(
                f"{len(self._running)} calls of the agent have not returned, all but {self._parallel} of them after the"
                f" end of their sessions ({self._session_s:g} s each, session_s): it waits for something without a"
                " timeout"
            )

    async def _blame(
        self, client: AsyncRolloutClient, session: SessionHandle, error: BaseException
    ) -> FailureReason:
        """An agent that met a dead engine is not to blame for what it raised."""
        if isinstance(error, Unavailable):
            return FailureReason.GATEWAY_LOST
        try:
            known = await client.session(session.session_id)
        except SandgateError:
            return FailureReason.GATEWAY_LOST
        return FailureReason.ENGINE_ERROR if known.get("engine_errors") else FailureReason.AGENT_EXIT


def _in_thread(call: Callable[[], Any], name: str) -> Future[Any]:
    """A daemon: Python would wait for any other at its end, and so for ever for one that hangs."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()  # a thread cannot be cancelled; who waits for it can

    def run() -> None:
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 - raised to whoever waits
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


@asynccontextmanager
async def inline(
    fleet: AsyncFleet,
    agent: Agent,
    *,
    job: str,
    options: dict[str, Json],
    wanted: Callable[[str], bool],
    parallel: int = PARALLEL,
    session_s: float = SESSION_S,
) -> AsyncIterator[Inline]:
    """Ready to start groups; knows what an earlier process finished of those that are `wanted`, by uid."""
    made = Inline(fleet, agent, job=job, options=options, parallel=parallel, session_s=session_s)
    await made.look(wanted)
    try:
        yield made
    finally:
        await made.aclose()
