"""WorkloadLooks: looks at all Workloads of Kueue that are ours, while a job waits in a queue or runs by one.

A list every two seconds, however many jobs there are, instead of a watch: it notices what went while nobody looked, and
a Kueue that is installed after the operator, or taken away, without anything more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field
from typing import Any

from sandgate.contract.errors import Forbidden, NotFound, SandgateError
from sandgate.contract.labels import MANAGED_BY, MANAGER
from sandgate.operator.cluster.api import Api
from sandgate.operator.cluster.job_queue import JobQueue
from sandgate.operator.cluster.object_store import text_of

log = logging.getLogger(__name__)

EVERY_S = 2.0
VAIN = 5
"""Looks in a row that find no such kind, or no right to it, before jobs are held for it: an API server that has just
started may not serve, or allow, all that it does."""
NO_KUEUE = (
    "the job names a queue of Kueue, and there is no Kueue: the API server serves no workloads.kueue.x-k8s.io v1beta2;"
    " install Kueue, or take the label kueue.x-k8s.io/queue-name away"
)


@dataclass(slots=True)
class WorkloadLooks:
    """Of one operator."""

    kube: Api
    namespaces: tuple[str, ...]
    queues: Callable[[], Iterable[JobQueue]]
    """Of all its jobs."""
    spawn: Callable[[Coroutine[Any, Any, None]], object]
    _running: bool = False
    _in_vain: dict[str, int] = field(default_factory=dict)
    """Namespace -> looks in a row that found nothing to look at."""

    def wake(self) -> None:
        """A job may ask something of a queue."""
        if not self._running and any(one.asks for one in self.queues()):
            self._running = True
            self.spawn(self._run())

    async def _run(self) -> None:
        try:
            while any(one.asks for one in self.queues()):
                await self._look()
                await asyncio.sleep(EVERY_S)
        finally:
            self._running = False

    async def _look(self) -> None:
        for place in self.namespaces or ("",):  # each by itself: one that is gone holds up no other
            # Before the list: it says nothing of what comes after it.
            asking = [
                (one, one.known) for one in self.queues() if one.asks and place in ("", one.at.namespace)
            ]
            if asking:
                await self._look_at(place, asking)

    async def _look_at(self, place: str, asking: list[tuple[JobQueue, int]]) -> None:
        try:
            found = await self._list(place)
        except NotFound:
            self._vain(place, asking, NO_KUEUE)
        except Forbidden as error:
            self._vain(place, asking, f"the operator may not look at Kueue's Workloads: {error}")
        except (SandgateError, OSError, TimeoutError) as error:
            log.warning("Workloads: %s", error)
        else:
            self._in_vain.pop(place, None)
            await self._tell(asking, found)

    def _vain(self, place: str, asking: list[tuple[JobQueue, int]], why: str) -> None:
        self._in_vain[place] = self._in_vain.get(place, 0) + 1
        for one, _ in asking if self._in_vain[place] >= VAIN else ():
            one.trouble(why)

    async def _tell(self, asking: list[tuple[JobQueue, int]], found: list[Any]) -> None:
        by_name = {
            (text_of(one, "metadata", "namespace"), text_of(one, "metadata", "name")): one for one in found
        }
        for one, known in asking:
            body = by_name.get((one.at.namespace, one.name))
            if body is None and one.known != known:
                continue  # it was made, or written to, meanwhile
            try:
                await one.saw(body)
            except (SandgateError, OSError, TimeoutError) as error:
                log.warning("Workload %s/%s: %s", one.at.namespace, one.name, error)

    async def _list(self, namespace: str) -> list[Any]:
        return await self.kube.list("Workload", namespace, labels=f"{MANAGED_BY}={MANAGER}")
