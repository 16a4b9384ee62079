"""RetiredLines: finds retired sessions in the journal, in threads; nothing of them is in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

from sandgate.gateway.journal.records import RETIRED, Retired
from sandgate.gateway.journal.store import Store
from sandgate.gateway.service.retired import session_of
from sandgate.gateway.service.session import Session

T = TypeVar("T")


@dataclass(slots=True)
class RetiredLines:
    """Of one journal."""

    store: Store
    threads: Executor | None = None
    """Where the journal is read; None: the loop's own."""
    count: int = 0
    """How many there are: while there are none, nobody looks."""

    async def find(self, session_id: str) -> Session | None:
        """The session, as its line tells it."""
        found = await self._in_thread(lambda: list(self.store.scan(RETIRED + session_id)))
        return next((session_of(session_id, line) for _, _, line in found if isinstance(line, Retired)), None)

    async def after(self, after: str, wanted: Callable[[Session], bool], limit: int) -> list[Session]:
        """Those that are wanted, in id order after `after`, at most `limit`."""

        def work() -> list[Session]:
            lines = self.store.scan_named(RETIRED, after)
            found = (
                session_of(name.removeprefix(RETIRED), line)
                for _, name, line in lines
                if isinstance(line, Retired)
            )
            return list(islice(filter(wanted, found), limit))

        return await self._in_thread(work)

    async def _in_thread(self, work: Callable[[], list[T]]) -> list[T]:
        if not self.count:
            return []
        return await asyncio.get_running_loop().run_in_executor(self.threads, work)
