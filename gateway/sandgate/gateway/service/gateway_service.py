"""What the endpoints do, in no HTTP terms: open, complete, reward, seal, look, pause. One per process."""

from __future__ import annotations

import asyncio
import copy
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import islice
from typing import TypeVar
from weakref import WeakValueDictionary

import orjson

from sandgate.contract.errors import (
    Conflict,
    Forbidden,
    Gone,
    InvalidBody,
    LimitReached,
    NotFound,
    Unsupported,
)
from sandgate.contract.keys import Key, Scope
from sandgate.contract.trajectory import Json, Trajectory
from sandgate.gateway.config import Config
from sandgate.gateway.engine.api import Engine, Labelled, Replaceable
from sandgate.gateway.journal.records import Completed, Delivered, Leased, Record, Rewarded, Sealed
from sandgate.gateway.metrics import GatewayMetrics
from sandgate.gateway.service import auth, sampling
from sandgate.gateway.service.auth import Gate
from sandgate.gateway.service.completion import Completions
from sandgate.gateway.service.prompts import off_loop
from sandgate.gateway.service.rows import Rows, as_json, shaped
from sandgate.gateway.service.schemas import (
    REWARD_INFO_BYTES_MAX,
    CloseGroupBody,
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
from sandgate.gateway.trajectories.credit import REWARD_MAX
from sandgate.gateway.trajectories.linearize import APART, Facts

T = TypeVar("T")

AGENT_REWARDS_MAX = 10_000
"""Rewards that a session's own agent may set, one after another: ten for each of a thousand turns."""
LEFT_OUT_SAID = 10
"""Sessions that the status names."""

log = logging.getLogger("sandgate.gateway")


@dataclass(slots=True, repr=False)
class GatewayService:
    """Composed by app.py; the web layer knows nothing else."""

    config: Config
    gate: Gate
    sessions: Sessions
    turns: Completions
    engine: Engine
    metrics: GatewayMetrics
    origin: str
    epoch: str
    """Of this life of the process; event cursors of another life are void."""
    writing: Callable[[], dict[str, Json]] | None = None
    """What to say of files that trajectories are written to; None: trainers lease them."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Session -> why a trainer is not given its rows."""
    exports: Executor = field(default_factory=lambda: ThreadPoolExecutor(1, "export"))
    """For whole trees, rows and tables: one at a time, and turns do not wait for them."""
    ending: WeakValueDictionary[str, asyncio.Lock] = field(default_factory=WeakValueDictionary)
    """Sessions that are being completed, finalized or aborted; whoever does or waits holds the lock."""

    async def open(self, spec: SessionBody, key: Key, **more: Json) -> tuple[dict[str, Json], bool]:
        """SessionHandle and whether it was created now. `more`: kept in the spec beside what its creator may say."""
        if key.job and spec.job and spec.job != key.job:
            raise Forbidden("this key is for another job")
        sampling.job_sampling(spec.sampling)
        said = spec.model_dump(exclude_defaults=False) | more | {APART: True}
        session_id = said.pop("session_id") or f"s-{self.turns.new_id()}"
        said["job"] = said["job"] or key.job or self.config.job
        if said["model"] and said["model"] not in (self.config.model.name, self.config.engine.model):
            raise NotFound(
                f"model {said['model']!r} is not served here; this gateway serves {self.config.model.name!r}"
            )
        session, created = await self.sessions.open(session_id, said)
        return self.handle(session), created

    def handle(self, session: Session) -> dict[str, Json]:
        """The same session gives the same handle, keys included."""
        base = f"{self.origin}/sessions/{session.session_id}"
        expires = float(int(session.opened_at + self.config.key_ttl_s))
        job = session.spec.get("job", "")
        return {
            "session_id": session.session_id,
            "base_url": f"{base}/v1",
            "anthropic_base_url": base,
            "complete_url": f"{base}/complete",
            "reward_url": f"{self.origin}/v1/sessions/{session.session_id}/reward",
            "api_key": self.gate.session_key(Scope.AGENT, job, session.session_id, expires),
            "reward_key": self.gate.session_key(Scope.REWARD, job, session.session_id, expires),
            "expires_at": expires,
        }

    async def complete(self, session: Session, body: Complete) -> dict[str, Json]:
        """The agent is done. Idempotent: the first one stands. Its reward counts only with reward_source agent."""
        async with self._alone(session):
            if session.phase is SessionPhase.ABORTED:
                raise Gone(f"session {session.session_id} was aborted")
            if session.phase is SessionPhase.OPEN:
                now = self.sessions.now()
                records: list[Record] = [Completed(at=now, info=body.reward_info)]
                if (reward := _own_reward(session, body)) is not None:
                    records.insert(0, Rewarded(at=now, turn=None, reward=reward, info=body.reward_info))
                await self.sessions.record(session, *records)
        return {"session_id": session.session_id, "state": session.phase.value}

    @asynccontextmanager
    async def _alone(self, session: Session) -> AsyncIterator[None]:
        """No other ending of this session meanwhile: the first one stands, the second sees it."""
        lock = self.ending.get(session.session_id)
        if lock is None:
            lock = self.ending[session.session_id] = asyncio.Lock()
        async with lock:
            yield

    async def _seal(self, session: Session, sealed: Sealed) -> None:
        """Cancel what is in flight, then end it. Reserved first: nothing is recorded behind a seal."""
        session.closing = True
        try:
            await self.turns.cancel(session)
            notes = [
                Delivered(at=sealed.at, turn=turn) for turn in sorted(session.unsure - session.delivered)
            ]
            await self.sessions.record(session, *notes, sealed)
        finally:
            session.closing = False

    async def reward(self, session: Session, body: RewardBody, *, by_agent: bool = False) -> str | None:
        """Reward a turn; returns its id (None = whichever is last when the session ends). `by_agent`: by the session's
        own agent, who can ask for this as often as it likes."""
        if session.ended or session.closing:
            raise Gone(f"session {session.session_id} has ended; its rewards are final")
        if by_agent:
            _refuse_chatter(session, body.reward_info)
        turn = None
        if body.interaction_id is not None:
            turn = body.interaction_id.rpartition("-")[2]
            if turn not in session.tree:
                raise InvalidBody(f"interaction_id: no turn {body.interaction_id!r}", field="interaction_id")
        elif session.turns:
            turn = session.tree.turns[-1].id
        record = Rewarded(at=self.sessions.now(), turn=turn, reward=body.reward, info=body.reward_info)
        await self.sessions.record(session, record)
        return turn

    async def finalize(self, session: Session, body: Finalize) -> dict[str, Json]:
        """Seal it (stragglers are cancelled) and give its trajectories. The first outcome stands."""
        async with self._alone(session):
            if session.phase is SessionPhase.ABORTED:
                raise Gone(f"session {session.session_id} was aborted")
            if not session.ended:
                await self._seal(session, self._sealed(body))
        if body.trajectories:
            return await self.trajectories(session)
        session.evict()
        return {"session_id": session.session_id, "state": session.phase.value}

    async def trajectories(self, session: Session) -> dict[str, Json]:
        """The rows of a finalized session; reading changes nothing. Raises Gone if it was aborted, Conflict if it has
        not ended or has no rows that can be given."""
        if session.phase is SessionPhase.ABORTED:
            raise Gone(f"session {session.session_id} was aborted")
        if not session.ended:
            raise Conflict(
                f"session {session.session_id} has not ended: its trajectories are made at its end"
            )
        rows = await self._rows([session], as_json)
        if rows.failed:
            raise Conflict(f"session {session.session_id} has no rows: {rows.failed[session.session_id]}")
        session.evict()
        return {
            "session_id": session.session_id,
            "state": session.phase.value,
            "trajectories": orjson.Fragment(rows.rows),
        }

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
        """Cancel what is in flight and discard. Idempotent; a finalized session stays finalized."""
        async with self._alone(session):
            if not session.ended:
                await self._seal(session, Sealed(at=self.sessions.now(), aborted=True, complete=False))
        session.evict()

    async def leased_rows(self, record: Leased | None, shape: Callable[[Iterable[Trajectory]], T]) -> Rows[T]:
        """The trajectories of a lease, by group, sample and trajectory id, as `shape` gives them."""
        return await self._rows([self.sessions.get(one) for one in record.sessions] if record else [], shape)

    async def _rows(self, sessions: list[Session], shape: Callable[[Iterable[Trajectory]], T]) -> Rows[T]:
        """Trajectories of ended sessions, made and shaped in a thread: whole trees may have to be read back from the
        journal. A session that cannot be shaped is named, and left out."""
        facts = self.record_facts()
        still = [copy.copy(one) for one in sessions]  # one may be evicted meanwhile

        def work() -> Rows[T]:
            return shaped(still, lambda one: self.sessions.trajectories(one, facts), shape)

        found = await off_loop(self.exports, work)
        for session_id, why in found.failed.items():
            if session_id not in self.left_out:
                log.error("session %s is left out of what trainers are given: %s", session_id, why)
                self.metrics.left_out.inc()
                self.left_out[session_id] = why
        return found

    def record_facts(self) -> Facts:
        """What is recorded beside every trajectory."""
        codec, engine = self.turns.codec, getattr(self.engine, "facts", None)
        return Facts(
            model=self.config.model.name,
            renderer=codec.name,
            engine=f"{engine.name} {engine.version}".strip() if engine else self.config.engine.kind.value,
            logprobs_mode=self.config.engine.logprobs_mode,
            tokenizer_digest=codec.tokenizer_digest,
        )

    async def lease(self, body: LeaseBody, key: Key) -> Leased | None:
        """Whole groups for a trainer, oldest first, durably its own until then; None if there are none. With the id
        of a lease that it has already: that one."""
        if body.lease_id and (known := self.sessions.book.again(body.lease_id, self.sessions.now())):
            for one in known.sessions:
                auth.control(key, job=self.sessions.get(one).spec.get("job"))
            return Leased(
                at=self.sessions.now(), lease=known.lease, sessions=known.sessions, until=known.until
            )
        record = self.sessions.book.lease(
            body.lease_id or self.turns.new_id(),
            self.sessions.now(),
            ttl_s=body.ttl_s,
            size=lambda session_id: self.sessions.get(session_id).tokens,
            job=body.job or key.job or None,
            max_groups=body.max_groups,
            max_tokens=body.max_tokens,
            whole_groups=body.whole_groups,
        )
        await self.sessions.settle(record)
        return record

    async def renew(self, lease: str, ttl_s: float) -> dict[str, Json]:
        """The trainer still works on it: it is its own that much longer, durably."""
        record = self.sessions.book.renew(lease, self.sessions.now(), ttl_s=ttl_s)
        await self.sessions.settle(record)
        if record is None:
            return {"lease_id": lease, "state": "acked", "until": None}
        return {"lease_id": lease, "state": "leased", "until": record.until}

    async def ack(self, lease: str) -> dict[str, Json]:
        """The trainer has it for good. Idempotent."""
        await self.sessions.settle(self.sessions.book.ack(lease, self.sessions.now()))
        return {"lease_id": lease, "state": "acked"}

    async def hand_over(self, session: Session) -> None:
        """The trainer was given this ended session otherwise: acknowledged, as by a lease of its own. Idempotent."""
        if not self.sessions.committed(session):
            lease, now = self.turns.new_id(), self.sessions.now()
            mine = Leased(at=now, lease=lease, sessions=(session.session_id,), until=now)
            await self.sessions.settle(mine)
            await self.ack(lease)

    async def nack(self, lease: str) -> dict[str, Json]:
        """The trainer gives it back. Idempotent."""
        await self.sessions.settle(self.sessions.book.nack(lease, self.sessions.now()))
        return {"lease_id": lease, "state": "nacked"}

    async def close_group(self, body: CloseGroupBody, key: Key) -> dict[str, Json]:
        """No more sessions count for this task: what is sealed and good now is its group. Idempotent."""
        job = body.job or key.job or self.config.job
        await self.sessions.settle(self.sessions.book.close(job, body.uid, self.sessions.now()))
        return {"job": job, "uid": body.uid, "state": "closed"}

    async def tree(self, session: Session, *, text: bool) -> dict[str, Json]:
        """For viewers: turns, parents, fork reasons, spans."""
        still = copy.copy(session)

        def work() -> dict[str, Json]:
            return tree_view(self.sessions.restored(still), self.turns.codec if text else None)

        return await off_loop(self.exports, work)

    async def events(self, after: int, wait_s: float, job: str = "") -> dict[str, Json]:
        """State changes after the cursor, waiting up to `wait_s` for the first."""
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
        found = [
            {"cursor": event.cursor, "session_id": event.session_id, "state": event.state}
            for event in log.events
            if event.cursor > after and (not job or event.job == job)
        ]
        return {"events": found, "cursor": log.cursor, "epoch": self.epoch, "reset": reset}

    async def set_engines(self, urls: tuple[str, ...]) -> None:
        """These replicas from now on: durable, then so. Raises Unsupported where the engine is part of this process."""
        if not isinstance(self.engine, Replaceable):
            raise Unsupported("this gateway's engine cannot be replaced while it runs")
        await self.sessions.set_engines(urls)
        await self.engine.set_urls(urls)

    async def push_tasks(self, body: PushTasks, key: Key) -> dict[str, Json]:
        """To the job's queue: durable when this returns. Raises what TaskQueue.push raises."""
        self._only_job(body.job or key.job)
        tasks = [(task.uid, task.prompt, task.data) for task in body.tasks]
        await self.sessions.push(tasks, last=body.last)
        queue = self.sessions.tasks
        return {"held": len(queue.held), "cursor": queue.pushed, "last": queue.ended}

    async def tasks(self, after: int, wait_s: float) -> dict[str, Json]:
        """A page of the queue beyond number `after`, waiting up to `wait_s` for the first, or for the end."""
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

    async def pause(self) -> None:
        """Hold turns that have not reached the engine, through a restart too."""
        self.turns.pause()
        try:
            await self.sessions.set_paused(True)
        except BaseException:
            if not self.sessions.paused:
                self.turns.resume()
            raise

    async def resume(self) -> None:
        """Let held turns go on."""
        await self.sessions.set_paused(False)
        self.turns.resume()

    async def set_version(self, version: int, labelled: bool | None = None) -> None:
        """Never backwards by accident: the trainer says what its weights are. Returns when it is durable and engines
        were looked at: one whose label has no version, and should have one, is not used."""
        await self.sessions.set_version(version, labelled)
        if isinstance(self.engine, Labelled):
            await self.engine.version_told()
            await self.sessions.keep_labels()

    def health(self) -> tuple[int, dict[str, Json]]:
        """Alive, and able to make turns durable: (200 or 503, what /healthz says)."""
        store = self.sessions.store.status()
        return (200 if store.healthy else 503), {"healthy": store.healthy, "detail": store.detail}

    def readiness(self) -> tuple[bool, str]:
        """Is this process to be sent sessions, and what it has to say. Without an engine it takes no turns; it is ready
        all the same where it was told to wait for one."""
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
        """Refresh gauges before a scrape."""
        self.metrics.in_flight.set(self.turns.load.in_flight)
        self.metrics.sessions.set(self.sessions.open_count)
        self.metrics.version.set(self.sessions.version)
        self.metrics.unlabelled.set(sum(one.unlabelled for one in self.engine.status()))
        self.metrics.healthy.set(self.sessions.store.status().healthy)

    def status(self) -> dict[str, Json]:
        """Load, pause, versions, journal, engines."""
        store = self.sessions.store.status()
        owed, leased = self.sessions.book.standing(self.sessions.now())
        return {
            "epoch": self.epoch,
            "model": self.config.model.name,
            "renderer": self.turns.codec.name,
            "in_flight": self.turns.load.in_flight,
            "sessions_open": self.sessions.open_count,
            "sessions": len(self.sessions.live),
            "paused": self.turns.load.paused,
            "draining": self.turns.load.draining,
            "policy_version": self.sessions.version,
            "labelled": self.sessions.labels.known,
            "trainer_seen_at": self.gate.trainer_seen_at,
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
            "left_out": dict(islice(self.left_out.items(), LEFT_OUT_SAID)),
            "engines": [
                {"url": one.url, "healthy": one.healthy, "in_flight": one.in_flight, "detail": one.detail}
                for one in self.engine.status()
            ],
        }


def _refuse_chatter(session: Session, info: dict[str, Json]) -> None:
    """Raises LimitReached: an agent's rewards are kept, so all of them are bounded as each is."""
    if len(session.rewards) >= AGENT_REWARDS_MAX:
        raise LimitReached("rewards", used=len(session.rewards), limit=AGENT_REWARDS_MAX)
    if info:
        used = sum(len(orjson.dumps(one.info)) for one in session.rewards if one.info)
        if used + len(orjson.dumps(info)) > REWARD_INFO_BYTES_MAX:
            raise LimitReached("reward_info", used=used, limit=REWARD_INFO_BYTES_MAX)


def _own_reward(session: Session, body: Complete) -> float | None:
    """What the agent gives itself by /complete, where the job lets it. Raises InvalidBody if it is no number."""
    said = body.reward_info.get("reward")
    if session.spec.get("reward_source") != "agent" or said is None:
        return None
    if isinstance(said, bool) or not isinstance(said, int | float) or not abs(said) <= REWARD_MAX:
        raise InvalidBody(
            "reward_info.reward: must be a number that float32 holds", field="reward_info.reward"
        )
    return float(said)
