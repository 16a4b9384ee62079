"""Providing: brings about what the plan wants to stand of a job, and says why that cannot be.

What the API server refuses is asked again after a pause that grows, and at once for another spec; the job's news in
between ask nothing of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from sandgate.contract.errors import SandgateError
from sandgate.operator.cluster.job_state import JobState
from sandgate.operator.cluster.key_life import trainer_key_span
from sandgate.operator.cluster.provision import Leaving, Refused, Taken, provide, standing_secret
from sandgate.operator.observed.job import JOB_KEY
from sandgate.operator.plan.actions import Provided

TAKEN_S = 5.0
"""Between looks whether a name of the job's is free by now."""
AGAIN_S, AGAIN_S_MAX = 2.0, 60.0
"""Between tries of what the API server refuses, doubled each time."""
LEAVING_S = 5.0
"""At most between looks whether what is being deleted is gone."""
MESSAGE_MAX = 2048
"""Characters of its words: they are for people."""


@dataclass(slots=True)
class Providing:
    """Of one job."""

    at: JobState
    held_up: Callable[[str, str], None]
    """Told (which object of another has a name that the job needs, which object the API server does not take and its
    words) when it is another; ("", ""): nothing is in the way."""
    _said: tuple[str, str] = ("", "")
    _asked: object = None
    """What was last held up."""
    _tries: int = 0
    _not_before: float = 0.0
    """In the loop's time."""
    _timer: asyncio.TimerHandle | None = None
    """Has the job planned then: one at a time, however often it is planned before."""

    async def bring(self, what: Provided) -> bool:
        """True once all stands so. False: it was refused, and is not asked again yet; the job is planned anew when it
        may be. Raises Refused, after that was told, and what passes by itself. Whatever comes of it, gateways that
        stand are known."""
        asked = what, self.at.job.metadata.generation, dict(self.at.places)
        if asked != self._asked:
            self._asked, self._tries, self._not_before = asked, 0, 0.0
        now = asyncio.get_running_loop().time()
        if now < self._not_before:
            self._plan_then()
            return False
        try:
            secret = await self._provide(what)
        except Taken as error:  # people must decide: it is said, and looked at again
            self._says(taken=str(error))
            self._not_before = now + TAKEN_S
            raise Refused(str(error), retry_after=TAKEN_S) from error
        except Refused as error:
            await self._know_gateways(what)
            self._says(refused=str(error)[:MESSAGE_MAX])
            most = LEAVING_S if isinstance(error, Leaving) else AGAIN_S_MAX
            error.retry_after = min(AGAIN_S * (1 << min(self._tries, 16)), most)
            self._tries, self._not_before = self._tries + 1, now + error.retry_after
            raise
        except (SandgateError, OSError, TimeoutError):
            await self._know_gateways(what)
            raise
        self._asked = None
        self._says()
        self.at.signed(b"" if what is Provided.IDLE else bytes.fromhex(secret))
        return True

    def _plan_then(self) -> None:
        """Whoever saw the refusal may have planned the job sooner, for something else that failed beside it."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_at(self._not_before, self.at.changed, JOB_KEY)

    async def _provide(self, what: Provided) -> str:
        at = self.at
        expires, _ = trainer_key_span(at.job.metadata.uid, at.settings.trainer_key_seconds, at.now())
        return await provide(
            at.kube, at.job, at.settings, what, at.places, key_expires=expires, signed=at.secret.hex()
        )

    async def _know_gateways(self, what: Provided) -> None:
        """Gateways of an operator before this one hold sessions that must end, whatever else cannot be made."""
        if not self.at.secret and what is not Provided.IDLE:
            self.at.signed(bytes.fromhex(await standing_secret(self.at.kube, self.at.job)))

    def _says(self, *, taken: str = "", refused: str = "") -> None:
        if (taken, refused) != self._said:
            self._said = taken, refused
            self.held_up(taken, refused)
