"""Leader election among the operator's replicas, by a Lease of coordination.k8s.io. Clocks of two machines are never
compared: a Lease has run out when it did not change for its whole duration, by our own clock.

The holder gives up well before others may take over. A stalled process may still have one request under way when it
wakes up: that is harmless, because objects have derived names and deletions name the uid.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sandgate.contract.errors import Conflict, NotFound, SandgateError
from sandgate.contract.labels import MANAGED_BY, MANAGER
from sandgate.operator.kubernetes.client import KubeClient

Json = Any

log = logging.getLogger(__name__)

DURATION_S = 15.0
"""Nobody takes over from a holder that is silent for less."""
RENEW_WITHIN_S = 10.0
"""A holder that could not renew for this long is none any more."""
RENEW_EVERY_S = 2.0
LOOK_EVERY_S = 1.0
"""How soon a Lease that was given back is taken."""
CALL_S = 3.0
"""One request's time: several fit into RENEW_WITHIN_S."""
assert RENEW_EVERY_S + CALL_S < RENEW_WITHIN_S < DURATION_S


class LeaseLost(SandgateError):
    """This replica may not act any more: the process must end at once."""

    reason = "LeaseLost"


@dataclass(slots=True)
class LeaderLease:
    """`identity` must be of one process at a time: a pod's name is, because a container starts after the last ended.
    Times can be shortened for tests; their order must stay."""

    kube: KubeClient
    """Of its own: renewals wait behind nothing. Its deadline should be CALL_S."""
    namespace: str
    name: str
    identity: str
    duration_s: float = DURATION_S
    renew_within_s: float = RENEW_WITHIN_S
    renew_every_s: float = RENEW_EVERY_S
    look_every_s: float = LOOK_EVERY_S
    clock: Callable[[], float] = time.monotonic
    _body: dict[str, Json] = field(default_factory=dict)
    _seen: tuple[Json, ...] = ()
    _seen_at: float = 0.0
    _alive_at: float = float("-inf")

    @property
    def age_s(self) -> float:
        """Since the Lease was last seen, or renewed by us."""
        return self.clock() - self._alive_at

    async def acquire(self) -> None:
        """Return when this replica leads. Waits for ever; what fails is tried again."""
        self._alive_at = self.clock()
        said = ""
        while True:
            try:
                if await self._try():
                    log.info("leads: holds Lease %s/%s as %s", self.namespace, self.name, self.identity)
                    return
                now = f"stands by: Lease {self.namespace}/{self.name} is held by {self._holder}"
            except Conflict:
                now = said  # somebody was faster: look again
            except (SandgateError, OSError) as error:
                now = f"cannot read or write Lease {self.namespace}/{self.name}: {error}"
            if now != said:
                log.info("%s", now)
                said = now
            await asyncio.sleep(self.look_every_s * (1 + random.random() / 5))

    async def hold(self) -> None:
        """Renew for ever. Raises LeaseLost when another holds it, or it could not be renewed in time."""
        while True:
            end = self._alive_at + self.renew_within_s
            await asyncio.sleep(min(self.renew_every_s, max(0.0, end - self.clock())))
            try:
                async with asyncio.timeout(max(0.0, end - self.clock())):
                    await self._renew()
            except TimeoutError as error:
                raise LeaseLost(f"could not renew for {self.renew_within_s:g} s") from error
            except (SandgateError, OSError) as error:
                if isinstance(error, LeaseLost):
                    raise
                log.warning("Lease %s/%s is not renewed: %s", self.namespace, self.name, error)

    async def release(self) -> None:
        """Give it back, if it is ours: the next replica need not wait. Best effort: it runs out by itself anyway.

        It looks first, and again after a conflict: a renewal that was cancelled may be written all the same.
        """
        try:
            try:
                await self._give_back()
            except Conflict:
                await self._give_back()
        except NotFound:
            return
        except (SandgateError, OSError) as error:
            log.warning("Lease %s/%s is left to run out: %s", self.namespace, self.name, error)

    async def _give_back(self) -> None:
        self._body = await self.kube.get("Lease", self.namespace, self.name)
        if self._holder == self.identity:
            await self._write("", duration_s=1.0)
            log.info("gave back Lease %s/%s", self.namespace, self.name)

    @property
    def _holder(self) -> str:
        return str((self._body.get("spec") or {}).get("holderIdentity") or "")

    async def _try(self) -> bool:
        """Look once, and take it if nobody has it. Raises Conflict if another was faster."""
        started = self.clock()
        try:
            self._body = await self.kube.get("Lease", self.namespace, self.name)
        except NotFound:
            meta = {
                "name": self.name,
                "namespace": self.namespace,
                "labels": {MANAGED_BY: MANAGER},
            }
            self._body = await self.kube.create(
                {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": meta}
            )
        self._alive_at = started
        if self._holder not in ("", self.identity) and not self._ran_out(started):
            return False
        await self._write(self.identity, duration_s=self.duration_s)
        return True

    def _ran_out(self, now: float) -> bool:
        """Has it not changed for its duration, since we first saw it so?"""
        spec = self._body["spec"]
        seen = (spec.get("holderIdentity"), spec.get("renewTime"), spec.get("leaseTransitions"))
        if seen != self._seen:
            self._seen, self._seen_at = seen, now
        theirs = float(spec.get("leaseDurationSeconds") or 0.0)
        return now - self._seen_at > max(theirs, self.duration_s)

    async def _renew(self) -> None:
        try:
            await self._write(self.identity, duration_s=self.duration_s)
        except (Conflict, NotFound) as error:
            await self._look(error)
            await self._write(self.identity, duration_s=self.duration_s)

    async def _look(self, why: Exception) -> None:
        """Somebody wrote it: an upgrade of the chart touches its labels, but another holder ends us."""
        try:
            self._body = await self.kube.get("Lease", self.namespace, self.name)
        except NotFound:
            raise LeaseLost("somebody deleted it") from why
        if self._holder != self.identity:
            raise LeaseLost(f"held by {self._holder or 'nobody'}") from why

    async def _write(self, holder: str, *, duration_s: float) -> None:
        """Raises Conflict if anybody wrote it since we read it."""
        now = self.clock()
        stamp = datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
        before = self._body.get("spec") or {}
        spec = {
            **before,
            "holderIdentity": holder,
            "renewTime": stamp,
            "leaseDurationSeconds": max(1, round(duration_s)),
        }
        if holder and self._holder != holder:
            spec["acquireTime"] = stamp
            spec["leaseTransitions"] = int(before.get("leaseTransitions") or 0) + 1
        self._body = await self.kube.replace({**self._body, "spec": spec})
        self._alive_at = now
