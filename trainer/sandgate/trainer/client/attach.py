"""Attach a trainer to a local run, `sandgate run JOB.yaml --out out/mine`, by the run's folder.

async with sandgate.trainer.local("out/mine") as fleet:
    async for group in fleet.groups():
        async with group:
            await train(group.trajectories)

It may come before the run, in the middle of it, or when everything ended and the run is started again: every group that
no trainer has acknowledged is offered. The run is followed: one that was killed or stopped and goes on has other ports.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import secrets
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from sandgate.contract.attach import ATTACH, JOB, LOCK, SECRET, TRAINERS, NoRun, RunInfo, RunState
from sandgate.contract.keys import Key, Scope, mint
from sandgate.contract.lease import Lease, lease_name
from sandgate.gateway.client import gateway_transport, new_lease_id
from sandgate.sandbox.own import OwnFile
from sandgate.trainer.client.fleet import AWAY_S, PATIENT, AsyncFleet
from sandgate.trainer.client.rollout_client import AsyncRolloutClient
from sandgate.trainer.client.streaming import Ask, Wanted
from sandgate.trainer.client.trained import Note

log = logging.getLogger(__name__)

WAIT_S = 120.0
"""How long a trainer waits where no run is. One that starts is waited for as long as it takes: its engine may load."""
LOOK_S = 0.2
"""Seconds between two checks whether a run is there."""


@dataclass(slots=True)
class RunPlace:
    """The folder of a run, seen from outside."""

    out: Path
    wait_s: float = WAIT_S
    presence: Presence | None = None
    _read: tuple[tuple[int, int], RunInfo] | None = None
    """The attach file as last read, and its modification time and inode."""
    _away_since: float | None = None
    """Since when no run was there, on the event loop's clock; None while a run is there."""
    _said: str = ""

    @classmethod
    def at(cls, out: str | os.PathLike[str], wait_s: float, presence: Presence) -> RunPlace:
        """The run in `out`. The path is made absolute: the trainer may change its working directory."""
        return cls(Path(os.path.abspath(out)), wait_s, presence)

    def alive(self) -> bool:
        """Whether a process runs in the folder: it holds the lock file."""
        try:
            look = OwnFile(self.out / LOCK, os.O_RDONLY, briefly=True)
        except OSError:
            return False
        try:
            fcntl.flock(look, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            look.release()
        return False

    def says(self) -> RunInfo | None:
        """What the newest run wrote into the attach file; None without one. Raises NewerRecord, CorruptRecord."""
        path = self.out / ATTACH
        try:
            found = path.stat()
            which = found.st_mtime_ns, found.st_ino
            if self._read is None or self._read[0] != which:
                self._read = which, RunInfo.of(path.read_text("utf-8"))
        except FileNotFoundError:
            return None
        return self._read[1]

    def key(self, job: str, scope: Scope = Scope.TRAINER) -> str:
        """An API key of the job, made from the secret in the folder."""
        return mint(bytes.fromhex((self.out / SECRET).read_text().strip()), Key(scope, job=job))

    async def here(self, gateway: str = "") -> RunInfo:
        """Wait for a run that offers its gateways (or the one called `gateway`), and return it. Raises NoRun after
        `wait_s` without a run; it says what was found instead."""
        while True:
            self._attend()
            said, alive = self.says(), self.alive()
            if alive and said is not None and (gateway in said.gateways if gateway else said.gateways):
                self._away_since, self._said = None, ""
                return said
            self._wait(said, alive=alive, gone=bool(gateway))
            await asyncio.sleep(LOOK_S)

    def _attend(self) -> None:
        """Register with a run that is about to begin: it will not end before this trainer leaves."""
        if self.presence is not None and (self.out / JOB).exists():
            self.presence.enter(self.out / TRAINERS)

    def _wait(self, said: RunInfo | None, *, alive: bool, gone: bool) -> None:
        """Log what is waited for. Raises NoRun after `wait_s`. `gone`: this trainer was attached to the run before."""
        now = asyncio.get_running_loop().time()
        if alive:
            self._away_since = None
            self._tell(f"the run in {self.out} is starting, or ending; waiting for its gateways")
            return
        why = self._why(said)
        self._away_since = now if self._away_since is None else self._away_since
        ended = gone and said is not None and said.state is RunState.OVER
        if ended or now >= self._away_since + self.wait_s:
            raise NoRun(f"{why}; start it with: sandgate run JOB.yaml --out {self.out}")
        self._tell(f"{why}; waiting {self.wait_s:g} s for: sandgate run JOB.yaml --out {self.out}")

    def _why(self, said: RunInfo | None) -> str:
        if not self.out.exists():
            return f"no run in {self.out}: no such folder"
        if said is None:
            return f"no run in {self.out}"
        if said.state is RunState.OVER:
            gaps = f", {said.missing} groups missing" if said.missing else ""
            end = "complete" if said.complete else f"failed{gaps}"
            return f"the run in {self.out} is over: {end}, {said.owed} groups not acknowledged by a trainer"
        how = "was stopped" if said.state is RunState.STOPPED else "was killed"
        return f"the run in {self.out} {how} before it was over"

    def tell(self, said: RunInfo | None) -> None:
        """Log the state of the run, once for each change."""
        self._tell(self._why(said))

    def _tell(self, text: str) -> None:
        if text != self._said:
            self._said = text
            log.warning("%s", text)


@dataclass(slots=True)
class Presence:
    """This trainer's file in the run's folder: locked while the trainer lives, removed when it leaves in order."""

    name: str = field(default_factory=lambda: f"{os.getpid()}-{secrets.token_hex(4)}")
    leases: tuple[str, ...] = ()
    _path: Path | None = None
    _file: OwnFile | None = None

    def enter(self, folder: Path) -> None:
        """Create the file; idempotent, and again if the folder was made anew. It is locked before others see it."""
        if self._path is not None and self._path.exists():
            return
        self.leave()
        folder.mkdir(mode=0o700, exist_ok=True)
        part = folder / f".{self.name}"
        self._file = OwnFile(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._path = folder / self.name
        self.hold(self.leases)
        part.replace(self._path)

    def hold(self, leases: Iterable[str]) -> None:
        """Record the leases that are offered again if this trainer dies. Also a sign of life."""
        self.leases = tuple(leases)
        if self._file is not None and not self._file.closed:
            text = "".join(f"{one}\n" for one in self.leases).encode()
            os.pwrite(self._file.number, text, 0)
            os.ftruncate(self._file.number, len(text))
            os.utime(self._file.number)

    def leave(self) -> None:
        """Remove the file. Idempotent; nothing in a process that was forked off."""
        if self._path is not None and self._file is not None and not self._file.closed:
            self._path.unlink(missing_ok=True)
            self._file.release()
        self._path = self._file = None


@contextmanager
def _present() -> Iterator[Presence]:
    presence = Presence()
    try:
        yield presence
    finally:
        presence.leave()


class Following(httpx.AsyncBaseTransport):
    """Sends requests to one gateway of a run at its present port. Without a run, a request waits for one."""

    def __init__(self, place: RunPlace, gateway: str) -> None:
        self._place, self._gateway = place, gateway
        self._http = gateway_transport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send the request to the gateway's present address. Raises NoRun."""
        while True:
            run = await self._place.here(self._gateway)
            origin = httpx.URL(run.gateways[self._gateway])
            request.url = request.url.copy_with(scheme=origin.scheme, host=origin.host, port=origin.port)
            with suppress(httpx.ConnectError):
                return await self._http.handle_async_request(request)
            await asyncio.sleep(LOOK_S)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()


class LocalFleet(AsyncFleet):
    """The gateways of a run on this machine. `groups()` ends when the run is over and every group was handed out."""

    def __init__(self, place: RunPlace, run: RunInfo, stack: AsyncExitStack, options: dict[str, Any]) -> None:
        """`stack` closes the clients when it ends."""
        self._place, self._stack, self._options = place, stack, options
        self._asked: set[str] = set()
        clients = {name: self._client(name, run.job) for name in run.gateways}
        super().__init__(clients, job=run.job, away_s=min(AWAY_S, place.wait_s))

    def _client(self, gateway: str, job: str) -> AsyncRolloutClient:
        following = Following(self._place, gateway)
        client = AsyncRolloutClient(
            f"http://{gateway}", self._place.key(job), transport=following, **self._options
        )
        self._stack.push_async_callback(client.aclose)
        return client

    @property
    def engines(self) -> tuple[str, ...]:
        """URLs of the engines, for `weight_update(..., engines=fleet.engines)`."""
        said = self._place.says()
        return () if said is None else said.engines

    def over(self) -> bool:
        """Whether the run is over, so that no group will come any more."""
        said = self._place.says()
        if said is None or said.state is not RunState.OVER:
            return False
        if said.owed:
            self._place.tell(said)
        return True

    async def lease(self, *, lease_id: str = "", **asked: Any) -> Lease | None:
        """See `AsyncFleet.lease`. If this process dies, its groups are offered again at once."""
        lease_id = lease_id or new_lease_id()
        self._grow()
        self._asked.add(lease_id)
        self._hold()
        try:
            return await super().lease(lease_id=lease_id, **asked)
        finally:
            self._asked.discard(lease_id)

    def _asks(self) -> Mapping[str, Ask]:
        self._grow()
        return super()._asks()

    async def _ask(self, gateway: str, wanted: Wanted, lease_id: str = "") -> list[Lease]:
        lease_id = lease_id or new_lease_id()
        names = {lease_name(lease_id, number) for number in range(wanted.groups)}
        self._asked |= names
        self._hold()
        try:
            return await super()._ask(gateway, wanted, lease_id)
        finally:
            self._asked -= names

    def _grow(self) -> None:
        """Add the gateways that are new: a run that was started again may have more."""
        said = self._place.says()
        for name in said.gateways if said is not None else ():
            if name not in self.clients:
                self.clients[name] = self._client(name, self.job)
                self._leases.order.append(name)

    async def checkpoint(self) -> Note:
        """See `AsyncFleet.checkpoint`. If this process dies now, its groups are its own for the time of their leases:
        the checkpoint may be on disk, and another trainer would learn from them, too."""
        note = await super().checkpoint()
        self._hold()
        return note

    def _hold(self) -> None:
        assert self._place.presence is not None
        mine = self._asked | self._leases.gateways.keys() | {lease for _, lease in self._leases.unheard}
        self._place.presence.hold(sorted(mine - self._ledger.kept))

    async def heartbeat(self) -> None:
        """See `AsyncFleet.heartbeat`."""
        self._hold()
        await super().heartbeat()


@asynccontextmanager
async def attach(
    out: str | os.PathLike[str], *, wait_s: float = WAIT_S, **options: Any
) -> AsyncIterator[LocalFleet]:
    """The gateways of the run in the folder `out`; addresses and key are read from there. Heartbeats are sent as long
    as the block runs, and the run does not end meanwhile.

    `wait_s`: how long it is waited for where there is no run, at the start and whenever it went; what is waited for is
    logged. `options`: of AsyncRolloutClient. Raises NoRun (an Unavailable), saying what to do."""
    async with AsyncExitStack() as stack:
        presence = stack.enter_context(_present())
        place = RunPlace.at(out, wait_s, presence)
        run = await place.here()
        options.setdefault("retries", PATIENT)
        clients = await stack.enter_async_context(AsyncExitStack())
        fleet = await stack.enter_async_context(LocalFleet(place, run, clients, options))
        await stack.enter_async_context(fleet.beating(run.heartbeat_s))
        yield fleet
