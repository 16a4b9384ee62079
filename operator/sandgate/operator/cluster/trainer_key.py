"""TrainerKeys: makes the key in a job's trainer Secret anew before it expires, for as long as the job is there."""

from __future__ import annotations

import asyncio
import logging

from sandgate.contract.errors import NotFound, SandgateError
from sandgate.contract.names import signing_name
from sandgate.operator.cluster.job_state import JobState
from sandgate.operator.cluster.key_life import trainer_key_span
from sandgate.operator.cluster.provision import secret_of
from sandgate.operator.manifests import trainer_secret
from sandgate.operator.plan.actions import Provided

log = logging.getLogger(__name__)

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
        due = self._due()
        if (
            self.at.observed.provided is Provided.IDLE
        ):  # nobody provides it: the one before may be from long ago
            due = 0.0
        while True:
            if (left := due - self.at.now()) > 0:
                await asyncio.sleep(min(left, LOOK_S))
                continue
            try:
                await self.renew()
            except (SandgateError, OSError, TimeoutError) as error:
                log.warning("job %s/%s: its trainer's key waits: %s", self.at.namespace, self.at.name, error)
                await asyncio.sleep(AGAIN_S)
                continue
            due = self._due()

    def _due(self) -> float:
        return self._span()[1]

    def _span(self) -> tuple[float, float]:
        uid = self.at.job.metadata.uid
        return trainer_key_span(uid, self.at.settings.trainer_key_seconds, self.at.now())

    async def renew(self) -> None:
        """Write the key of this time; of a job that has no signing Secret yet there is none to write."""
        at = self.at
        secret = at.secret.hex()
        if not secret:
            try:
                secret = secret_of(await at.kube.get("Secret", at.namespace, signing_name(at.name)))
            except NotFound:
                return
        await at.kube.apply(trainer_secret(at.job, at.settings, secret, self._span()[0]))
