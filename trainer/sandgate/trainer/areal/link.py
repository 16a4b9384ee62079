"""One rollout worker's run: `sandgate run` beside AReaL's servers, tasks in, groups out, weight versions told."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from uuid import uuid4

from sandgate.contract import control_api
from sandgate.contract.attach import ATTACH, SECRET, RunInfo
from sandgate.contract.errors import Conflict, InvalidBody, SandgateError, Unavailable
from sandgate.contract.job import Task
from sandgate.contract.keys import Key, Scope, mint
from sandgate.contract.names import UID_CHARS_MAX
from sandgate.contract.trajectory import Json, Trajectory
from sandgate.sandbox.own import opening
from sandgate.trainer.client.at_exit import at_exit, not_at_exit
from sandgate.trainer.client.attach import attach
from sandgate.trainer.client.fleet import HEARTBEAT_S, AsyncFleet
from sandgate.trainer.client.group_size import group_size
from sandgate.trainer.client.groups import Group
from sandgate.trainer.client.loop_thread import Closed, LoopThread
from sandgate.trainer.client.pushed_groups import when_back
from sandgate.trainer.client.rollout_client import AsyncRolloutClient
from sandgate.trainer.client.update_looks import answers
from sandgate.trainer.client.update_order import SUPERSEDED, Superseded, refused, update_name

log = logging.getLogger("sandgate.trainer.areal")

COMMAND = (sys.executable, "-m", "sandgate.trainer.cli")
"""`sandgate` of this Python."""
LOOK_S = 0.5
"""Between two looks at a run."""
START_S = 600.0
"""Until a run offers its gateways: its engine is there already."""
REST_S = 10.0
"""Before AReaL is told that an episode has no group, as its job is away or over: it takes the episode for rejected, and
begins the next at once."""
TRY_S = 10.0
"""For gateways to answer whose job is held, or not ready: the training waits, and they are told when they are back.
And for one to say how large a group is."""
OWN = re.compile(r"[0-9A-Za-z-]{1,51}")
"""What is a trainer's own in the name of an update."""
LOG = "areal-run.log"
"""In the run's folder: what it said."""


@asynccontextmanager
async def local_run(
    command: Sequence[str], manifest: Path, out: Path, engines: Sequence[str]
) -> AsyncIterator[AsyncFleet]:
    """`sandgate run`, for as long as the block runs. `engines`: URLs of AReaL's servers; gateways sample from them."""
    words = [*command, "run", str(manifest), "--out", str(out), "--engine-url", engines[0]]
    process = await asyncio.to_thread(_start, words, out)
    try:
        async with AsyncExitStack() as stack:
            fleet = await _offered(stack, process, out)
            watching = asyncio.create_task(_died(process, out))
            try:
                if len(engines) > 1:
                    await _tell_engines(out, engines)
                yield fleet
            finally:
                watching.cancel()
                _let_go(process)  # before this trainer leaves the run, which would wait for it
    finally:
        await asyncio.to_thread(_stop, process)


async def _offered(stack: AsyncExitStack, process: subprocess.Popen[bytes], out: Path) -> AsyncFleet:
    """The run's gateways. Raises Unavailable once it has ended without: its manifest may be wrong."""
    attaching = asyncio.ensure_future(stack.enter_async_context(attach(out, wait_s=START_S)))
    try:
        while not attaching.done():
            await asyncio.wait([attaching], timeout=LOOK_S)
            if not attaching.done() and (code := process.poll()) is not None:
                raise Unavailable(f"sandgate run ended at once, with code {code}; {out / LOG} says why")
        return attaching.result()
    finally:
        if not attaching.done():
            attaching.cancel()
            await asyncio.gather(attaching, return_exceptions=True)


def _start(words: Sequence[str], out: Path) -> subprocess.Popen[bytes]:
    out.mkdir(parents=True, exist_ok=True)
    with (out / LOG).open("ab") as said:
        kept = [sys.executable, str(Path(__file__).with_name("kept.py")), *words]
        with opening() as own:
            made = subprocess.Popen(
                kept, stdout=said, stderr=subprocess.STDOUT, stdin=subprocess.PIPE, bufsize=0
            )
            assert made.stdin is not None
            own(made.stdin)
    return made


async def _died(process: subprocess.Popen[bytes], out: Path) -> None:
    while (code := process.poll()) is None:  # noqa: ASYNC110 - a thread that waits keeps a trainer that ends
        await asyncio.sleep(LOOK_S)
    log.error("sandgate run has ended with code %s; %s says why", code, out / LOG)


async def _tell_engines(out: Path, engines: Sequence[str]) -> None:
    """A run is started with one server; its gateways are told of all."""
    said, secret = await asyncio.to_thread(lambda: ((out / ATTACH).read_text(), (out / SECRET).read_text()))
    key = mint(bytes.fromhex(secret.strip()), Key(Scope.ADMIN))
    for origin in RunInfo.of(said).gateways.values():
        async with AsyncRolloutClient(origin, key) as admin:
            await admin.call(control_api.engines(engines))


def _let_go(process: subprocess.Popen[bytes]) -> None:
    """It ends then, as it would if this process died."""
    assert process.stdin is not None
    process.stdin.close()


def _stop(process: subprocess.Popen[bytes]) -> None:
    _let_go(process)
    process.wait()


@asynccontextmanager
async def alive(
    connection: AbstractAsyncContextManager[AsyncFleet], every_s: float = HEARTBEAT_S
) -> AsyncIterator[AsyncFleet]:
    """The same gateways, which hear that the trainer lives: a job with a `trainer` block would be suspended under one
    that only computes. (A run on this machine hears it anyway, from `attach`.)"""
    async with connection as fleet, fleet.beating(every_s):
        yield fleet


@dataclass(slots=True)
class Holds:
    """Who of this process holds the turns of some gateways. They have one switch, and engines of AReaL that share them
    pause each for itself: turns go on when nobody holds them."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while gateways are told, so that they end with what was said last."""
    by: set[int] = field(default_factory=set)
    """Links, by id."""
    own: str = field(default_factory=lambda: uuid4().hex)
    """By which gateways tell updates of this trainer from another's (`update_order`). Empty: updates name none,
    as other processes of this trainer share the gateways, and each would end the others'."""
    update: str = ""
    """The last that began here."""


def trainer_name(trainer: str) -> str:
    """`Holds.own` of gateways that processes share: the same in all of this trainer, and in no other. Raises
    InvalidBody for one that no update can have in its name."""
    if trainer and not OWN.fullmatch(trainer):
        raise InvalidBody(f"trainer: {trainer!r} is not 1 to 51 letters, digits or -", field="trainer")
    return trainer


def episode_uid(uid: str) -> str:
    """A task's uid of its own for an episode of the dataset's row `uid`; no longer than a gateway takes."""
    mark = f"-{secrets.token_hex(6)}"
    return uid[: UID_CHARS_MAX - len(mark)] + mark


@dataclass(slots=True)
class Link:
    """A job's gateways, in a loop of its own thread. Follows AReaL's engine (`engines.Follower`)."""

    name: str
    connection: AbstractAsyncContextManager[AsyncFleet]
    collects: bool = True
    """False: it only tells versions; AReaL gets its rows otherwise."""
    loop: LoopThread = field(default_factory=LoopThread)
    waiting: dict[str, asyncio.Future[tuple[Trajectory, ...]]] = field(default_factory=dict)
    """The episodes that wait, by the uid of their task, oldest first."""
    holds: Holds = field(default_factory=Holds)
    """Of all links of this process to the same gateways."""
    closed: bool = False
    over: str = ""
    """Why its job gives no groups any more, where somebody else than its gateways knows."""
    away: bool = False
    """The job is held, or not ready, or was not told yet what it missed: that no gateway answers ends nothing."""
    looks_s: float = 0.0
    """For two more looks at where the job stands (`stands`), before gateways that do not answer end the training: a
    queue may have taken their pods a moment ago. 0: nobody looks."""
    rest_s: float = REST_S
    asked_only: bool = False
    """Of an evaluation whose job nobody shares: a group that no episode waits for was asked for before a kill, or given
    up, and measures weights of then. It is acknowledged and passed over."""
    _fleet: AsyncFleet | None = None
    _collecting: asyncio.Task[None] | None = None
    _size: int | None = None
    """Of the job's groups, once somebody asked."""
    _asked: asyncio.Event = field(default_factory=asyncio.Event)
    """Some episode waits."""
    _closing: threading.Lock = field(default_factory=threading.Lock)
    _version: int = 0
    """That gateways are to know."""
    _ready: bool = True
    """At the last look."""
    _looked: asyncio.Event = field(default_factory=asyncio.Event)
    _catching_up: asyncio.Task[None] | None = None
    _caught_up: int = 0
    """How often gateways were told what they missed."""

    def open(self, version: int) -> None:
        """Connect; blocks. `version`: of AReaL's weights."""
        at_exit(self.close)
        try:
            self.loop.run(self._open(version))
        except BaseException:
            self.close()
            raise

    async def _open(self, version: int) -> None:
        self._version = version
        self._fleet = await self.connection.__aenter__()
        await self._each("policy_version", version)
        if self.collects:
            self._collecting = asyncio.create_task(self._collect(), name="collect groups")

    async def episode(self, prompt: Json, data: Mapping[str, Json], uid: str) -> tuple[Trajectory, ...]:
        """The rows of one group. Called in any loop. `uid`: of the dataset's row; each episode is a task of its own."""
        task = Task(uid=episode_uid(uid), prompt=prompt, data=dict(data))
        try:
            return await asyncio.wrap_future(self.loop.submit(self._episode(task)))
        except (Closed, asyncio.CancelledError) as error:
            asking = asyncio.current_task()
            if not self.closed or (asking is not None and asking.cancelling()):
                raise
            raise Unavailable(f"job {self.name}: its connection is closed") from error

    async def _episode(self, task: Task) -> tuple[Trajectory, ...]:
        try:
            return await self._group_of(task)
        except Unavailable:
            await asyncio.sleep(self.rest_s)
            raise

    async def _group_of(self, task: Task) -> tuple[Trajectory, ...]:
        assert self._fleet is not None
        assert self._collecting is not None
        future: asyncio.Future[tuple[Trajectory, ...]] = asyncio.get_running_loop().create_future()
        self.waiting[task.uid] = future
        self._asked.set()
        try:
            if self.over:
                raise Unavailable(self.over)
            if self._collecting.done():
                raise Unavailable(f"job {self.name}: no groups come any more") from self.failure
            await when_back(partial(self._fleet.push_tasks, [task]), self._may_be_back)
            return await future
        finally:
            self.waiting.pop(task.uid, None)

    async def group_size(self, session: str) -> int | None:
        """Of its groups, as the gateway of this session knows; None: nobody says. Called in any loop."""
        if self._size is None and self._fleet is not None:
            with suppress(Closed, TimeoutError):
                async with asyncio.timeout(TRY_S):
                    asked = self.loop.submit(group_size(self._fleet.clients, session))
                    self._size = await asyncio.wrap_future(asked)
        return self._size

    @property
    def failure(self) -> BaseException | None:
        """What ended the collecting of groups. None of one that goes on, or whose run is over."""
        task = self._collecting
        return task.exception() if task is not None and task.done() and not task.cancelled() else None

    @property
    def lost(self) -> bool:
        """No groups come any more, of a job that is not known to be over: another link may find its gateways back."""
        return not self.closed and not self.over and self.failure is not None

    def _may_be_back(self) -> bool:
        return self.away and not self.over

    async def _collect(self) -> None:
        """Hand each group to the episode whose task it is. Workers of one job share its groups: one that another asked
        for, or one that died, goes to the episode that has waited longest (but see `asked_only`). So each takes as many
        groups as it pushed tasks: none is leased while nobody waits, and none acknowledged that nobody has."""
        try:
            await when_back(self._stream, self._may_be_back)
        except BaseException as error:
            self._fail(str(error) or type(error).__name__)
            raise
        self._fail("its run is over, and gives no groups any more")

    async def _stream(self) -> None:
        assert self._fleet is not None
        groups = self._fleet.groups()
        try:
            while True:
                while not self.waiting:
                    self._asked.clear()
                    await self._asked.wait()
                try:
                    group = await anext(groups)
                except StopAsyncIteration:
                    break
                await self._hand_out(group)
        finally:
            await groups.aclose()

    async def _hand_out(self, group: Group) -> None:
        live = [uid for uid, future in self.waiting.items() if not future.done()]
        named = bool(group.uid)  # an older gateway's without a row is not
        if self.asked_only and named and group.uid not in live:
            await self._pass_over(group)
            return
        uid = group.uid if group.uid in live else next(iter(live), None)
        if uid is None:  # they gave up meanwhile
            await group.nack()
            return
        future = self.waiting.pop(uid)
        try:
            await group.ack()
        except Conflict as error:  # another worker has it, and this episode one of those to come
            log.warning("group %s: %s", group.uid, error)
            if not future.done():  # one that gave up meanwhile would be waited with for ever
                self.waiting = {uid: future} | self.waiting
            return
        except BaseException:
            if not future.done():
                self.waiting[uid] = future  # to be told that none will come
            raise
        if future.done():
            log.warning("group %s: its episode gave up while it was acknowledged", group.uid)
        else:
            future.set_result(group.trajectories)

    async def _pass_over(self, group: Group) -> None:
        log.warning("job %s: nobody waits for group %s of an earlier evaluation", self.name, group.uid)
        try:
            await group.ack()
        except Conflict as error:  # it comes again
            log.warning("group %s: %s", group.uid, error)

    def ended(self, error: Exception) -> None:
        """The job is over: episodes that wait are told, and those to come. Called in its loop."""
        self.over = f"job {self.name}: {error}"
        self._looked.set()
        self._fail(str(error))

    def _fail(self, why: str) -> None:
        for future in self.waiting.values():
            if not future.done():
                future.set_exception(Unavailable(f"job {self.name}: {why}"))

    # -- what the engine tells ----------------------------------------------------------------------------------------

    def hold(self) -> None:
        with self.holds.lock:
            self._hold()

    def _hold(self) -> None:
        if self.holds.by <= {id(self)}:  # else it is a part of what another engine of this process began
            self._name_update()
        self.holds.by.add(id(self))
        if self.closed:  # after it was added: `close` takes no lock
            self.holds.by.discard(id(self))
        self._all("pause")

    def resume(self) -> None:
        with self.holds.lock:
            self.holds.by.discard(id(self))
            self._let_go()

    def begin(self, paused: Callable[[], bool]) -> None:
        """Once this link follows its engine: gateways are on hold if the engine is paused now. If it is not, turns go
        on: a trainer that was killed in a weight update left them on hold, and nobody else would ever let them go."""
        with self.holds.lock:
            if paused() or id(self) in self.holds.by:
                self._hold()
            else:
                self._let_go()

    def _let_go(self) -> None:
        if not self.holds.by:
            self._all("resume")

    def _name_update(self) -> None:
        if self.closed or self._fleet is None or not self.holds.own:
            return
        with suppress(Closed):
            self.loop.run(self._named())

    async def _named(self) -> None:
        """Where no gateway answers, the pause says so, or comes when the job is back."""
        assert self._fleet is not None
        said = await answers({name: one.status() for name, one in self._fleet.clients.items()}, TRY_S)
        known = [str(one.get("update", "")) for one in said.values() if isinstance(one, dict)]
        if known:
            self.holds.update = update_name(known, self.holds.own)

    def version(self, version: int) -> None:
        """Raises Unavailable if a gateway does not answer: what it samples would be of an unknown version; and, as
        `hold` and `resume` do, Superseded if another trainer began an update since: it has the gateways."""
        self._version = version
        self._all("policy_version", version)

    def _all(self, call: str, *args: int) -> None:
        """Of one that is closed, or closed meanwhile, nobody is told."""
        if self.closed or self._fleet is None:
            return
        try:
            self.loop.run(self._tell(call, *args))
        except Exception:
            if not self.closed:
                raise

    async def _tell(self, call: str, *args: int) -> None:
        """Gateways of a job that is away may stay untold: they are told when it is back (`stands`)."""
        before = self._caught_up
        try:
            async with asyncio.timeout(TRY_S if self.away else None):
                await self._each(call, *args)
        except (Unavailable, TimeoutError) as error:
            if not await self._excused(before):
                raise
            log.warning("job %s is away, and told to %s when it is back: %s", self.name, call, error)

    async def _each(self, call: str, *args: int) -> None:
        """Ends when each has answered: what is said to one late would come after what is said next."""
        assert self._fleet is not None
        update = self.holds.update
        calls = [getattr(client, call)(*args, update=update) for client in self._fleet.clients.values()]
        for said in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(said, BaseException):
                if refused(said):
                    raise Superseded(SUPERSEDED.format(self._version, self.name or "the gateway")) from said
                raise said

    async def _excused(self, before: int) -> bool:
        """Whether gateways hear it otherwise, as the job is away, or was and has caught up. The look that comes next
        may have begun before gateways went: two are waited for."""

        def known() -> bool:
            return self.away or self._caught_up > before

        with suppress(TimeoutError):
            async with asyncio.timeout(self.looks_s):
                for _ in range(2 if self.looks_s else 0):
                    if known() or self.over:
                        break
                    self._looked.clear()
                    await self._looked.wait()
        return known()

    def stands(self, *, ready: bool) -> None:
        """Where the job stands. Called again and again, in its loop: one that is back is told what it missed, and again
        at the next look if that failed."""
        self._ready = ready
        self._looked.set()
        if not ready:
            self.away = True
        elif self.away and (self._catching_up is None or self._catching_up.done()):
            self._catching_up = asyncio.create_task(self._catch_up(), name="tell what was missed")

    async def _catch_up(self) -> None:
        """Who changes what is wanted holds `holds.lock` while it waits for this loop: it is not taken here, and what
        changed meanwhile is told once more."""
        told = None
        try:
            while told != (wanted := (self._version, bool(self.holds.by))):
                await self._each("policy_version", wanted[0])
                await self._each("pause" if wanted[1] else "resume")
                told = wanted
        except SandgateError as error:
            log.warning("job %s is back, and its gateways do not answer yet: %s", self.name, error)
            return
        self.away = not self._ready
        self._caught_up += 1

    def close(self) -> None:
        """Idempotent."""
        with self._closing:
            if self.closed:
                return
            self.closed = True
        self.holds.by.discard(id(self))  # ids come again
        not_at_exit(self.close)
        try:
            self.loop.run(self._close())
        finally:
            self.loop.close()

    async def _close(self) -> None:
        for task in (self._collecting, self._catching_up):
            if task is not None:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        if self._fleet is not None:
            await self.connection.__aexit__(None, None, None)
