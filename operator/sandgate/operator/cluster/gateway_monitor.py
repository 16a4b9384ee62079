"""GatewayMonitor: watches one gateway: whether it answers, which sessions changed, and since when it is away."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from sandgate.contract.errors import SandgateError, Unavailable
from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.session import SessionSummary
from sandgate.gateway.client import GatewayClient
from sandgate.operator.cluster.api import Connect
from sandgate.operator.cluster.listing import all_sessions
from sandgate.operator.plan.actions import OUTAGES_MAX, Outage

log = logging.getLogger(__name__)

CALL_S = 5.0
"""How long one call is repeated; after that the gateway counts as away, and the reconciler comes back."""
READY_S = 5.0
"""A gateway that does not say within this time that it is ready, is not."""
POLL_S = 1.0
"""Between looks at a gateway that does not answer."""
EVENTS_S = 20.0
"""Of one long poll."""
STATUS_S = 3.0
"""Between looks at load, engines and the trainer's sign of life."""


class Watcher(Protocol):
    """Who is told what happens at gateways."""

    async def arrived(self, monitor: GatewayMonitor, listed: list[SessionSummary], asked: float) -> None:
        """It answers, after a start or an absence; this is all it holds of the job, `asked` for at that time: by now it
        may have died again, and an agent with it."""

    async def changed(self, monitor: GatewayMonitor, name: str, state: str) -> None:
        """A session's state there."""

    async def says(self, monitor: GatewayMonitor, status: dict[str, Any]) -> None:
        """Its GET /v1/status."""

    def left(self, monitor: GatewayMonitor) -> None:
        """It does not answer any more."""


@dataclass(slots=True)
class GatewayMonitor:
    """One gateway. `run` it as a task."""

    name: str
    origin: str
    job: str
    key: str
    connect: Connect
    watcher: Watcher
    now: Callable[[], float] = time.time
    open: bool = False
    """It answers."""
    listed: bool = False
    """It was asked for all its sessions once."""
    heard_at: float = 0.0
    """When it last answered."""
    away_since: float | None = None
    absences: deque[Outage] = field(default_factory=lambda: deque(maxlen=OUTAGES_MAX))
    """That ended, whoever was there to see it; the newest is the last."""
    calls: GatewayClient = field(init=False)
    _polls: GatewayClient = field(init=False)
    _epoch: str = ""

    def __post_init__(self) -> None:
        self.calls = self.connect(self.origin, self.key, CALL_S)
        self._polls = self.connect(self.origin, self.key, 0.0)

    @property
    def client(self) -> GatewayClient:
        """For calls. Raises Unavailable at once while it does not answer, so that no worker waits for it."""
        if not self.open:
            raise Unavailable(f"gateway {self.name} does not answer", retry_after=POLL_S)
        return self.calls

    async def status(self) -> tuple[dict[str, Any], bool]:
        """Its GET /v1/status, and whether it did not restart since it was last listed. (A long poll may notice later
        than an agent fails of it.)"""
        status = await self.client.status()
        return status, str(status["epoch"]) == self._epoch

    async def run(self) -> None:
        """For ever."""
        try:
            while True:
                try:
                    if await self._ready():
                        await self._stay()
                except (SandgateError, OSError, TimeoutError) as error:
                    log.info("gateway %s: %s", self.name, str(error) or type(error).__name__)
                self.lose()
                await asyncio.sleep(POLL_S)
        finally:
            await self.calls.aclose()
            await self._polls.aclose()

    def lose(self) -> None:
        """Count it as away."""
        if self.open:
            self.open = False
            if self.away_since is None:  # else what it held could not be taken in: it is one absence
                self.away_since = self.heard_at
            self.watcher.left(self)

    async def _ready(self) -> bool:
        try:
            return not await self._polls.ready(timeout_s=READY_S)
        except Unavailable:  # not up yet: no news
            return False

    async def _stay(self) -> None:
        """Until it is away. Raises what told so."""
        tasks = [asyncio.ensure_future(self._follow()), asyncio.ensure_future(self._watch())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
        finally:
            for one in tasks:
                one.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self) -> None:
        cursor = await self._list()
        while True:
            events = await self._polls.events(cursor, wait_s=EVENTS_S)
            self.heard_at = self.now()
            if (
                events.reset or events.epoch != self._epoch
            ):  # it was away, too shortly to be noticed otherwise
                self.lose()
                cursor = await self._list()
                continue
            cursor = events.cursor
            for name, state in dict(events.sessions).items():
                await self.watcher.changed(self, name, state)

    async def _list(self) -> int:
        asked = self.now()
        start = await self._polls.events(0, wait_s=0.0)
        self._epoch = start.epoch
        listed = await all_sessions(self._polls, self.job)
        if (absence := self._absence(start.began, listed)) is not None:
            if self.absences and self.absences[-1].since == absence.since:
                self.absences.pop()
            self.absences.append(absence)
        self.open, self.listed, self.heard_at = True, True, self.now()
        await self.watcher.arrived(self, listed, asked)
        self.away_since = None
        return start.cursor

    def _absence(self, began: float, listed: Iterable[SessionSummary]) -> Outage | None:
        """The one that ends now. Before it was ever heard here, only itself knows: its life began with the end of an
        absence, which was after the last thing that it did in the life before."""
        if self.away_since is not None:
            return Outage(self.away_since, self.now(), FailureReason.GATEWAY_LOST)
        if self.listed:
            return None
        alive = max((one.changed_at for one in listed if one.changed_at < began), default=0.0)
        return Outage(alive, began, FailureReason.GATEWAY_LOST)

    async def _watch(self) -> None:
        while True:
            status = await self._polls.status()
            if self.open:
                self.heard_at = self.now()
                await self.watcher.says(self, status)
            await asyncio.sleep(STATUS_S)
