"""Measures each replica's logprobs mode before its first turn; a replica in another mode than the job's is not used."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from sandgate.contract.errors import EngineFailed, EngineUnavailable
from sandgate.gateway.engine.health import PROBE_S
from sandgate.gateway.engine.logprobs import ASKS, BELIEVED, MODES, Kind
from sandgate.gateway.engine.routing import ReplicaTable
from sandgate.gateway.engine.transport import Lost, Transport
from sandgate.gateway.engine.wire import words_of

MEASURE_S = 1800.0
"""Time-out of a measuring generation in seconds: it waits in the engine's queue as turns do, and through weight
updates."""

SETTLE_S = 10.0
"""Seconds that a gateway waits at its start for measurements; turns wait longer."""

BETWEEN_S = 0.05
"""Seconds to wait while a replica that came up is asked what it is, before its measurement starts."""

NOT_YET = "its logprobs are not measured yet"

log = logging.getLogger("sandgate.gateway.engine")


async def sampled(http: Transport, url: str, path: str, body: bytes) -> bytes:
    """The answer to a measuring request. Raises EngineFailed if it is refused, EngineUnavailable if there is none
    now."""
    try:
        async with asyncio.timeout(MEASURE_S):
            async with http.post(url + path, body, request_id=ASKS + uuid.uuid4().hex) as answer:
                status, content = answer.status, await answer.body()
    except (Lost, TimeoutError) as error:
        raise EngineUnavailable(f"{url}{path}: {error}") from error
    if status in (408, 425, 429) or status >= 500:
        raise EngineUnavailable(f"{url}{path} answers {status}: {words_of(content)}")
    if status != 200:
        raise EngineFailed(f"{url}{path} answers {status}: {words_of(content)}")
    return content


@dataclass(slots=True)
class LogprobsCheck:
    """Measures each replica of a set once, in the background, and says which may be used.

    A replica is not used before it was measured: its logprobs could be recorded under the wrong mode. Nor is one that
    refuses the measurement, which is asked `again`; but for one that asks to be BELIEVED.
    """

    mode: str
    """The mode of the gateway's settings; a mode that cannot be measured is believed."""
    table: ReplicaTable
    """The routing table, which gets the results."""
    ask: Callable[[str], Awaitable[Kind]]
    """Measures one replica."""
    unfit: Callable[[Kind, str], str]
    """Why a replica of that kind is not used in that mode (see `Dialect.against`)."""
    _fit: set[str] = field(default_factory=set)
    _running: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    wrong: dict[str, str] = field(default_factory=dict)
    """Replicas that are in another mode, or refused the measurement -> the sentence that says so."""
    _refused: set[str] = field(default_factory=set)

    def expect(self, url: str) -> None:
        """Keeps a replica of the set from being used before it was measured."""
        if self.mode in MODES and url not in self._fit:
            self.table.measured(url, unmeasured=NOT_YET)

    def start(self, url: str) -> None:
        """Starts to measure a replica, unless that is done or under way."""
        if self.mode not in MODES or url in self._fit or url in self._running:
            return
        self.expect(url)
        self._start(url)

    def _start(self, url: str) -> None:
        task = asyncio.create_task(self._until_known(url))
        self._running[url] = task
        task.add_done_callback(lambda done: self._ended(url, done))

    def again(self, url: str) -> None:
        """Measures a replica once more that refused the measurement: it may have been a proxy whose engine was
        starting. It stays out meanwhile."""
        if url in self._refused and url not in self._running:
            self._refused.discard(url)
            self._start(url)

    def forget(self, url: str) -> None:
        """A replica left, or its process ended: the next process at its address may be in another mode."""
        self._fit.discard(url)
        self._refused.discard(url)
        self.wrong.pop(url, None)
        self.expect(url)
        task = self._running.pop(url, None)
        if task is not None:
            task.cancel()

    async def settle(self) -> None:
        """Waits until nothing is being measured, SETTLE_S at most."""
        if self._running:
            await asyncio.wait(list(self._running.values()), timeout=SETTLE_S)

    async def next_of(self, urls: Sequence[str]) -> bool:
        """Waits until one of these replicas is measured, PROBE_S at most. False if `urls` is empty."""
        tasks = [self._running[url] for url in urls if url in self._running]
        if tasks:
            await asyncio.wait(tasks, timeout=PROBE_S, return_when=asyncio.FIRST_COMPLETED)
        elif urls:
            await asyncio.sleep(BETWEEN_S)
        return bool(urls)

    async def aclose(self) -> None:
        """Stops measuring."""
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _ended(self, url: str, task: asyncio.Task[None]) -> None:
        if self._running.get(url) is task:
            del self._running[url]
            if (
                not task.cancelled() and (error := task.exception()) is not None
            ):  # ours: turns must not wait for ever
                log.error("engine %s: its logprobs could not be measured", url, exc_info=error)
                self.table.measured(url, wrong=f"its logprobs could not be measured: {error!r}")

    async def _until_known(self, url: str) -> None:
        while True:
            why = await self._against(url)
            if why is not None:
                break
            await asyncio.sleep(PROBE_S)
        if not why:
            self._fit.add(url)
            self.wrong.pop(url, None)
        elif self.wrong.get(url) != why:
            self.wrong[url] = why
            log.error("engine %s is not used: %s", url, why)
        self.table.measured(url, wrong=why)

    async def _against(self, url: str) -> str | None:
        """Why a replica is not used, by measurement; empty: it is; None: it has to be asked again."""
        try:
            kind = await self.ask(url)
        except EngineUnavailable as error:
            if url not in self.wrong:
                self.table.measured(url, unmeasured=f"{NOT_YET}: {error}")
            return None
        except EngineFailed as error:
            if BELIEVED in str(error):
                log.warning("engine %s: its logprobs are taken for %s, unmeasured: %s", url, self.mode, error)
                return ""
            self._refused.add(url)
            return (
                f"its logprobs could not be measured, so that records may say wrongly what they are: {error}"
            )
        why = self.unfit(kind, self.mode)
        if kind == "unclear" and not why:
            log.warning("engine %s: its logprobs are taken for %s, unmeasured", url, self.mode)
        return why
