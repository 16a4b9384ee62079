"""GatewayService: what the endpoints do, behind HTTP: sessions, rewards, leases, tasks, pause, events, status."""

from __future__ import annotations

import asyncio
import copy
import logging
import math
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TypeVar
from weakref import WeakValueDictionary

import orjson

from sandgate.contract.choices import CutTurns
from sandgate.contract.errors import (
    Conflict,
    Forbidden,
    Gone,
    InvalidBody,
    JournalUnavailable,
    LimitReached,
    NotFound,
    Unsupported,
)
from sandgate.contract.keys import Key, Scope
from sandgate.contract.lease import LEASES_MAX
from sandgate.contract.session_urls import SessionUrls
from sandgate.contract.trajectory import Json, Trajectory
from sandgate.gateway.config import DATABASES, Config
from sandgate.gateway.engine.api import Engine, KeepsSessions, Labelled, Replaceable, ServesAdapters
from sandgate.gateway.engine.nodes import SameNode
from sandgate.gateway.journal.records import Completed, Delivered, Leased, Record, Rewarded, Sealed
from sandgate.gateway.journal.room import volume
from sandgate.gateway.metrics import GatewayMetrics
from sandgate.gateway.service import auth, sampling
from sandgate.gateway.service.auth import Gate
from sandgate.gateway.service.completion import Completions
from sandgate.gateway.service.leasing import Leasing
from sandgate.gateway.service.prompts import off_loop
from sandgate.gateway.service.rows import as_json
from sandgate.gateway.service.schemas import (
    REWARD_INFO_BYTES_MAX,
    Complete,
    Finalize,
    LeaseBody,
    PushTasks,
    RewardBody,
    SessionBody,
)
from sandgate.gateway.service.session import Session, SessionPhase
from sandgate.gateway.service.session_tree import tree_view
from sandgate.gateway.service.sessions import Sessions
from sandgate.gateway.service.waking import carried_through
from sandgate.gateway.trajectories.credit import REWARD_MAX
from sandgate.gateway.trajectories.linearize import APART, Facts, newest_in_rows

T = TypeVar("T")

AGENT_REWARDS_MAX = 10_000
"""Limit of rewards that a session's own agent may set, one after another: ten for each of a thousand turns."""
LEFT_OUT_SAID = 10
"""Limit of left-out sessions that the status names."""

log = logging.getLogger("sandgate.gateway")


@dataclass(slots=True, repr=False)
class GatewayService:
    """All operations of a gateway. app.py composes it; it is all that the web layer uses."""

    config: Config
    gate: Gate
    sessions: Sessions
    turns: Completions
    engine: Engine
    metrics: GatewayMetrics
    origin: str
    epoch: str
    """Id of this life of the process; event cursors of another life are void."""
    writing: Callable[[], dict[str, Json]] | None = None
    """The state of the files that trajectories are written to; None: trainers lease them."""
    exports: Executor = field(default_factory=lambda: ThreadPoolExecutor(1, "export"))
    """The thread for whole trees, rows and tables: one at a time, and turns do not wait for them."""
    ending: WeakValueDictionary[tuple[str, str], asyncio.Lock] = field(default_factory=WeakValueDictionary)
    """Locks of sessions that are being completed, finalized or aborted, and of (session, id) of rewards that are being
    given."""
    holding: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Turns are being held, or let go."""
    leasing: Leasing = field(init=False)
    begun_at: float | None = field(init=False)
    """Where a life before this one had leases, when this one began: its trainer is silent since then, at least."""

    def __post_init__(self) -> None:
        self.begun_at = self.sessions.now() if self.sessions.book.leases else None
        self.leasing = Leasing(self.sessions, self.metrics, self.record_facts, self.exports)

    async def open(self, spec: SessionBody, key: Key, **more: Json) -> tuple[dict[str, Json], bool]:
        """Opens a session: its SessionHandle, and whether it was created now. `more` is kept in the spec beside what
        the creator may set."""
        if key.job and spec.job and spec.job != key.job:
            raise Forbidden("this key is for another job")
        sampling.job_sampling(spec.sampling)
        members = spec.model_dump(exclude_defaults=False) | more | {APART: True}
        session_id = members.pop("session_id") or f"s-{self.turns.new_id()}"
        members["job"] = members["job"] or key.job or self.config.job
        if members["model"] and members["model"] not in (self.config.model.name, self.config.engine.model):
            raise NotFound(
                f"model {members['model']!r} is not served here; this gateway serves {self.config.model.name!r}"
            )
        session, created = await self.sessions.open(session_id, members)
        return self.handle(session), created

    def handle(self, session: Session) -> dict[str, Json]:
        """The session's SessionHandle. One session always gives the same handle, keys included."""
        urls = SessionUrls.of(self.origin, session.session_id)
        expires = float(int(session.opened_at + self.config.key_ttl_s))
        job = session.spec.get("job", "")
        return {
            "session_id": session.session_id,
            "base_url": urls.base_url,
            "anthropic_base_url": urls.anthropic_base_url,
            "complete_url": urls.complete_url,
            "reward_url": urls.reward_url,
            "api_key": self.gate.session_key(Scope.AGENT, job, session.session_id, expires),
            "reward_key": self.gate.session_key(Scope.REWARD, job, session.session_id, expires),
            "expires_at": expires,
        }

    async def complete(self, session: Session, body: Complete) -> dict[str, Json]:
        """The agent is done. Idempotent: the first call counts. Its reward counts only with reward_source agent."""
        async with self._alone(session):
            if session.phase is SessionPhase.ABORTED:
                raise Gone(f"session {session.session_id} was aborted")
            if session.phase is SessionPhase.OPEN:
                now = self.sessions.now()
                records: list[Record] = [Completed(at=now, info=body.reward_info)]
                if (reward := _own_reward(session, body)) is not None:
                    records.insert(0, Rewarded(at=now, turn=None, reward=reward, info=body.reward_info))
                try:
                    await self.sessions.record(session, *records)
                except JournalUnavailable as error:  # whoever cannot say that it is done may die of it
                    session.call_failed(error, shaped=False)
                    raise
        return {"session_id": session.session_id, "state": session.phase.value}

    @asynccontextmanager
    async def _alone(self, session: Session, reward_id: str = "") -> AsyncIterator[None]:
        """Keeps other endings of this session waiting, or the same reward: the first one counts, and the second sees
        it."""
        name = session.session_id, reward_id
        lock = self.ending.get(name)
        if lock is None:
            lock = self.ending[name] = asyncio.Lock()
        async with lock:
            yield

    async def _seal(self, session: Session, sealed: Sealed) -> None:
        """Cancels the session's calls in flight, then seals it. `closing` is set first, so that nothing is recorded
        behind the seal."""
        session.closing = True
        try:
            await self.turns.registry.cancel(session)
            notes = [
                Delivered(at=sealed.at, turn=turn) for turn in sorted(session.unsure - session.delivered)
            ]
            await self.sessions.record(session, *notes, sealed)
        finally:
            session.closing = False
        outcome = "aborted" if sealed.aborted else sealed.failure_class or "ok"
        if outcome in self.metrics.ended:
            self.metrics.ended[outcome].inc()
        if isinstance(self.engine, KeepsSessions):
            self.engine.ended(session.session_id)

    async def reward(
        self, session: Session, body: RewardBody, *, by_agent: bool = False, by_verifier: bool = False
    ) -> Rewarded:
        """Rewards a turn, or the session. Without an `interaction_id` it is the newest turn, or for its verifier, which
        judges the outcome, the session. `by_agent`: the session's own agent asks, which it can do as often as it likes.
        Returns what was given; with a `reward_id` that was given by before, that, and nothing changes."""
        if body.reward_id is None:
            return await self._reward(session, body, by_agent, by_verifier)
        async with self._alone(session, body.reward_id):
            before = session.given_by(body.reward_id)
            return before or await self._reward(session, body, by_agent, by_verifier)

    async def _reward(
        self, session: Session, body: RewardBody, by_agent: bool, by_verifier: bool
    ) -> Rewarded:
        if session.ended or session.closing:
            raise Gone(f"session {session.session_id} has ended; its rewards are final")
        if by_agent:
            _refuse_too_many_rewards(session, body.reward_info)
        turn = None
        if body.interaction_id is not None:
            turn = re.split("[-_]", body.interaction_id)[-1]  # chatcmpl-, cmpl-, resp_, msg_
            if turn not in session.tree:
                raise InvalidBody(f"interaction_id: no turn {body.interaction_id!r}", field="interaction_id")
        elif not by_verifier:
            turn = _newest_turn(session)
        record = Rewarded(
            at=self.sessions.now(),
            turn=turn,
            reward=body.reward,
            info=body.reward_info,
            reward_id=body.reward_id or "",
        )
        await self.sessions.record(session, record)
        return record

    async def finalize(self, session: Session, body: Finalize) -> dict[str, Json]:
        """Seals the session (calls in flight are cancelled) and returns its trajectories. The first outcome counts."""
        await self.seal(session, body)
        if body.trajectories:
            return await self.trajectories(session)
        session.evict()
        return {"session_id": session.session_id, "state": session.phase.value}

    async def seal(self, session: Session, body: Finalize) -> None:
        """The same without the trajectories."""
        async with self._alone(session):
            if session.phase is SessionPhase.ABORTED:
                raise Gone(f"session {session.session_id} was aborted")
            if not session.ended:
                await self._seal(session, self._sealed(body))

    async def trajectories(self, session: Session) -> dict[str, Json]:
        """The rows of a finalized session as JSON. Raises what `rows` raises."""
        rows = await self.rows(session, as_json)
        return {
            "session_id": session.session_id,
            "state": session.phase.value,
            "trajectories": orjson.Fragment(rows),
        }

    async def rows(self, session: Session, shape: Callable[[Iterable[Trajectory]], T]) -> T:
        """The rows of a finalized session, shaped in a thread; reading changes nothing. Raises Gone if the session was
        aborted, Conflict if it has not ended or its rows are invalid."""
        if session.phase is SessionPhase.ABORTED:
            raise Gone(f"session {session.session_id} was aborted")
        if not session.ended:
            raise Conflict(
                f"session {session.session_id} has not ended: its trajectories are made at its end"
            )
        rows = await self.leasing.rows_of([session], shape)
        if rows.failed:
            raise Conflict(f"session {session.session_id} has no rows: {rows.failed[session.session_id]}")
        session.evict()
        return rows.rows

    def _sealed(self, body: Finalize) -> Sealed:
        outcome = body.outcome
        return Sealed(
            at=self.sessions.now(),
            failure_class=outcome.failure_class if outcome else None,
            failure_reason=outcome.failure_reason if outcome else None,
            detail=outcome.detail if outcome else "",
            complete=outcome.complete if outcome else True,
            reward=body.reward,
            info=body.reward_info,
            discount=body.discount,
            shared_nodes=self.config.shared_nodes,
        )

    async def abort(self, session: Session) -> None:
        """Cancels the session's calls in flight and discards it. Idempotent; a finalized session stays finalized."""
        async with self._alone(session):
            if not session.ended:
                await self._seal(session, Sealed(at=self.sessions.now(), aborted=True, complete=False))
        session.evict()

    def record_facts(self) -> Facts:
        """What is recorded beside every trajectory."""
        codec, engine = self.turns.codec, getattr(self.engine, "facts", None)
        return Facts(
            model=self.config.model.name,
            renderer=codec.name,
            engine=engine.build if engine else self.config.engine.kind.value,
            logprobs_mode=self.config.engine.logprobs_mode,
            tokenizer_digest=codec.tokenizer_digest,
        )

    async def lease(self, body: LeaseBody, key: Key) -> list[Leased]:
        """Leases whole groups to a trainer, oldest first, until the leases end; none if there are none. The id of a
        lease that the trainer has already gives that lease, and those that were made with it, also if it has room for
        fewer by now: they would be nobody's. Who says nothing of `leases` reads one."""
        most = LEASES_MAX if "leases" in body.model_fields_set else 1
        if body.lease_id and (leases := self.leasing.again_several(body.lease_id, most)):
            for member in (name for lease in leases for name in lease.sessions):
                auth.control(key, job=self.sessions.get(member).spec.get("job"))
            return leases
        return await self.leasing.lease_several(
            body.lease_id or self.turns.new_id(),
            body.leases,
            job=body.job or key.job or None,
            max_groups=body.max_groups,
            max_tokens=body.max_tokens,
            ttl_s=body.ttl_s,
            whole_groups=body.whole_groups,
        )

    def of_lease(self, key: Key, lease_id: str) -> None:
        """Raises Forbidden unless the key opens the jobs of a lease. Who made it may be another job's trainer."""
        for job in self.sessions.book.jobs_of(lease_id):
            auth.control(key, job=job)

    def of_leases(self, key: Key, lease_ids: Iterable[str]) -> dict[str, str]:
        """Those of many leases that the key does not open, and why."""
        refused = {}
        for lease_id in lease_ids:
            try:
                self.of_lease(key, lease_id)
            except Forbidden as error:
                refused[lease_id] = f"{error.reason}: {error}"
        return refused

    async def tree(self, session: Session, *, text: bool) -> dict[str, Json]:
        """The session's tree for viewers: turns, parents, fork reasons, spans."""
        snapshot = copy.copy(session)

        def work() -> dict[str, Json]:
            return tree_view(self.sessions.restored(snapshot), self.turns.codec if text else None)

        view = await off_loop(self.exports, work)
        session.refuse_if_retired()  # meanwhile: what was read may be half of it
        return view

    async def events(self, after: int, wait_s: float, job: str = "") -> dict[str, Json]:
        """State changes of sessions after the cursor; waits up to `wait_s` for the first."""
        log = self.sessions
        if after > log.cursor or 0 < after < log.first_cursor:
            return {"events": [], "cursor": log.cursor, "epoch": self.epoch, "reset": True}
        try:
            async with asyncio.timeout(wait_s):
                while log.cursor <= after and not self.turns.load.draining:
                    await log.changed.wait()
        except TimeoutError:
            pass
        reset = bool(log.events) and 0 < after < log.events[0].cursor - 1
        events = [
            {"cursor": event.cursor, "session_id": event.session_id, "state": event.state}
            for event in log.events
            if event.cursor > after and (not job or event.job == job)
        ]
        return {"events": events, "cursor": log.cursor, "epoch": self.epoch, "reset": reset}

    async def set_engines(self, urls: tuple[str, ...], nodes: Mapping[str, str] | None = None) -> None:
        """Replaces the engine's replicas: first durably, then in fact. `nodes`: URL -> node, where that is known.
        Raises Unsupported where the engine is part of this process."""
        if not isinstance(self.engine, Replaceable):
            raise Unsupported("this gateway's engine cannot be replaced while it runs")
        await self.sessions.set_engines(urls)
        self.turns.nodes.told(nodes or {})
        here = [url for url in urls if self.turns.nodes.same(url) is SameNode.TRUE]
        await self.engine.set_urls(urls, here)

    async def push_tasks(self, body: PushTasks, key: Key) -> dict[str, Json]:
        """Adds tasks to the job's queue; they are durable when this returns. Raises what TaskQueue.push raises."""
        job = body.job or key.job or self.config.job
        self._only_job(job)
        tasks = [(task.uid, task.prompt, task.data) for task in body.tasks]
        finished = await self.sessions.push(tasks, job=job, last=body.last)
        queue = self.sessions.tasks
        return {
            "held": len(queue.held),
            "cursor": queue.pushed,
            "last": queue.ended,
            "finished": list(finished),
        }

    async def tasks(self, after: int, wait_s: float) -> dict[str, Json]:
        """A page of the queue beyond number `after`; waits up to `wait_s` for the first task, or for the queue's
        end."""
        queue = self.sessions.tasks
        try:
            async with asyncio.timeout(wait_s):
                while queue.pushed <= after and not queue.ended and not self.turns.load.draining:
                    await self.sessions.changed.wait()
        except TimeoutError:
            pass
        rows, last = queue.after(after)
        return {
            "tasks": [
                {"number": row.number, "uid": row.uid, "prompt": row.prompt, "data": row.data} for row in rows
            ],
            "cursor": rows[-1].number if rows else after,
            "last": last,
        }

    async def forget_tasks(self, upto: int) -> dict[str, Json]:
        """Tasks up to this number are finished. Idempotent."""
        await self.sessions.forget_tasks(upto)
        return {"held": len(self.sessions.tasks.held), "forgotten": self.sessions.tasks.forgotten}

    def _only_job(self, job: str) -> None:
        if job and self.config.job and job != self.config.job:
            raise NotFound(f"this gateway has no job {job!r}; it serves {self.config.job!r}")

    async def pause(self, update: str = "") -> None:
        """Holds turns that have not reached the engine, through a restart too. A caller that goes away ends neither
        this nor `resume`; one comes after the other, so what was asked for last stands, in the journal and here.
        `update`: the weight update that begins by this; one whose name is less is refused from now on, through a
        restart too. Raises Conflict for such a one."""
        self.sessions.process.refuse_older(update)
        self.turns.admission.pause()
        await carried_through(self._hold, update)

    async def _hold(self, update: str) -> None:
        async with self.holding:
            self.sessions.process.refuse_older(update)
            self.turns.admission.pause()  # what was asked for before may have let them go meanwhile
            try:
                await self.sessions.set_paused(True, update)
            except BaseException:
                if not self.sessions.process.paused:
                    self.turns.admission.resume()
                raise

    async def resume(self, update: str = "") -> None:
        """Lets held turns go on. Raises Conflict (see `pause`)."""
        await carried_through(self._let_go, update)

    async def _let_go(self, update: str) -> None:
        async with self.holding:
            self.sessions.process.refuse_older(update)
            await self.sessions.set_paused(False)
            self.turns.admission.resume()

    async def set_version(
        self,
        version: int,
        labelled: bool | None = None,
        adapter: str = "",
        *,
        if_untold: bool = False,
        update: str = "",
    ) -> None:
        """Sets the policy version to what the trainer says its weights are. Returns when that is durable and the
        engines were checked: an engine whose label has no version, and should have one, is not used. `adapter`: the
        version is that of a LoRA adapter, which the engines serve under this name; one that does not is not used.
        `if_untold`: nothing changes if a version was told before. Raises Unsupported where engines load no adapters
        while they run, Conflict for an `update` that is not the last (see `pause`)."""
        self.sessions.process.refuse_older(update)
        if adapter and not (isinstance(self.engine, ServesAdapters) and self.engine.serves_adapters):
            raise Unsupported(
                f"engines of kind {self.config.engine.kind} are given no LoRA adapters here: vLLM alone loads them by"
                " name while it runs. Publish merged weights",
                field="adapter",
            )
        await self.sessions.set_version(version, labelled, adapter, if_untold=if_untold)
        if isinstance(self.engine, Labelled):
            await self.engine.version_told()
            await self.sessions.keep_labels()

    def health(self) -> tuple[int, dict[str, Json]]:
        """The answer of /healthz: 200 or 503, and its body. Healthy = alive, and able to make turns durable."""
        store = self.sessions.store.status()
        return (200 if store.healthy else 503), {"healthy": store.healthy, "detail": store.detail}

    def readiness(self) -> tuple[bool, str]:
        """Whether sessions may be sent to this process, and why not. Without an engine it takes no turns; it is ready
        all the same where its settings say to wait for one."""
        if self.turns.load.draining:
            return False, "draining"
        store = self.sessions.store.status()
        if not store.healthy:
            return False, f"journal: {store.detail}"
        engines = self.engine.status()
        if not any(engine.healthy for engine in engines):
            detail = engines[0].detail if engines else "none is known yet"
            return self.config.engine.wait, f"no engine answers: {detail}"
        return True, ""

    def measure(self) -> None:
        """Refreshes the gauges before a scrape."""
        self.metrics.in_flight.set(self.turns.load.in_flight)
        self.metrics.sessions.set(self.sessions.open_count)
        self.metrics.version.set(self.sessions.process.version)
        engines = self.engine.status()
        self.metrics.engines.set(len(engines))
        self.metrics.engines_up.set(sum(engine.healthy for engine in engines))
        self.metrics.unlabelled.set(sum(engine.unlabelled for engine in engines))
        self.metrics.paused.set(self.turns.load.paused)
        now, heard = self.sessions.now(), self.gate.trainer_seen_at or self.begun_at
        self.metrics.trainer_s.set(math.nan if heard is None else max(0.0, now - heard))
        owed, leased = self.sessions.book.standing(self.sessions.by_leases())
        self.metrics.owed.set(owed)
        self.metrics.leased.set(leased)
        self.metrics.healthy.set(self.sessions.store.status().healthy)
        elsewhere = self.config.journal.startswith(DATABASES)
        free, size = (math.nan, math.nan) if elsewhere else volume(Path(self.config.journal))
        self.metrics.free.set(free)
        self.metrics.size.set(size)

    def _adapters_in_use(self) -> list[Json]:
        """Names of LoRA adapters that generations in flight are sampled by."""
        return sorted(self.engine.adapters_in_use()) if isinstance(self.engine, ServesAdapters) else []

    def status(self) -> dict[str, Json]:
        """Load, pause, versions, journal, engines."""
        store = self.sessions.store.status()
        owed, leased = self.sessions.book.standing(self.sessions.by_leases())
        return {
            "epoch": self.epoch,
            "model": self.config.model.name,
            "renderer": self.turns.codec.name,
            "in_flight": self.turns.load.in_flight,
            "sessions_open": self.sessions.open_count,
            "sessions": len(self.sessions.live),
            "paused": self.turns.load.paused,
            "update": self.sessions.process.update,
            "draining": self.turns.load.draining,
            "policy_version": self.sessions.process.version,
            "version_told": self.sessions.process.version_told,
            "adapter": served.name if (served := self.sessions.process.adapter) else "",
            "adapters": self._adapters_in_use(),
            "labelled": self.sessions.labels.known,
            "newest_label": self.sessions.newest_label(),
            "trainer_seen_at": self.gate.trainer_seen_at,
            "trainer_age_s": self.gate.trainer_age_s,
            "groups": {"owed": owed, "leased": leased},
            "tasks": {"held": len(self.sessions.tasks.held), "last": self.sessions.tasks.ended},
            "max_model_len": self.turns.window,
            "journal": {
                "healthy": store.healthy,
                "detail": store.detail,
                "records": store.records,
                "cut": store.cut,
            },
            "output": self.writing() if self.writing else None,
            "left_out": dict(islice(self.leasing.left_out.items(), LEFT_OUT_SAID)),
            "engines": [
                {
                    "url": engine.url,
                    "healthy": engine.healthy,
                    "in_flight": engine.in_flight,
                    "detail": engine.detail,
                    "unlabelled": engine.unlabelled,
                    "node": self.turns.nodes.of.get(engine.url, ""),
                }
                for engine in self.engine.status()
            ],
        }


def _refuse_too_many_rewards(session: Session, info: dict[str, Json]) -> None:
    """Raises LimitReached where a session's agent has set too many rewards, or too large ones: all of them are kept."""
    if len(session.rewards) >= AGENT_REWARDS_MAX:
        raise LimitReached("rewards", used=len(session.rewards), limit=AGENT_REWARDS_MAX)
    if info:
        used = sum(len(orjson.dumps(reward.info)) for reward in session.rewards if reward.info)
        if used + len(orjson.dumps(info)) > REWARD_INFO_BYTES_MAX:
            raise LimitReached("reward_info", used=used, limit=REWARD_INFO_BYTES_MAX)


def _newest_turn(session: Session) -> str | None:
    """The newest turn that its agent was sent, not what it threw away before (`newest_in_rows`): a reward of one that
    was never delivered, as of a call that it gave up, would be in no row. None if there is none yet: the session's."""
    sent = session.delivered | session.unsure
    cut = session.spec.get("cut_turns", CutTurns.TRAIN)
    turn = newest_in_rows(session.tree.turns, sent, session.partly, cut)
    return turn.id if turn is not None else None


def _own_reward(session: Session, body: Complete) -> float | None:
    """The reward that an agent gives itself by /complete, where the job lets it. Raises InvalidBody if it is no
    number."""
    reward = body.reward_info.get("reward")
    if session.spec.get("reward_source") != "agent" or reward is None:
        return None
    if isinstance(reward, bool) or not isinstance(reward, int | float) or not abs(reward) <= REWARD_MAX:
        raise InvalidBody(
            "reward_info.reward: must be a number that float32 holds", field="reward_info.reward"
        )
    return float(reward)
