"""A process that fills a journal with groups and retires them until it is killed, and says what it was told is gone.

Usage: python retiring_writer.py JOURNAL PREFIX. Prints one group per line, each only after its retirement returned.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import sys

from sandgate.gateway.journal.records import RETIRED, Record, Retired
from sandgate.gateway.journal.sqlite import SqliteStore
from tests.gateway.journal.samples import turn

SAMPLES = 4
TURNS = 3


async def fill(store: SqliteStore, group: str) -> list[str]:
    """A group whose records are durable."""
    sessions = [f"{group}.{sample}" for sample in range(SAMPLES)]
    turns = (
        store.append(name, turn(f"t{number}", tokens=2_000)) for name in sessions for number in range(TURNS)
    )
    await asyncio.gather(*turns)
    return sessions


async def main(path: str, prefix: str) -> None:
    async with await SqliteStore.open(path) as store:
        waiting = asyncio.create_task(fill(store, f"{prefix}.0"))
        for number in itertools.count(1):
            sessions = await waiting
            waiting = asyncio.create_task(
                fill(store, f"{prefix}.{number}")
            )  # turns and retirements share commits
            lines: dict[str, Record] = {
                RETIRED + name: Retired(schema=11, at=1.0, opened=0.0) for name in sessions
            }
            await store.retire(sessions, lines)
            os.write(1, f"{prefix}.{number - 1}\n".encode())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
