"""StatusWriter: writes a job's newest status, once a second at most and never twice; and Events of its news."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from sandgate.contract.errors import Conflict, NotFound, SandgateError
from sandgate.contract.job import RolloutJob
from sandgate.contract.manifest_decoder import encode
from sandgate.contract.status import RolloutJobStatus
from sandgate.operator.cluster.api import Api
from sandgate.operator.plan.ends import stamp
from sandgate.operator.plan.status_events import News, news

log = logging.getLogger(__name__)

EVERY_S = 1.0
AGAIN_S = 5.0
EVENTS_MAX, EVENTS_S = 25, 300.0
"""Events of one job in so many seconds, at most: what flaps must not fill the API server."""


@dataclass(slots=True)
class StatusWriter:
    """`run` it as a task."""

    kube: Api
    namespace: str
    name: str
    written: RolloutJobStatus | None = None
    """As the API server has it."""
    uid: str = ""
    """Of the job; without one no Events are written."""
    now: Callable[[], float] = time.time
    _wanted: RolloutJobStatus | None = None
    _occasion: asyncio.Event = field(default_factory=asyncio.Event)
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Statuses are written whole."""
    _told: deque[float] = field(default_factory=lambda: deque(maxlen=EVENTS_MAX))

    def want(self, status: RolloutJobStatus) -> None:
        """Write this, unless something newer comes before its turn."""
        self._wanted = status
        self._occasion.set()

    async def run(self) -> None:
        """For ever."""
        while True:
            await self._occasion.wait()
            self._occasion.clear()
            try:
                await self.flush()
            except (SandgateError, OSError, TimeoutError) as error:
                log.warning("job %s/%s: status waits: %s", self.namespace, self.name, error)
                self._occasion.set()
                await asyncio.sleep(AGAIN_S)
            await asyncio.sleep(EVERY_S)

    async def begin(self, selector: str) -> None:
        """Before anything is made of a job: from then on it has begun, whatever comes of its first status."""
        async with self._writing:
            if self.written is None or not self.written.selector:
                status = replace(self.written or RolloutJobStatus(), selector=selector)
                await self._put(status)
                self.written = status

    async def flush(self, *, version: str = "") -> None:
        """Now. A job that is gone needs no status. With `version`, raises Conflict if the object has another one."""
        async with self._writing:
            await self._flush(version)

    async def _flush(self, version: str) -> None:
        status = self._wanted
        if status is None or status == self.written:
            return
        before = self.written
        try:
            await self._put(status, version)
        except NotFound:
            before = status  # and has no news
        self.written = status
        await self._tell(before, status)

    async def _put(self, status: RolloutJobStatus, version: str = "") -> None:
        """Of this job, and not of a later one that has its name: what is complete would never begin."""
        kind, body = RolloutJob.KIND, encode(status)
        if self.uid and not version:
            await self.kube.put_status(kind, self.namespace, self.name, body, uid=self.uid)
            return
        patch = {"status": body} | ({"metadata": {"resourceVersion": version}} if version else {})
        await self.kube.patch_status(kind, self.namespace, self.name, patch)

    async def _tell(self, before: RolloutJobStatus | None, status: RolloutJobStatus) -> None:
        for one in news(before, status):
            if not await self.say(one):
                return

    async def say(self, one: News) -> bool:
        """Events help people, and nothing waits for them: one that cannot be written is dropped. False: so is what
        comes at once behind it."""
        if not self.uid:
            return False
        now = self.now()
        if len(self._told) == EVENTS_MAX and now - self._told[0] < EVENTS_S:
            log.info("job %s/%s: no more Events for now: %s", self.namespace, self.name, one.condition)
            return False
        self._told.append(now)
        try:
            with suppress(Conflict):  # told already, by the operator before
                await self.kube.create(one.event(self.namespace, self.name, self.uid, stamp(now)))
        except (SandgateError, OSError, TimeoutError) as error:
            log.warning("job %s/%s: no Event of %s: %s", self.namespace, self.name, one.condition.type, error)
            return False
        return True
