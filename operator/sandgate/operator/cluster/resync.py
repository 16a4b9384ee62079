"""Resync: reads gateways' sessions, AgentSessions, pods and tasks, at the start and when a gateway lost its volume.
Both build what is observed anew: there is one way to recover.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from sandgate.contract.agent_session import AgentSession
from sandgate.contract.errors import BadRequest, Forbidden, NotFound, SandgateError, Unavailable
from sandgate.contract.job import Task
from sandgate.contract.labels import JOB
from sandgate.contract.session import SessionSummary
from sandgate.contract.status import RolloutJobStatus
from sandgate.operator.cluster.adoption import adopt
from sandgate.operator.cluster.garbage_collection import GarbageCollector
from sandgate.operator.cluster.gateway_monitor import GatewayMonitor
from sandgate.operator.cluster.job_state import JobState
from sandgate.operator.cluster.listing import all_sessions
from sandgate.operator.cluster.object_store import text_of
from sandgate.operator.cluster.recovery import Recovered, never_began, unknown
from sandgate.operator.cluster.tasks import digest, fixed_tasks, kept
from sandgate.operator.driver.task_queue import take
from sandgate.operator.observed import events
from sandgate.operator.observed.job import Observed
from sandgate.operator.observed.remotes import is_remote
from sandgate.operator.observed.restarts import recalled
from sandgate.operator.plan.actions import SessionObserved, SideCars, Told
from sandgate.operator.plan.conditions import is_over

log = logging.getLogger(__name__)

GATHER_S = 15.0
"""How long a new job waits for its other gateways once one is there."""
PART = 400
"""Sessions that are taken in before the event loop has its turn; some 15 ms. A job that ran for weeks has a million,
and whoever looks at it anew must renew its Lease meanwhile."""
TASKS_S = 5.0
"""Between looks for a ConfigMap that is not there, or has other tasks than it had."""
AT_ONCE = 8
"""Calls for sessions that began while others were listed."""

Body = Any
Beside = Callable[[Coroutine[Any, Any, None]], object]


@dataclass(slots=True, kw_only=True)
class Resync:
    """Of one job."""

    at: JobState
    collector: GarbageCollector
    beside: Beside
    """Run it as long as the job's driver runs."""
    observe: Callable[[RolloutJobStatus | None], Observed]
    """Of a job of which nothing was seen yet."""
    ask_anew: Callable[[], None]
    """Its queues are read from their beginnings."""
    session: Callable[[Body], None]
    pod: Callable[[Body], None]
    """Told of each object that a list brings."""
    pushed: Callable[[], Coroutine[Any, Any, None]]
    """Follows a queue of tasks, for ever."""
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while the store is built: news wait for it."""
    _listed: dict[str, list[SessionSummary]] = field(default_factory=dict)
    """Gateway -> what it held when it was asked; until that was taken in."""
    _known: set[str] = field(default_factory=set)
    """Gateways whose sessions were taken in."""
    _gathering: bool = False
    _asking: bool = False

    # -- gateways -----------------------------------------------------------------------------------------------------

    async def arrived(self, monitor: GatewayMonitor, listed: list[SessionSummary]) -> bool:
        """It answers, and holds this. True once the store knows it; False: others are waited for."""
        async with self.lock:
            self._listed[monitor.name] = listed
            if not self.at.observed.loaded:
                if not self._may_load():
                    return False
                await self._load_with(monitor)
            elif (listed and monitor.name not in self._known) or self._forgot(monitor, listed):
                log.warning(
                    "gateway %s holds something else than is known; all is looked at anew", monitor.name
                )
                await self._load_with(monitor)
            self._known.add(monitor.name)
            self._listed.clear()
        return True

    def _may_load(self) -> bool:
        """All gateways were asked. A job that never began need not wait for all: see `_gather`."""
        if not self._gathering:
            self._gathering = True
            self.beside(self._gather())
        return all(name in self._listed for name in self.at.monitors)

    async def _gather(self) -> None:
        """Go on with those gateways that are there, if nothing was ever begun, so that no other can hold anything."""
        while not self.at.observed.loaded:
            await asyncio.sleep(GATHER_S)
            try:
                async with self.lock:
                    await self._go_on()
            except (SandgateError, OSError, TimeoutError) as error:
                log.info("job %s/%s: %s", self.at.namespace, self.at.name, error)

    async def _go_on(self) -> None:
        there = [one for one in self.at.monitors.values() if one.open and one.name in self._listed]
        if there and not self.at.observed.loaded and not await self._was_begun():
            await self._load_with(there[0])
            self._listed.clear()

    async def _was_begun(self) -> bool:
        at, status = self.at, self.at.observed.status
        if status is not None and status.running + status.ended:
            return True
        if any(one.spec.remote and one.gateway for one in at.sessions.held.values()):
            return True
        labels = f"{JOB}={at.name}"
        return bool(await at.kube.list_metadata(AgentSession.KIND, at.namespace, labels=labels))

    def _forgot(self, monitor: GatewayMonitor, listed: list[SessionSummary]) -> bool:
        there = {one.session_id for one in listed}
        at = self.at
        mine = (one for one in at.sessions.held.values() if one.gateway == monitor.name)
        return any(
            one.name not in there
            and one.name in at.opened
            and one.name in at.observed.sessions
            and not at.observed.sessions[one.name].committed
            for one in mine
        )

    async def _load_with(self, monitor: GatewayMonitor) -> None:
        """With the newest word of every gateway. Raises Unavailable if that of a known one cannot be had now: what it
        holds must not be begun a second time."""
        at, begun, again, words = self.at, self._begun(), self.at.observed.loaded, self._listed
        fresh: dict[str, list[SessionSummary]] = {}
        for one in tuple(at.monitors.values()):
            if one is monitor and not again:
                continue
            if one.open:
                fresh[one.name] = await all_sessions(one.client, at.name)
            elif one.name in self._known and (again or one.name not in words):
                raise Unavailable(f"gateway {one.name} is away, too")
        self._listed = words | fresh
        try:
            await self._load(begun)
        finally:
            # If that failed, sessions go on at those that were asked: only what is not taken in yet stands still.
            self._listed, at.rebuilding = words, False

    # -- what begins meanwhile ----------------------------------------------------------------------------------------

    def _begun(self) -> set[str]:
        """Sessions that would count as lost if their gateway did not know them."""
        held, agents = self.at.sessions.held, self.at.agents.held
        return {name for name, one in held.items() if one.gateway and not never_began(one, agents)}

    async def _ask_late(self, begun: set[str]) -> None:
        """A gateway knows sessions that began after it was asked for all: ask it for each of these. Plans go on all the
        while; but from now on nothing more is opened, so that this has an end: what is being opened now is asked for
        in another round."""
        self.at.rebuilding = True
        asked, turns = set(begun), asyncio.Semaphore(AT_ONCE)

        async def ask(name: str, gateway: str) -> None:
            async with turns:
                with suppress(NotFound):
                    self._listed[gateway].append(await self.at.client(gateway).get(name))

        while late := self._late(asked):
            asked |= late.keys()
            await asyncio.gather(*(ask(name, gateway) for name, gateway in late.items()))

    def _late(self, asked: set[str]) -> dict[str, str]:
        """Session -> its gateway."""
        listed = {one.session_id for there in self._listed.values() for one in there}
        names, held = self._begun() - asked - listed, self.at.sessions.held
        return {name: held[name].gateway for name in sorted(names) if held[name].gateway in self._listed}

    # -- the store ----------------------------------------------------------------------------------------------------

    async def _load(self, begun: set[str]) -> None:
        """`begun`: sessions that had begun before gateways were asked."""
        at = self.at
        listed = await at.kube.list(AgentSession.KIND, at.namespace)
        sessions = [body for body in listed if text_of(body, "spec", "jobName") == at.name]
        for number, body in enumerate(await adopt(at, AgentSession.KIND, sessions)):
            self.session(body)
            if number % PART == PART - 1:
                await asyncio.sleep(0)
        pods = await at.kube.list("Pod", at.namespace, labels=f"{JOB}={at.name}")
        for body in await adopt(at, "Pod", pods):
            self.pod(body)
        await self.collector.ledger.load()
        if at.observed.loaded:
            await self._ask_late(begun)  # the last wait before it is said what is unknown
        was, ledger = at.observed, self.collector.ledger
        anew = replace(
            self.observe(was.status),
            provided=was.provided,
            provided_for=was.provided_for,
            heard_at=was.heard_at,
            trainer_at=was.trainer_at,
            engines=was.engines,
            done=ledger.done,
            more=True,
            loaded=True,
        )
        await self._recall(anew)
        if not await self._have_tasks() and not self._asking:
            self._asking = True
            self.beside(self._ask())
        for monitor in at.monitors.values():
            at.observe(
                events.GatewayChanged(
                    monitor.name, ready=monitor.open and monitor.name not in at.journals.broken
                )
            )

    def _memory(self, seen: Observed) -> Recovered:
        """What objects tell now."""
        at = self.at
        agents, verifiers = (
            {name: one for name, one in table.held.items() if one.is_of(at.sessions.held.get(name))}
            for table in (at.agents, at.verifiers)
        )
        return Recovered(
            at.sessions.held,
            agents,
            verifiers,
            at.now(),
            seen.done,
            over=is_over(seen.status),
            before=at.observed.sessions,
        )

    async def _recall(self, seen: Observed) -> None:
        """What is observed from now on: `seen` with all that gateways hold. What has ended is taken in part by part;
        what lives comes last and at once, as it and its pods are by then."""
        at = self.at
        opened, unstopped, committed = dict[str, None](), dict[str, None](), 0
        with at.renewed(seen) as made:

            def find(gateway: str, part: list[SessionSummary], memory: Recovered) -> None:
                known = recalled(seen.want, part, memory.recall)
                made.take(events.SessionsFound(gateway, known))
                opened.update({one.ref.name: None for one in known if one.seen is not None})
                unstopped.update({one.ref.name: None for one in known if _to_stop(one.seen)})

            told: dict[str, list[SessionSummary]] = {}
            living: dict[str, list[SessionSummary]] = {}
            guessed: set[str] = set()
            memory = self._memory(seen)
            for name in sorted(self._listed):  # all at once: what begins from here on is no gateway's loss
                told[name] = [one for one in self._listed[name] if one.job == at.name]
                made_up = unknown(name, told[name], memory)
                guessed |= {one.session_id for one in made_up}
                told[name] += made_up
            for name, listed in told.items():
                committed += sum(one.committed for one in listed if not is_remote(one))
                over, living[name] = await self._by_life(listed)
                for part in parts(over):
                    find(name, part, memory)  # all have ended
                    await asyncio.sleep(0)
            for name, those in living.items():
                find(name, those, replace(self._memory(seen), met=name in self._known))
                for absence in at.monitors[name].absences:
                    made.take(events.OutageSeen(name, absence))
                if (broken := at.journals.outages.get(name)) is not None:
                    made.take(events.OutageSeen(name, broken))
            made.take(events.CommittedBefore(committed))
            self._known = set(self._listed)  # of one that was not asked, nothing is known: it comes later
            at.tasks.clear()
            self.ask_anew()
            at.opened.clear()
            at.opened |= {name: None for name in opened if name not in guessed}
            at.unstopped |= unstopped
        live = at.observed.sessions
        for one in at.sessions.held.values():
            if one.spec.remote and one.told < Told.FINALIZED:
                at.observe(events.RemoteAsked(one.ref, one.spec.gateway))
        self.collector.resume(
            pods=[name for name in {**at.agents.held, **at.verifiers.held} if name not in live],
            sessions=[one for one in at.sessions.held.values() if one.name not in live],
        )

    async def _by_life(
        self, listed: list[SessionSummary]
    ) -> tuple[list[list[SessionSummary]], list[SessionSummary]]:
        """Sessions of tasks of which nothing lives, nor has a pod, task by task; and all others."""
        at = self.at
        tasks: dict[str, list[SessionSummary]] = {}
        living: set[str] = set()
        for number, one in enumerate(listed):
            tasks.setdefault(one.uid, []).append(one)
            name = one.session_id
            if not one.state.ended or name in at.agents.held or name in at.verifiers.held:
                living.add(one.uid)
            if number % (10 * PART) == 0:
                await asyncio.sleep(0)
        over = [those for uid, those in tasks.items() if uid not in living]
        return over, [one for uid, those in tasks.items() if uid in living for one in those]

    # -- tasks --------------------------------------------------------------------------------------------------------

    async def _fixed(self) -> bool:
        """True if there is nothing left to ask for; a queue is never done."""
        try:
            tasks = await fixed_tasks(self.at.kube, self.at.job)
        except (NotFound, BadRequest, Forbidden) as error:
            self.at.observe(events.TasksUnavailable(str(error)))
            return False
        if tasks is None:
            return False
        if not await self._are_its_own(tasks):
            return False
        take(self.at, tasks)
        self.at.observe(events.TasksUnavailable(""))
        self.at.observe(events.TasksEnded())
        return True

    async def _are_its_own(self, tasks: tuple[Task, ...]) -> bool:
        """They are those that the job began with: a group of two prompts would teach nonsense, and one whose task is
        gone would never end. spec.tasks cannot change, so only a ConfigMap has others; a job that is over begins
        nothing of them."""
        at, source = self.at, self.at.job.spec.tasks.config_map
        if source is None or is_over(at.observed.status):
            return True
        found = await asyncio.to_thread(digest, tasks)  # of up to 1 MiB
        if await kept(at.kube, at.job, found) == found:
            return True
        why = (
            f"spec.tasks.configMap: ConfigMap {source.name} has changed since the job began; put the old content"
            " back, or delete the job and apply it again"
        )
        at.observe(events.TasksUnavailable(why))
        return False

    async def _have_tasks(self) -> bool:
        """`_fixed`; what cannot be asked now is asked again."""
        try:
            return await self._fixed()
        except (SandgateError, OSError, TimeoutError) as error:
            log.info("job %s/%s: tasks: %s", self.at.namespace, self.at.name, error)
            return False

    async def _ask(self) -> None:
        """A ConfigMap may come later; a queue goes on."""
        if self.at.job.spec.tasks.queue is not None:
            await self.pushed()
        done = False
        while not done:
            await asyncio.sleep(TASKS_S)
            done = await self._have_tasks()
        self._asking = False


def parts(tasks: Iterable[list[SessionSummary]]) -> Iterator[list[SessionSummary]]:
    """Of about PART sessions each; a task's stay together."""
    part: list[SessionSummary] = []
    for those in tasks:
        part += those
        if len(part) >= PART:
            yield part
            part = []
    if part:
        yield part


def _to_stop(seen: SessionObserved | None) -> bool:
    """Its stop was written down, and something of it runs: whoever wrote that may have died before its pod was told."""
    if seen is None or seen.stop is None or seen.sandbox is None:
        return False
    return seen.sandbox.exit is None or seen.sandbox.side_cars is not SideCars.NONE
