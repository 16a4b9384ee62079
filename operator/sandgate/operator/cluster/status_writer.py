"""StatusWriter: writes a job's newest status, at most once a second, and never the same twice."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field

from sandgate.contract.errors import NotFound, SandgateError
from sandgate.contract.job import RolloutJob
from sandgate.contract.schema import encode
from sandgate.contract.status import RolloutJobStatus
from sandgate.operator.cluster.api import Api

log = logging.getLogger(__name__)

EVERY_S = 1.0
AGAIN_S = 5.0


@dataclass(slots=True)
class StatusWriter:
    """`run` it as a task."""

    kube: Api
    namespace: str
    name: str
    written: RolloutJobStatus | None = None
    """As the API server has it."""
    _wanted: RolloutJobStatus | None = None
    _occasion: asyncio.Event = field(default_factory=asyncio.Event)

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

    async def flush(self) -> None:
        """Now. A job that is gone needs no status."""
        status = self._wanted
        if status is None or status == self.written:
            return
        with suppress(NotFound):
            body = {"status": encode(status)}
            await self.kube.patch_status(RolloutJob.KIND, self.namespace, self.name, body)
        self.written = status
