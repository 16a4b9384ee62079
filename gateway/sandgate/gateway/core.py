"""What the endpoints do, in no HTTP terms: open, complete, reward, seal, look, pause. One per process."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from sandgate.contract.errors import Forbidden, Gone, InvalidBody, NotFound
from sandgate.contract.keys import Key, Scope
from sandgate.contract.trajectory import Json, Trajectory, to_json
from sandgate.gateway import sampling
from sandgate.gateway.config import Config
from sandgate.gateway.engine.api import Engine
from sandgate.gateway.journal.records import Completed, Record, Rewarded, Sealed
from sandgate.gateway.metrics import Metrics
from sandgate.gateway.session import Phase, Session
from sandgate.gateway.sessions import Sessions
from sandgate.gateway.trajectories.linearize import Facts
from sandgate.gateway.trees import trajectories_of, tree_view
from sandgate.gateway.turn import Turns
from sandgate.gateway.web.auth import Gate
from sandgate.gateway.web.shapes import CloseGroup, Complete, Finalize, LeaseBody, RewardBody, SessionSpec


@dataclass(slots=True)
class Core:
    """Composed by app.py; the web layer knows nothing else."""

    config: Config
    gate: Gate
    sessions: Sessions
    turns: Turns
    engine: Engine
    metrics: Metrics
    origin: str
    epoch: str
    """Of this life of the process; event cursors of another life are void."""

    async def open(self, spec: SessionSpec, key: Key) -> tuple[dict[str, Json], bool]:
        """SessionHandle and whether it was created now."""
        if key.job and spec.job and spec.job != key.job:
            raise Forbidden("this key is for another job")
        sampling.job_sampling(spec.sampling)
        said = spec.model_dump(exclude_defaults=False)
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
        if session.phase is Phase.ABORTED:
            raise Gone(f"session {session.session_id} was aborted")
        if session.phase is Phase.OPEN:
            records: list[Any] = [Completed(at=self.sessions.now(), info=body.reward_info)]
            reward = body.reward_info.get("reward")
            if session.spec.get("reward_source") == "agent" and isinstance(reward, int | float):
                shaped = RewardBody(reward=float(reward), reward_info=body.reward_info)
                records.insert(
                    0,
                    Rewarded(at=self.sessions.now(), turn=None, reward=shaped.reward, info=body.reward_info),
                )
            await self.sessions.record(session, *records)
        return {"session_id": session.session_id, "state": session.phase.value}

    async def reward(self, session: Session, body: RewardBody) -> str | None:
        """Reward a turn; returns its id (None = whichever is last when the session ends)."""
        if session.ended:
            raise Gone(f"session {session.session_id} is {session.phase.value}; its rewards are final")
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
        if session.phase is Phase.ABORTED:
            raise Gone(f"session {session.session_id} was aborted")
        if not session.ended:
            await self.turns.cancel(session)
        if not session.ended:
            outcome = body.outcome
            sealed = Sealed(
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
            await self.sessions.record(session, sealed)
        out: dict[str, Json] = {"session_id": session.session_id, "state": session.phase.value}
        if body.trajectories:
            out["trajectories"] = [to_json(one) for one in self.trajectories(session)]
        else:
            session.evict()
        return out

    async def abort(self, session: Session) -> None:
        """Cancel what is in flight and discard. Idempotent; a finalized session stays finalized."""
        await self.turns.cancel(session)
        if not session.ended:
            await self.sessions.record(session, Sealed(at=self.sessions.now(), aborted=True, complete=False))

    def trajectories(self, session: Session) -> list[Trajectory]:
        """One row per leaf of a finalized session; none of an aborted one. The session's tree is then let go: it
        can be read back from the journal."""
        rows = trajectories_of(self.sessions.restored(session), self.record_facts())
        session.evict()
        return rows

    def record_facts(self) -> Facts:
        """What is recorded beside every trajectory."""
        codec, engine = self.turns.codec, getattr(self.engine, "facts", None)
        return Facts(
            model=self.config.model.name,
            renderer=codec.name,
            engine=f"{engine.name} {engine.version}".strip() if engine else self.config.engine.kind,
            logprobs_mode=self.config.engine.logprobs_mode,
            tokenizer_digest=codec.tokenizer_digest,
        )

    async def lease(self, body: LeaseBody, key: Key) -> dict[str, Json]:
        """Whole groups for a trainer, oldest first; an empty lease (`lease_id` null) if there are none."""
        book, now = self.sessions.book, self.sessions.now()
        record = book.lease(
            self.turns.new_id(),
            now,
            ttl_s=body.ttl_s,
            size=lambda session_id: self.sessions.get(session_id).tokens,
            job=body.job or key.job or None,
            max_groups=body.max_groups,
            max_tokens=body.max_tokens,
            whole_groups=body.whole_groups,
        )
        if record is None:
            return {"lease_id": None, "until": now, "trajectories": []}
        await self._settle(record)
        rows = [row for one in record.sessions for row in self.trajectories(self.sessions.get(one))]
        return {
            "lease_id": record.lease,
            "until": record.until,
            "sessions": list(record.sessions),
            "trajectories": [to_json(row) for row in rows],
        }

    async def ack(self, lease: str) -> dict[str, Json]:
        """The trainer has it for good. Idempotent."""
        await self._settle(self.sessions.book.ack(lease, self.sessions.now()))
        return {"lease_id": lease, "state": "acked"}

    async def nack(self, lease: str) -> dict[str, Json]:
        """The trainer gives it back. Idempotent."""
        await self._settle(self.sessions.book.nack(lease, self.sessions.now()))
        return {"lease_id": lease, "state": "nacked"}

    async def close_group(self, body: CloseGroup, key: Key) -> dict[str, Json]:
        """No more sessions count for this task: what is sealed and good now is its group. Idempotent."""
        job = body.job or key.job or self.config.job
        await self._settle(self.sessions.book.close(job, body.uid, self.sessions.now()))
        return {"job": job, "uid": body.uid, "state": "closed"}

    async def _settle(self, record: Record | None) -> None:
        """Durable, then so; undone if it cannot be made durable."""
        if record is None:
            return
        try:
            await self.sessions.store.append("", record)
        except BaseException:
            self.sessions.book.undo(record)
            raise
        self.sessions.book.fold("", record)

    def tree(self, session: Session, *, text: bool) -> dict[str, Json]:
        """For viewers: turns, parents, fork reasons, spans."""
        return tree_view(self.sessions.restored(session), self.turns.codec if text else None)

    async def events(self, after: int, wait_s: float, job: str = "") -> dict[str, Json]:
        """State changes after the cursor, waiting up to `wait_s` for the first."""
        log = self.sessions
        if after > log.cursor:
            return {"events": [], "cursor": log.cursor, "epoch": self.epoch, "reset": True}
        try:
            async with asyncio.timeout(wait_s):
                while log.cursor <= after:
                    await log.changed.wait()
        except TimeoutError:
            pass
        reset = bool(log.events) and log.events[0].cursor > after + 1 and after > 0
        found = [
            {"cursor": event.cursor, "session_id": event.session_id, "state": event.state}
            for event in log.events
            if event.cursor > after and (not job or event.job == job)
        ]
        return {"events": found, "cursor": log.cursor, "epoch": self.epoch, "reset": reset}

    async def set_version(self, version: int) -> None:
        """Never backwards by accident: the trainer says what its weights are."""
        await self.sessions.set_version(version)

    def not_ready(self) -> str:
        """Why this process takes no turns, or nothing."""
        if self.turns.load.draining:
            return "draining"
        store = self.sessions.store.status()
        if not store.healthy:
            return f"journal: {store.detail}"
        engines = self.engine.status()
        if engines and not any(engine.healthy for engine in engines):
            return f"no engine answers: {engines[0].detail}"
        return ""

    def measure(self) -> None:
        """Refresh gauges before a scrape."""
        self.metrics.in_flight.set(self.turns.load.in_flight)
        self.metrics.sessions.set(self.sessions.open_count)
        self.metrics.version.set(self.sessions.version)
        self.metrics.healthy.set(self.sessions.store.status().healthy)

    def status(self) -> dict[str, Json]:
        """Load, pause, versions, journal, engines."""
        store = self.sessions.store.status()
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
            "max_model_len": self.turns.window,
            "journal": {
                "healthy": store.healthy,
                "detail": store.detail,
                "records": store.records,
                "cut": store.cut,
            },
            "engines": [
                {"url": one.url, "healthy": one.healthy, "in_flight": one.in_flight, "detail": one.detail}
                for one in self.engine.status()
            ],
        }
