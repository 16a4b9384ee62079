"""NamespaceWatches: watches of an operator that is told its namespaces, one for each: one that is gone ends no other.

A namespace that is deleted takes the operator's role with it: from then on all there is forbidden, and kopf gives up
for all that it watches. So each has a kopf of its own, which begins once the namespace can be listed, and again when it
can be again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from sandgate.contract.errors import Forbidden, NotFound, SandgateError
from sandgate.contract.labels import MANAGED_BY
from sandgate.operator.cluster.api import Api
from sandgate.operator.kubernetes.kinds import WATCHED

log = logging.getLogger(__name__)

LOOK_S = 10.0
"""Between looks at a namespace that cannot be listed."""
AGAIN_S = 1.0
"""After a watch that ended."""
NOBODY = f"{MANAGED_BY}=nobody"
"""A selector of nothing: whether a list is allowed is all that is asked."""
GONE = (403, 404)


class Watch(Protocol):
    """One kopf: `cluster.watches.Watches`."""

    async def run(self, stop: asyncio.Event) -> None: ...


@dataclass(slots=True)
class NamespaceWatches:
    """Run it once."""

    kube: Api
    namespaces: Sequence[str]
    watch: Callable[[str], Watch]
    """Of one namespace, made anew for each of its runs."""
    seen: Callable[[str, bool], None] = lambda namespace, visible: None
    """Told whether a namespace can be watched, whenever that was looked at."""

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`. Raises before that when a watch fails of something else than its namespace."""
        try:
            async with asyncio.TaskGroup() as tasks:
                for namespace in self.namespaces:
                    tasks.create_task(self._keep(namespace, stop), name=f"watches of {namespace}")
        except ExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _keep(self, namespace: str, stop: asyncio.Event) -> None:
        told = ""
        while not stop.is_set():
            why = await self._in_the_way(namespace)
            if why:
                if why != told:
                    log.warning("namespace %s is not watched: %s", namespace, why)
                    told = why
                await _pause(stop, LOOK_S)
                continue
            log.info("namespace %s is watched", namespace)
            told = ""
            try:
                await self.watch(namespace).run(stop)
                return
            except Exception as error:
                # Of what kopf raises only the HTTP status is known; it was 403 though it may be over by now.
                forbidden = getattr(error, "status", None) in GONE
                if not forbidden and not await self._in_the_way(namespace):
                    raise
                log.warning("namespace %s is not watched any more: %s", namespace, error)
            await _pause(stop, AGAIN_S)

    async def _in_the_way(self, namespace: str) -> str:
        """Why it cannot be watched; "": it can."""
        try:
            for kind in WATCHED:
                await self.kube.list_metadata(kind, namespace, labels=NOBODY)
        except (Forbidden, NotFound) as error:
            self.seen(namespace, False)
            return str(error)
        except (SandgateError, OSError, TimeoutError) as error:  # nothing is known of it
            return str(error) or type(error).__name__
        self.seen(namespace, True)
        return ""


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        pass
