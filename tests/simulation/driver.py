"""Who drives sessions, trains on them and changes weights: all over the control API, all with lost answers."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from sandgate.contract.keys import Scope
from tests.simulation.agents import Agent
from tests.simulation.chat import Client, GaveUp, Over
from tests.simulation.network import Cut, Manner
from tests.support.gateway import admin_key

if TYPE_CHECKING:
    from tests.simulation.world import World

JOB = "shop-job"


class Refused(Exception):
    """A definite no."""

    def __init__(self, status: int, said: Any) -> None:
        super().__init__(f"{status} {said}")
        self.status, self.said = status, said


@dataclass(slots=True)
class Control:
    """A client of the control API that asks until it knows."""

    world: World
    rng: Random

    async def call(self, method: str, path: str, body: Any = None, *, tries: int = 200, key: str = "") -> Any:
        """The JSON answer. Raises Refused, or Cut after so many tries."""
        world, rng = self.world, self.rng
        headers = {"authorization": f"Bearer {key or admin_key()}", "content-type": "application/json"}
        raw = json.dumps(body).encode() if body is not None else b""
        last: Exception = AssertionError("no try")
        for attempt in range(tries):
            manner = Manner(patience_s=30.0 if world.chaos else 600.0)
            if world.chaos and rng.random() < world.cuts / 2:
                manner.cut_at = rng.choice((0, 1))
            try:
                heard = await world.network.request(method, path, headers, raw, manner)
            except Cut as cut:
                last = cut
            else:
                said = json.loads(bytes(heard.body) or b"null")
                if heard.status < 300:
                    return said
                last = Refused(heard.status, said)
                if heard.status == 500:
                    world.wrong(f"{method} {path}: 500 {said}")
                if heard.status not in (429, 500, 503):
                    raise last
            await asyncio.sleep(min(3.0, 0.1 * 2**attempt) * rng.random())
        raise last


@dataclass(slots=True)
class Driver:
    """Runs one sample of one task to its end, with new attempts after failures that are nobody's fault."""

    world: World
    rng: Random
    control: Control
    uid: str
    sample: int
    group_size: int

    async def run(self) -> None:
        """At most three attempts; the last one counts whatever happened."""
        for attempt in range(3):
            session = f"{self.uid}.{self.sample}.{attempt}"
            handle = await self._open(session, attempt)
            if handle is None:
                continue
            if self.rng.random() < 0.06:
                doom = asyncio.ensure_future(self._abort_soon(session))
                await self._episode(session, handle)
                await doom
                continue
            crashed = await self._episode(session, handle)
            infra = crashed and attempt < 2
            await self._end(session, handle, infra)
            if not infra:
                return

    async def _open(self, session: str, attempt: int) -> Any:
        spec = {
            "session_id": session,
            "job": JOB,
            "uid": self.uid,
            "sample_index": self.sample,
            "group_size": self.group_size,
            "attempt": attempt,
            "reward_source": "agent" if self.rng.random() < 0.3 else "trainer",
        }
        handle = await self.control.call("POST", "/v1/sessions", spec)
        self.world.say(f"open {session}")
        return handle

    async def _episode(self, session: str, handle: Any) -> bool:
        """True if the agent gave up."""
        rng = Random(self.rng.random())
        client = Client(self.world, rng, session, handle["api_key"], flags=rng.random() < 0.75)
        try:
            await Agent(self.world, rng, client).run()
        except (Over, GaveUp) as error:
            self.world.say(f"agent {session} ends: {error!r}")
            return isinstance(error, GaveUp)
        return False

    async def _abort_soon(self, session: str) -> None:
        await asyncio.sleep(self.rng.choice((0.0, 0.3, 5.0)))
        if self.rng.random() < 0.7:
            await self.world.next(self.rng.choice(("begin", "commit", "told", "sampled")))
        await self.control.call("POST", f"/v1/sessions/{session}/abort")
        self.world.history.aborted.add(session)
        self.world.history.ended[session] = self.world.loop.time()
        self.world.say(f"aborted {session}")

    async def _end(self, session: str, handle: Any, infra: bool) -> None:
        rng, history = self.rng, self.world.history
        if rng.random() < 0.5:
            body = {"reward_info": {"reward": 0.5}}
            await self.control.call("POST", f"/sessions/{session}/complete", body, key=handle["api_key"])
        reward = round(rng.random(), 3)
        if rng.random() < 0.5:
            path = f"/v1/sessions/{session}/reward"
            await self.control.call("POST", path, {"reward": 0.25}, key=handle["reward_key"])
            history.rewarded.add(session)
        outcome = {"failure_class": "infra", "complete": False} if infra else {}
        last: dict[str, Any] = {"outcome": outcome, "reward": reward, "trajectories": rng.random() < 0.5}
        history.finalizing[session] = self.world.loop.time()
        try:
            said = await self.control.call("POST", f"/v1/sessions/{session}/finalize", last)
        except Refused:
            if session not in history.retired:
                raise
            said = {}  # finalized, leased, acked and forgotten before its answer got through
        self.world.say(f"finalized {session}")
        history.finalized.add(session)
        history.ended[session] = self.world.loop.time()
        history.rewards[session] = reward
        if "trajectories" in said:
            history.told_rows(session, said["trajectories"])


@dataclass(slots=True)
class Trainer:
    """Leases, trains, acks; forgets, gives back, and hears no answer now and then."""

    world: World
    rng: Random
    control: Control
    holes: int = 0

    async def run(self) -> None:
        """Until told to stop."""
        while True:
            at_once = 2 if self.rng.random() < 0.3 else 1  # the other one does not know of this one
            found = await asyncio.gather(*(self.once() for _ in range(at_once)))
            if not any(found):
                await asyncio.sleep(self.rng.choice((0.5, 4.0)))

    async def once(self) -> bool:
        """One lease and what becomes of it; False if there was none."""
        rng, world, history = self.rng, self.world, self.world.history
        key = admin_key(Scope.TRAINER, job=JOB)
        body = {
            "job": JOB,
            "max_groups": rng.randint(1, 3),
            "ttl_s": rng.choice((1.0, 10.0, 60.0)) if world.chaos else 300.0,
            "whole_groups": rng.random() < 0.8,
        }
        try:
            said = await self.control.call("POST", "/v1/leases", body, tries=1, key=key)
        except (Cut, Refused):
            return False
        if said["lease_id"] is None:
            return False
        lease, sessions = said["lease_id"], tuple(said["sessions"])
        history.leases.append((lease, world.loop.time(), said["until"], sessions))
        for session in sessions:
            rows = [row for row in said["trajectories"] if row["session_id"] == session]
            history.told_rows(session, rows)
        world.say(f"lease {lease[:6]} of {','.join(sessions)}")
        await asyncio.sleep(rng.choice((0.0, 0.5, 5.0, 15.0)))
        what = rng.choices(("ack", "nack", "forget"), (8, 1, 1) if world.chaos else (1, 0, 0))[0]
        if what == "forget":
            return True
        history.given_back.setdefault(lease, world.loop.time())
        try:
            await self.control.call("POST", f"/v1/leases/{lease}/{what}", tries=30, key=key)
        except (Cut, Refused) as error:
            world.say(f"{what} {lease[:6]} not taken: {error}")
            if isinstance(error, Refused) and error.status not in (404, 409):
                world.wrong(f"{what} of {lease}: {error}")
        else:
            world.say(f"{what} {lease[:6]}")
            if what == "ack":
                history.acked[lease] = sessions
        return True


@dataclass(slots=True)
class Weights:
    """The trainer's other half: now and then the weights change, in any of the engine's three ways."""

    world: World
    rng: Random
    control: Control

    async def run(self) -> None:
        """Until told to stop."""
        while True:
            await asyncio.sleep(self.rng.choice((1.0, 8.0, 30.0)))
            await self.update()

    async def update(self) -> None:
        """One weight update."""
        rng, world, fleet = self.rng, self.world, self.world.fleet
        polite = rng.random() < 0.7
        life = world.life  # that is asked: one that is killed behind its answer takes the pause with it
        if polite:
            await self.control.call("POST", "/v1/pause")
        held = world.loop.time()
        mode = rng.choice(("keep", "abort", "wait"))
        await fleet.pause(mode)
        version = fleet.version + 1
        if rng.random() < 0.5:
            await asyncio.sleep(rng.choice((0.05, 2.0)))
        fleet.update(version)
        world.say(f"weights {version} mode={mode} polite={polite}")
        if rng.random() < 0.5:
            fleet.resume()
        await self.control.call("PUT", "/v1/policy-version", {"version": version})
        world.history.versions[version] = world.loop.time()
        fleet.resume()
        if polite:
            if world.life == life and world.front is not None:
                world.history.pauses.append((held, world.loop.time()))
            await self.control.call("POST", "/v1/resume")
