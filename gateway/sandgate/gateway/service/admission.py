"""Admission of turns: limits on generations in flight, per process and per session; pause and drain."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from sandgate.contract.errors import Draining, Overloaded, Paused
from sandgate.gateway.config import Limits
from sandgate.gateway.service.session import Session

RETRY_AFTER_S = 1.0
"""Seconds until a refused client may ask again: a turn takes about a second on a busy engine; sooner only adds load."""


@dataclass(slots=True)
class Load:
    """Counts that turns reserve before their first await and release on every path."""

    in_flight: int = 0
    draining: bool = False
    paused: bool = False


def refuse(load: Load, *, limit: int, session_in_flight: int, session_limit: int, asked: int) -> None:
    """Raises Draining or Overloaded if `asked` more generations may not start; a pause holds, it does not refuse."""
    if load.draining:
        raise Draining("the gateway is shutting down", retry_after=2.0)
    if load.in_flight + asked > limit:
        raise Overloaded(f"{load.in_flight} generations in flight, limit {limit}", retry_after=RETRY_AFTER_S)
    if session_in_flight + asked > session_limit:
        raise Overloaded(
            f"{session_in_flight} generations in flight in this session, limit {session_limit}",
            retry_after=RETRY_AFTER_S,
        )


@dataclass(slots=True)
class Admission:
    """Counts generations in flight, and holds turns while weights are updated."""

    limits: Limits
    load: Load = field(default_factory=Load)
    resumed: asyncio.Event = field(default_factory=asyncio.Event)
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.resumed.set()
        self.idle.set()

    def refuse_overload(self, session: Session, asked: int) -> None:
        """Raises Draining or Overloaded if the session may not start `asked` more generations."""
        refuse(
            self.load,
            limit=self.limits.in_flight,
            session_in_flight=session.in_flight + session.counting,
            session_limit=self.limits.in_flight_per_session,
            asked=asked,
        )

    def enter(self, n: int) -> None:
        """`n` more generations are in flight."""
        self.load.in_flight += n
        self.idle.clear()

    def leave(self, n: int) -> None:
        """`n` of them are over."""
        self.load.in_flight -= n
        if self.load.in_flight == 0:
            self.idle.set()

    async def hold(self) -> None:
        """Waits until a weight update is over. Raises Paused when it takes longer than `pause_hold_s`, Draining when
        this process ends before."""
        if not self.load.paused:
            return
        try:
            async with asyncio.timeout(self.limits.pause_hold_s):
                await self.hold_begun()
        except TimeoutError:
            raise Paused("a weight update holds new turns", retry_after=5.0) from None

    async def hold_begun(self) -> None:
        """As `hold`, however long it takes: of a generation, whose time is `engine.timeoutSeconds`."""
        while self.load.paused:  # the next update may hold it before it has gone on
            self.refuse_if_draining()
            await self.resumed.wait()

    def refuse_if_draining(self) -> None:
        """Raises Draining while this process ends."""
        if self.load.draining:
            raise Draining("the gateway is shutting down", retry_after=2.0)

    def pause(self) -> None:
        """Holds turns that have not reached the engine."""
        self.load.paused = True
        if not self.load.draining:
            self.resumed.clear()

    def resume(self) -> None:
        """Lets held turns go on."""
        self.load.paused = False
        self.resumed.set()

    def drain(self) -> None:
        """Takes no new turns. Turns that a weight update holds are refused, because the engine was not asked yet."""
        self.load.draining = True
        self.resumed.set()

    async def drained(self, seconds: float) -> bool:
        """Whether the turns that run end in time."""
        try:
            async with asyncio.timeout(seconds):
                await self.idle.wait()
        except TimeoutError:
            return False
        return True
