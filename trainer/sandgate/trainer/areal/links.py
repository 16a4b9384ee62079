"""Links of this process, by AReaL's engine and job: each is opened once, and made anew when it was lost."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sandgate.contract.errors import SandgateError
from sandgate.trainer.areal.engines import follow, paused
from sandgate.trainer.areal.link import REST_S, Link

log = logging.getLogger("sandgate.trainer.areal")


@dataclass(slots=True)
class Followed:
    """What one engine tells, to the link that is open now: one that is made anew hears what was told meanwhile."""

    engine: Any
    """Kept, as ids of what is gone come again."""
    link: Link
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Held while a link is told, and while another takes its place."""
    on_hold: bool = False
    told: int | None = None
    """The version, once the engine has told one."""

    def hold(self) -> None:
        self.on_hold = True
        with self.lock:
            self.link.hold()

    def resume(self) -> None:
        self.on_hold = False
        with self.lock:
            self.link.resume()

    def version(self, version: int) -> None:
        self.told = version
        with self.lock:
            self.link.version(version)

    def close(self) -> None:
        with self.lock:
            link = self.link
        link.close()

    def open(self, link: Link) -> None:
        """In the place of what was there. Blocks."""
        link.open(self._version())
        with self.lock:
            self.link = link

    def begin(self) -> None:
        """The link that was opened is told what it missed. Raises Unavailable: it is closed then."""
        with self.lock:
            link = self.link
            try:
                link.version(self._version())
                link.begin(lambda: self.on_hold or paused(self.engine))
            except BaseException:
                link.close()  # the next episode makes another
                raise

    def _version(self) -> int:
        return int(self.engine.get_version()) if self.told is None else self.told


_links: dict[tuple[int, str], Followed] = {}
"""AReaL makes a workflow for each episode; a process has one link for each engine."""
_starting: dict[tuple[int, str], threading.Lock] = {}
"""Of each link: a job of evaluation may wait long for quota, and no episode of the training waits with it."""
_guard = threading.Lock()


async def linked(engine: Any, name: str, make: Callable[[], Link], rest_s: float = REST_S) -> Link:
    """See `link_of`. `rest_s`: before it is said that there is none: AReaL takes the episode for rejected, and begins
    the next at once."""
    try:
        return await asyncio.to_thread(link_of, engine, name, make)
    except SandgateError:
        await asyncio.sleep(rest_s)
        raise


def link_of(engine: Any, name: str, make: Callable[[], Link]) -> Link:
    """The link of this engine, opened at the first call, which blocks; and again when it was lost or closed: so a run
    that was killed is started again in its folder. Called in any thread."""
    inner = getattr(engine, "_engine", engine)
    with _guard:
        starting = _starting.setdefault((id(inner), name), threading.Lock())
    with starting:
        found = _links.get((id(inner), name))
        if found is None:
            found = Followed(inner, make())
            found.open(found.link)
            follow(inner, found)
            _links[id(inner), name] = found
            found.begin()
        elif found.link.closed or found.link.lost:
            _leave(found.link)
            found.open(make())
            found.begin()
        return found.link


def _leave(link: Link) -> None:
    """What it met with ends nothing: its gateways may be gone."""
    if link.closed:
        return
    log.warning("job %s: no groups come any more (%s); it is connected to anew", link.name, link.failure)
    try:
        link.close()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is gone
        log.warning("job %s: its old connection: %r", link.name, error)
