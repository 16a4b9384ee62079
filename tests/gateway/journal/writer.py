"""A process that writes a journal until it is killed, and says what it was told is durable.

Usage: python writer.py JOURNAL PREFIX. Prints one turn id per line, each only after its append returned.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys

from sandgate.gateway.journal.sqlite import SqliteStore
from tests.gateway.journal.samples import turn

SESSIONS = 4
"""Written at the same time, so that groups form."""


async def write(store: SqliteStore, session: str, prefix: str) -> None:
    for number in itertools.count():
        name = f"{prefix}.{session}.{number}"
        await store.append(session, turn(name, tokens=200))
        os.write(1, f"{name}\n".encode())


async def main(path: str, prefix: str) -> None:
    async with await SqliteStore.open(path) as store:
        await asyncio.gather(*(write(store, f"s{number}", prefix) for number in range(SESSIONS)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
