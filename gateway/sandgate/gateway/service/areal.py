"""AReaL's proxy endpoints behind HTTP: granted capacity, sessions with a trainer's own keys, rewards, export.

A session of AReaL's is a session whose spec says `areal`. Its agent rewards itself with its own key, may ask for any
model, and may have been given a key of the trainer's choosing. The session is committed when it is exported.
"""

from __future__ import annotations

import asyncio
import copy
import hmac
import re
from dataclasses import dataclass, field

from sandgate.contract.choices import CutTurns
from sandgate.contract.errors import BadRequest, Conflict, Gone, InvalidBody, Overloaded, Unauthorized
from sandgate.contract.keys import Key, Scope
from sandgate.contract.trajectory import Json
from sandgate.gateway.service.auth import digest
from sandgate.gateway.service.gateway_service import GatewayService
from sandgate.gateway.service.prompts import off_loop
from sandgate.gateway.service.schemas import Finalize, RewardBody, SessionBody
from sandgate.gateway.service.session import Session, SessionPhase
from sandgate.gateway.service.waking import carried_through
from sandgate.gateway.trajectories.interactions import Interaction, check, in_order, interactions

STALE_S = 3600.0
"""Seconds without a change after which a session has lost its client (a failed agent is ended, never exported). The
value is AReaL's own."""
SWEEP_S = 60.0
"""Seconds between two searches for such sessions. The value is AReaL's own."""
NAME_CHARS = 64
"""So many characters of a task id stand in the names of its sessions."""


@dataclass(slots=True)
class Areal:
    """AReaL's sessions of one process, beside `core`."""

    core: GatewayService
    swept_at: float = 0.0
    binding: set[bytes] = field(default_factory=set)
    """Digests of given keys whose sessions are being opened."""

    def __post_init__(self) -> None:
        for session in self.core.sessions.live.values():  # in order of opening: a key's newest session has it
            if not session.ended and (given := session.spec.get("areal", {}).get("key")):
                self._bind(session, bytes.fromhex(given))

    def admin(self, text: str) -> Key | None:
        """An admin's key, if `text` is the key that an AReaL trainer was configured with; else None."""
        own = self.core.config.areal_admin_key
        if own and hmac.compare_digest(own.encode(), text.encode("utf-8", "surrogatepass")):
            return Key(Scope.ADMIN)
        return None

    async def grant(self) -> int:
        """Lets one more session start, up to as many as can be open at once. Returns how many may start now."""
        if self.core.sessions.process.capacity < self.core.config.limits.sessions:
            await self.core.sessions.change_capacity(1)
        return self.core.sessions.process.capacity

    async def start(self, task_id: str, given: str, key: Key) -> dict[str, Json]:
        """Opens a session for the task. Its key is `given`, else a new one. Raises Overloaded where no granted capacity
        is left, Conflict where the given key is an active session's, BadRequest where it is no session's key."""
        await self._sweep()
        sessions = self.core.sessions
        if sessions.process.capacity < 1:
            raise Overloaded("no capacity is granted for another session", retry_after=1.0)
        name = digest(given) if given else b""
        if given:
            self._refuse_held(given, name)
        taking, taken = sessions.change_capacity(-1), False

        async def take() -> None:
            nonlocal taken
            await taking
            taken = True

        self.binding.add(name)
        try:
            await carried_through(
                take
            )  # also if cancelled: then it is known whether there is one to give back
            handle = await self._open(task_id, name, key)
        except BaseException:
            if taken:
                await sessions.change_capacity(1)
            raise
        finally:
            self.binding.discard(name)
        return {"session_id": handle["session_id"], "api_key": given or handle["api_key"]}

    async def _open(self, task_id: str, name: bytes, key: Key) -> dict[str, Json]:
        slug = re.sub(r"[^A-Za-z0-9]+", "-", task_id)[:NAME_CHARS].strip("-") or "task"
        spec = SessionBody(
            session_id=f"{slug}-{self.core.turns.new_id()}",
            reward_source="agent",
            metadata={"task_id": task_id},
        )
        handle, _ = await self.core.open(spec, key, areal={"key": name.hex()})
        if name:
            self._bind(self.core.sessions.get(handle["session_id"]), name)
        return handle

    def _bind(self, session: Session, name: bytes) -> None:
        expires = float(int(session.opened_at + self.core.config.key_ttl_s))
        job = session.spec.get("job", "")
        self.core.gate.bind(name, Key(Scope.AGENT, job, session.session_id, expires))

    def _refuse_held(self, given: str, name: bytes) -> None:
        if self.admin(given) is not None:
            raise BadRequest("api_key: the admin key is no session's", field="api_key")
        if name in self.binding:
            raise Conflict("api_key: a session with it is being started")
        try:
            holder = self.core.gate.read(given)
        except Unauthorized:
            return
        if holder.scope is not Scope.AGENT:
            raise BadRequest(f"api_key: a key of scope {holder.scope.value} is no session's", field="api_key")
        session = self.core.sessions.live.get(holder.session)
        if session is not None and session.phase is SessionPhase.OPEN:
            raise Conflict(f"api_key: it is session {session.session_id}'s, which is active")

    async def _sweep(self) -> None:
        """Aborts sessions whose clients are gone. By a clock that is not set, and stands still while the machine
        sleeps, as agents do: else all of them would be gone at once."""
        now = self.core.sessions.by_leases()
        if now - self.swept_at < SWEEP_S:
            return
        self.swept_at = now
        for session in list(self.core.sessions.live.values()):
            stale = now - session.heard_at > STALE_S and not session.in_flight
            if stale and not session.ended and "areal" in session.spec:
                await self.core.abort(session)
                self.core.gate.unbind(session.session_id)

    async def reward(self, session: Session, reward: float, interaction_id: str | None) -> None:
        """Rewards the interaction, or the last one. Raises Gone; InvalidBody if there is no such interaction. AReaL's
        body has no id of its own: a reward without `interaction_id` that is sent again is of what is last by then."""
        if interaction_id is None and not session.ended:
            if not session.turns:
                raise InvalidBody("no interactions in this session", field="interaction_id")
            interaction_id = in_order(session.tree.turns)[-1].id
        body = RewardBody(reward=reward, interaction_id=interaction_id)
        await self.core.reward(session, body, by_agent=True)

    async def wait_ended(self, session: Session, timeout_s: float) -> None:
        """Waits until the session's agent ended it. Raises TimeoutError; Draining when this process ends before."""
        async with asyncio.timeout(timeout_s):
            while session.phase is SessionPhase.OPEN:
                self.core.turns.admission.refuse_if_draining()
                await self.core.sessions.changed.wait()

    async def export(self, session: Session, discount: float, style: str) -> list[Interaction]:
        """The interactions of a session that its agent ended. Seals the session, then commits it. A repeated call gives
        the same until the session is retired.

        Raises Gone if the session was aborted; what `check` raises, before anything is changed; what `interactions`
        raises.
        """
        check(discount, style)
        if session.phase is SessionPhase.ABORTED:
            raise Gone(f"session {session.session_id} was aborted")
        await self.core.finalize(session, Finalize(discount=discount, trajectories=False))
        snapshot = copy.copy(session)

        def work() -> list[Interaction]:
            whole = self.core.sessions.restored(snapshot)
            return interactions(
                whole.tree.turns,
                delivered=whole.delivered,
                partly=whole.partly,
                rewarded=whole.rewards,
                reward=whole.sealed.reward if whole.sealed else None,
                discount=discount,
                style=style,
                cut=whole.spec.get("cut_turns", CutTurns.TRAIN),
            )

        exported = await off_loop(self.core.exports, work)
        session.refuse_if_retired()  # meanwhile: what was read may be half of it
        if "areal" in session.spec:
            await self.core.leasing.hand_over(session, self.core.turns.new_id())
            self.core.gate.unbind(session.session_id)
        return exported
