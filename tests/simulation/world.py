"""One world from one seed: the real gateway core and its web front over a simulated clock, disk, network and engine.

First chaos: kills between any two steps, torn writes, lost answers, full disks, weight updates. Then it heals,
everybody finishes what they were doing, and the checker reads what happened.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import tempfile
from collections.abc import Coroutine, Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from sandgate.contract.errors import JournalUnavailable
from sandgate.gateway.config import Config
from sandgate.gateway.engine.health import PROBE_S
from sandgate.gateway.journal.records import CUT, Record, TurnCommitted
from sandgate.gateway.metrics import GatewayMetrics
from sandgate.gateway.service.auth import Gate
from sandgate.gateway.service.completion import Completions
from sandgate.gateway.service.gateway_service import GatewayService
from sandgate.gateway.service.sessions import Sessions
from sandgate.gateway.web.server import AsgiApp
from tests.simulation import audit
from tests.simulation.disk import SimDisk, SimStore
from tests.simulation.driver import Control, Driver, Refused, Trainer, Weights
from tests.simulation.engine import URLS, WINDOW, Fleet, connect
from tests.simulation.history import NEVER, Group, History, Piece
from tests.simulation.loop import LIFE, InlineExecutor, VirtualLoop
from tests.simulation.network import Network
from tests.simulation.tasks import Dataset, Operator
from tests.simulation.words import Words
from tests.support.gateway import SECRET, codec, config_in

MOMENTS = ("begin", "commit", "told", "sampled")
"""That a kill, or an abort, likes to come close to: a question is read, a commit begins, an answer is out, an engine is
done."""
PATIENCE_S = 4 * 3600.0
"""Virtual; a world that has not finished long after it healed hangs."""
WRECKS: list[World] = []
"""Worlds that did not come to their end: kept, because collecting their half-run coroutines would run them."""
EPOCH = 1_700_000_000.0
"""Unix seconds at the start."""


@functools.cache
def _config() -> Config:
    with tempfile.TemporaryDirectory() as folder:
        return config_in(Path(folder))


class World:
    """Make it, `run` it, then read `history`."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.loop = VirtualLoop(self._fork())
        self.history = History()
        self.words = Words()
        self.chaos = True
        self.cuts = self.rng.choice((0.0, 0.1, 0.3))
        """Share of connections that a client's side cuts."""
        self.kills = self.rng.choice((0, 1, 3, 6))
        self.front: AsgiApp | None = None
        self.core: GatewayService | None = None
        self.store: SimStore | None = None
        self.life = 0
        self.lives: list[int] = []
        self.disk = SimDisk(self)
        self.fleet = Fleet(self, self._fork())
        self.network = Network(self, self._fork())
        self._ids = self._fork()
        self._kill_in = -1
        self._armed = ""
        self._killed = asyncio.Event()
        self._groups: dict[str, Group] = {}
        self._waiters: dict[str, list[asyncio.Future[None]]] = {}
        self._config = self._settings()

    def _fork(self) -> Random:
        return Random(self.rng.getrandbits(64))

    def _settings(self) -> Config:
        rng, config = self.rng, _config()
        limits = msgspec.structs.replace(
            config.limits,
            linger_s=rng.choice((0.0, 0.5, 10.0)),
            keepalive_s=rng.choice((0.05, 8.0)),
            pause_hold_s=rng.choice((0.5, 240.0)),
            drain_s=rng.choice((0.1, 25.0)),
            in_flight_per_session=rng.choice((3, 64)),
            retire_s=rng.choice((0.0, 0.0, 5.0, 60.0)),
        )
        return msgspec.structs.replace(
            config, limits=limits, shared_nodes=rng.choice(("once", "once", "every"))
        )

    # -- what parts of the world tell it --------------------------------------------------------------------------

    def say(self, line: str) -> None:
        """To the log."""
        self.history.say(self.loop.time(), line)

    def wrong(self, what: str) -> None:
        """Seen to be wrong at once."""
        self.say(f"WRONG {what}")
        self.history.wrong.append(f"{self.loop.time():.4f} {what}")

    def became_durable(self, session: str, record: Record) -> None:
        """Called by the disk."""
        self.history.ever.append((session, record))
        if isinstance(record, TurnCommitted) and record.finish == CUT:
            self.group_over(record.turn, "cut")  # it answers nobody
        elif isinstance(record, TurnCommitted):
            self.history.durable.setdefault(record.turn, self.loop.time())
            group = self._groups.get(record.turn)
            if group is not None and record.turn == group.turns[-1]:
                group.durable = min(group.durable, self.loop.time())
        self.say(f"durable {session} {type(record).__name__} {getattr(record, 'turn', '')!s:.6}")

    def announced(self, group: Group) -> None:
        """Intents were given to the journal."""
        self.history.groups.append(group)
        for turn in group.turns:
            self._groups[turn] = group
        self.say(f"intent {group.session} {','.join(turn[:6] for turn in group.turns)}")

    def sampling(self, piece: Piece) -> None:
        """An engine begins a piece."""
        self.history.pieces.append(piece)
        self.say(f"sample {piece.request_id[:6]}{piece.request_id[33:]} prompt={len(piece.prompt)}")

    def group_over(self, turn: str, why: str) -> None:
        """This call will not be committed."""
        group = self._groups.get(turn)
        if group is not None and group.over == NEVER:
            group.over, group.cut = self.loop.time(), why == "cut"
            self.say(f"over {turn[:6]} {why}")

    def served(self, task: asyncio.Task[None], path: str) -> None:
        """The app is done with a connection; it must never raise."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.wrong(f"{path}: the app raised {error!r}")

    def moment(self, kind: str) -> None:
        """One of MOMENTS."""
        if self._armed == kind:
            self._armed = ""
            self._kill_in = self.rng.choice((0, 1, 2, 3, 5, 8, 13))
        for waiter in self._waiters.pop(kind, ()):
            if not waiter.done():
                waiter.set_result(None)

    async def next(self, kind: str) -> None:
        """Returns close to the next such moment, or after a while."""
        waiter = self.loop.create_future()
        self._waiters.setdefault(kind, []).append(waiter)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(20.0):
                await waiter

    # -- lives ----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """A new process on the old disk."""
        self.life += 1
        self.lives.append(self.life)
        context = contextvars.copy_context()
        context.run(LIFE.set, self.life)
        await self.loop.create_task(self._compose(), name="start", context=context)

    async def _compose(self) -> None:
        """As `app.gateway` does, with parts of this world."""
        self.disk.catch_up()
        known = self.disk.sound_records()
        self.store = store = SimStore(self, self.disk, self._fork())
        now = self._now
        sessions = Sessions(store, now)
        sessions.replay()
        await sessions.keep_doubts()
        await sessions.keep_leases()
        engine = await connect(
            self.fleet,
            URLS if sessions.process.engines is None else sessions.process.engines,
            logprobs_mode="processed_logprobs",
            vocab_size=codec().vocab_size,
            version_now=lambda: sessions.process.version,
            labels=sessions.labels,
        )
        pool = InlineExecutor(self.loop, self._fork())
        metrics = GatewayMetrics()
        turns = Completions(
            self._config,
            sessions,
            engine,
            codec(),
            metrics,
            self._new_id,
            WINDOW,
            pool=pool,  # type: ignore[arg-type]
        )
        core = GatewayService(
            self._config, Gate(SECRET, now), sessions, turns, engine, metrics, "http://sim", self._new_id()
        )
        core.exports.shutdown(wait=False)
        core.exports = core.leasing.exports = sessions.retired.threads = pool
        self.loop.create_task(store.write_behind(), name="write-behind")
        if self._config.limits.retire_s:
            self.loop.create_task(self._retire(sessions), name="retire")
        self.core, self.front = core, AsgiApp(core)
        self.say(f"life {self.life} records={len(known)}")
        audit.still_there(self)

    async def _retire(self, sessions: Sessions) -> None:
        """As `app.gateway` does."""
        while True:
            await asyncio.sleep(self._config.limits.retire_s)
            with contextlib.suppress(JournalUnavailable):
                gone = await sessions.retire(self._config.limits.retire_s)
                if gone:
                    self.say(f"retired {gone} sessions")

    def _now(self) -> float:
        return EPOCH + self.loop.time()

    def _new_id(self) -> str:
        return f"{self._ids.getrandbits(96):024x}"

    def kill(self) -> None:
        """SIGKILL: not one more step of this life."""
        assert self.store is not None
        life = self.life
        if self.core is not None:
            audit.nothing_ahead(self, self.core)
        self.front = self.core = None
        self.loop.dead.add(life)
        self.say(f"kill {life}")
        self.store.die()
        self.fleet.lose(life)
        self.network.lose(life)
        for piece in self.history.pieces:
            if piece.life == life:
                piece.ended = min(piece.ended, self.loop.time())
        self._killed.set()

    def _between_steps(self) -> None:
        if self._kill_in >= 0:
            self._kill_in -= 1
            if self._kill_in < 0 and self.front is not None:
                self.kill()

    async def stop(self) -> None:
        """SIGTERM, as `app.serve` does it: drain, cut what is left, close everything."""
        core, store, life = self.core, self.store, self.life
        assert core is not None
        assert store is not None
        self.say(f"term {life}")
        await self._inside(core.turns.drain(self._config.limits.drain_s))
        self.front = None
        tasks = [task for task in self.loop.tasks[life] if task.get_name().startswith("serve ")]
        if tasks:
            await asyncio.wait(tasks, timeout=5.0)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self.core = None
        await self._inside(core.engine.aclose())
        with contextlib.suppress(Exception):  # a disk that fails to the last: what waited was told to nobody
            await self._inside(store.aclose())
        left = [task for task in self.loop.tasks[life] if task.get_name() not in ("write-behind", "retire")]
        self.network.lose(life)
        self.loop.dead.add(life)
        self.say(f"stopped {life} left={len(left)}")

    async def _inside(self, work: Coroutine[Any, Any, Any]) -> Any:
        """Run it as the present life's own."""
        context = contextvars.copy_context()
        context.run(LIFE.set, self.life)
        return await self.loop.create_task(work, context=context)

    async def _supervise(self) -> None:
        """Kills or stops the process now and then, and starts it again."""
        rng = self._fork()
        for _ in range(self.kills):
            await asyncio.sleep(rng.choice((0.05, 0.5, 2.0, 10.0, 40.0)) * rng.random())
            if rng.random() < 0.15:
                await self.stop()
            else:
                self._killed.clear()
                how = rng.choice(("any", *MOMENTS))
                if how == "any":
                    self._kill_in = rng.randrange(200)
                else:
                    self._armed = how
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(30.0):
                        await self._killed.wait()
                self._armed, self._kill_in = "", -1
                if self.front is not None:
                    self.kill()
            await asyncio.sleep(rng.choice((0.0, 0.1, 3.0)))
            await self.start()

    async def _spoil(self) -> None:
        """Disks that fill up, engines that go down."""
        rng = self._fork()
        while True:
            await asyncio.sleep(rng.choice((1.0, 10.0, 30.0)) * rng.random())
            what = rng.choice(("disk", "write", "engine", "engines", "restart"))
            self.say(f"spoil {what}")
            if what == "write":
                self.disk.fail_next = 1
            elif what == "disk":
                self.disk.failure = "database or disk is full"
                await asyncio.sleep(rng.choice((0.1, 2.0, 15.0)))
                self.disk.failure = ""
            elif what == "restart":
                if self.fleet.reports:  # else nobody could know
                    await self._restart(rng)
            else:
                self.fleet.down = {"http://engine-a"} if what == "engine" else {"http://"}
                await asyncio.sleep(rng.choice((0.1, 3.0, 20.0)))
                self.fleet.down = set()

    async def _restart(self, rng: Random) -> None:
        """An engine takes some time to come up: more than a probe's."""
        url = rng.choice(URLS)
        self.say(f"restart {url}")
        self.fleet.down = {url}
        self.fleet.restart(url)
        await asyncio.sleep(rng.choice((1.5, 3.0)) * PROBE_S)
        self.fleet.down = set()

    # -- the whole ------------------------------------------------------------------------------------------------

    def run(self) -> History:
        """To the end. Raises loop.Stuck where nothing can happen any more."""
        self.loop.on_step = self._between_steps
        try:
            self.loop.run_until_complete(self._all())
        except BaseException:
            WRECKS.append(self)
            raise
        self.loop.close()
        for complaint in self.loop.complaints:
            self.history.wrong.append(f"asyncio: {complaint}")
        return self.history

    async def _all(self) -> None:
        async with asyncio.timeout(PATIENCE_S):
            await self.start()
            control = Control(self, self._fork())
            trainer = Trainer(self, self._fork(), control)
            drivers = [asyncio.ensure_future(driver.run()) for driver in self._drivers(control)]
            supervisor = asyncio.ensure_future(self._supervise())
            sides = [asyncio.ensure_future(trainer.run()), asyncio.ensure_future(self._spoil())]
            if self.rng.random() < 0.6:
                sides.append(asyncio.ensure_future(Weights(self, self._fork(), control).run()))
            if self.rng.random() < 0.5:
                sides.append(asyncio.ensure_future(Dataset(self, self._fork(), control).run()))
                sides.append(asyncio.ensure_future(Operator(self, self._fork(), control).run()))
            await asyncio.wait(drivers, timeout=self.rng.choice((5.0, 60.0, 300.0)))
            await self._heal(supervisor, sides)
            await asyncio.gather(*drivers)
            await self._settle(trainer)
        await audit.at_rest(self)
        await self._bury()

    def _drivers(self, control: Control) -> Iterator[Driver]:
        for task in range(self.rng.randint(1, 2)):
            size = self.rng.randint(1, 2)
            for sample in range(size):
                yield Driver(self, self._fork(), control, f"t{task}", sample, size)

    async def _heal(self, supervisor: asyncio.Task[None], sides: list[asyncio.Task[None]]) -> None:
        """From here on nothing goes wrong any more."""
        self.kills = 0
        for task in (supervisor, *sides):
            task.cancel()
        for broken in await asyncio.gather(supervisor, *sides, return_exceptions=True):
            if isinstance(broken, Exception):
                self.wrong(f"one who should have gone on raised {broken!r}")
        self._armed, self._kill_in = "", -1
        self.disk.failure, self.disk.fail_next = "", 0
        self.fleet.down, self.fleet.faults = set(), 0.0
        self.fleet.bare.clear()  # the last weight update was made again
        self.fleet.resume()
        self.chaos, self.cuts = False, 0.0
        if self.front is None:
            if self.core is not None or self.life not in self.loop.dead:
                self.kill_rest()
            await self.start()
        assert self.core is not None
        self.core.turns.admission.resume()
        self.say("healed")

    def kill_rest(self) -> None:
        """Of a process that was stopped half-way, or was just coming up."""
        if self.store is not None and self.disk.owner is self.store:
            self.kill()
        else:
            self.loop.dead.add(self.life)

    async def _settle(self, trainer: Trainer) -> None:
        """Every group is closed, every lease acked."""
        sessions = sorted(self.history.finalized | self.history.aborted)
        for uid in sorted({session.partition(".")[0] for session in sessions}):
            body = {"job": "shop-job", "uid": uid}
            try:
                await trainer.control.call("POST", "/v1/groups/close", body)
            except Refused as error:
                if error.status != 404 or not self._config.limits.retire_s:
                    raise
        for _ in range(3):
            while await trainer.once():
                pass
            await asyncio.sleep(120.0)  # leases that were forgotten expire

    async def _bury(self) -> None:
        """All lives end; the last one by a kill."""
        if self.life not in self.loop.dead:
            self.kill()
        await self.loop.bury(self.lives)
