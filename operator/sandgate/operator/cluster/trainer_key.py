"""TrainerKeys: makes the key in a job's trainer Secret anew before it expires, for as long as the job is there."""

from __future__ import annotations

import asyncio
import logging

from sandgate.contract.errors import SandgateError
from sandgate.operator.cluster.job_state import JobState
from sandgate.operator.cluster.key_life import spread, trainer_key_span
from sandgate.operator.cluster.provision import renew_trainer_key

log = logging.getLogger(__name__)

FIRST_S = 600.0
"""Jobs are first looked at within this, each at a time of its own: the operator before may have died long ago, and
what provides a job may be held up before it comes to this key."""
LOOK_S = 3600.0
"""Between looks at the clock: a machine's may be set, and sleeps are counted by another."""
AGAIN_S = 60.0
"""Between tries where the API server is away: half of the key's life is left."""


class TrainerKeys:
    """Of one job. Who provides it makes the first."""

    def __init__(self, at: JobState) -> None:
        self.at = at

    async def run(self) -> None:
        """For ever; nothing where keys never expire."""
        seconds = self.at.settings.trainer_key_seconds
        if not seconds:
            return
        due = self.at.now() + spread(self.at.job.metadata.uid) * min(FIRST_S, seconds / 2)
        while True:
            if (left := due - self.at.now()) > 0:
                await asyncio.sleep(min(left, LOOK_S))
                continue
            try:
                due = await self._renew(seconds)
            except (SandgateError, OSError, TimeoutError) as error:
                log.warning("job %s/%s: its trainer's key waits: %s", self.at.namespace, self.at.name, error)
                await asyncio.sleep(AGAIN_S)

    async def _renew(self, seconds: int) -> float:
        """Write the key of this time. Returns when the next is due, in unix seconds."""
        at = self.at
        expires, due = trainer_key_span(at.job.metadata.uid, seconds, at.now())
        await renew_trainer_key(at.kube, at.job, at.settings, expires)
        return due
