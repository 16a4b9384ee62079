"""Watches of the API server: kopf lists, watches and reconnects; what it sees goes to the job controller.

Only `on.event` is used, so no state, finalizer or annotation is ever written by kopf. A watch that has to begin with a
new list may have missed deletions, and kopf does not tell of them: that is what `relisted` is for.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import kopf

from sandgate.contract.errors import Unavailable
from sandgate.operator.kubernetes.access import Access
from sandgate.operator.kubernetes.client import HttpSession, session
from sandgate.operator.kubernetes.kinds import KINDS, WATCHED, selector
from sandgate.operator.settings import Settings

Json = Any

log = logging.getLogger(__name__)

SERVER_TIMEOUT_S = 300
"""The server ends a watch after this; the next goes on where it ended."""
INACTIVITY_S = 70.0
"""A watch that is silent for longer is dead: an API server sends a bookmark every minute."""
CONNECT_S = 10.0
REQUEST_S = 20.0
BACKOFFS_S = (1, 1, 2, 3, 5, 8, 13, 21)
"""Between kopf's tries of one call, whatever its failure; then it gives up. (Its own default.)"""
CHUNK = 500
"""Objects per page of a list."""
END_S = 5.0
"""For kopf to close its watches: it takes none, but it might wait for something."""
WORKER_IDLE_S = 1.0
"""kopf's task for an object ends after this."""


class _NoDiff(kopf.DiffBaseStorage):
    """Nothing is compared: kopf would copy every object three times per event for it."""

    def build(self, *, body: kopf.Body, extra_fields: Iterable[Any] | None = None) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, *, body: kopf.Body) -> kopf.BodyEssence | None:
        return None

    def store(self, *, body: kopf.Body, patch: kopf.Patch, essence: kopf.BodyEssence) -> None:
        return None


class _NoProgress(kopf.ProgressStorage):
    """No handler has progress to keep."""

    def fetch(self, **_: Any) -> None:
        return None

    def store(self, **_: Any) -> None:
        return None

    def purge(self, **_: Any) -> None:
        return None

    def touch(self, **_: Any) -> None:
        return None

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        return essence


IDENTITY: Any = "sandgate"
"""For peering, which is off; else kopf asks for the name of our user, which has none in an image. (Its own type for it
is not public.)"""


@dataclass(slots=True)
class Watches:
    """Watches of the three kinds. `saw` is told of every object of a list (event None) and of every change."""

    access: Access
    settings: Settings
    saw: Callable[[str, str | None, Mapping[str, Json]], None]
    relisted: Callable[[str], None] = lambda kind: None
    """Told when a watch of this kind began with a list: also the first time, also an empty one."""
    started: Callable[[], None] = lambda: None
    """Told when kopf has begun, and has taken SIGTERM and SIGINT for itself."""
    inactivity_s: float = INACTIVITY_S
    _sessions: list[HttpSession] = field(default_factory=list)
    """Made for kopf. It closes them too, unless one of its tasks does not end in time."""

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`. Raises before that when kopf gives up: then this process is blind and must end. Not by kopf's
        own way of ending: it waits for tasks that are not its own, and for watches that wait for credentials."""
        # kopf names itself after its user, for peering that is off; in an image our user has no name.
        os.environ.setdefault("LOGNAME", "sandgate")
        namespaces = self.settings.namespaces
        tasks = await kopf.spawn_tasks(
            registry=self._registry(),
            settings=self._kopf_settings(),
            standalone=True,
            clusterwide=not namespaces,
            namespaces=namespaces,
            stop_flag=stop,
        )
        self.started()
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in tasks:
                one.cancel()
            await asyncio.wait(tasks, timeout=END_S)
            for http in self._sessions:
                await http.close()
        if not stop.is_set():
            for one in done:
                one.result()  # says why
            raise Unavailable("kopf ended by itself")

    def _registry(self) -> kopf.OperatorRegistry:
        registry = kopf.OperatorRegistry()

        async def login(**_: Any) -> kopf.AiohttpSession:
            http = session(self.access, listed=self._listed)
            self._sessions = [*(one for one in self._sessions if not one.closed), http]
            return kopf.AiohttpSession(
                server=self.access.server, aiohttp_session=http, default_namespace=self.access.namespace
            )

        kopf.on.login(registry=registry, id="login")(login)
        for kind in WATCHED:
            known = KINDS[kind]
            watch = kopf.on.event(known.group, known.version, known.plural, registry=registry, id=kind)
            watch(self._teller(kind))
        return registry

    def _teller(self, kind: str) -> Callable[..., Any]:
        async def tell(event: Mapping[str, Any], **_: Any) -> None:
            self.saw(kind, event["type"], event["object"])

        return tell

    def _listed(self, path: str) -> None:
        for kind in WATCHED:
            if path.startswith(KINDS[kind].root) and path.endswith(f"/{KINDS[kind].plural}"):
                self.relisted(kind)

    def _kopf_settings(self) -> kopf.OperatorSettings:
        settings = kopf.OperatorSettings()
        settings.process.ultimate_exiting_timeout = None  # ours is the pod's grace period
        settings.posting.enabled = False
        settings.peering.standalone = True
        settings.scanning.disabled = True
        settings.queueing.worker_limit = None
        settings.queueing.idle_timeout = WORKER_IDLE_S
        settings.watching.server_timeout = SERVER_TIMEOUT_S
        settings.watching.inactivity_timeout = self.inactivity_s
        settings.watching.connect_timeout = CONNECT_S
        settings.watching.chunk_size = CHUNK
        settings.watching.initial_streaming = False
        settings.networking.request_timeout = REQUEST_S
        settings.networking.error_backoffs = BACKOFFS_S
        settings.persistence.diffbase_storage = _NoDiff()
        settings.persistence.progress_storage = _NoProgress()
        for kind in WATCHED:
            known = KINDS[kind]
            key = (known.group, known.version, known.plural)
            settings.watching.label_selectors[key] = selector(kind, self.settings.shard)
        return settings
