"""Writes the golden journals of the current schema, once per schema: `python -m tests.journals.build`. What it wrote is
committed and never written again, because it stands for what users have on their disks.
"""

from __future__ import annotations

import asyncio
import sys
from array import array
from pathlib import Path

from sandgate.gateway.journal.records import SCHEMA as VERSION
from sandgate.gateway.journal.records import Delivered, Record, Rewarded, Sealed, TurnCommitted
from sandgate.gateway.journal.reply import Reply
from sandgate.gateway.journal.sqlite import SqliteStore
from tests.gateway.journal.samples import EVERY_KIND
from tests.gateway.trajectories.books import Journalled
from tests.journals.told import lines, told

HERE = Path(__file__).parent


def said(
    name: str, parent: str | None, code: int, *, fork: str | None = None, count: int = 3
) -> list[Record]:
    """A turn and its delivery; ids and logprobs say which turn they are of."""
    turn = TurnCommitted(
        at=float(code),
        turn=name,
        parent=parent,
        fork=fork,
        digest=bytes([code]) * 32,
        context=array("i", range(100 * code, 100 * code + 2)).tobytes(),
        ids=array("i", range(100 * code + 50, 100 * code + 50 + count)).tobytes(),
        logprobs=array("f", [-code / 8 - n / 64 for n in range(count)]).tobytes(),
        versions=((1, 0, 1), (2, 1, count)),
        finish="stop",
        reply=Reply(text=f"answer {name}"),
        prompt_key=bytes([code]),
        head_key=b"head",
        sampling={"temperature": 1.0},
        prompt_tokens=2,
    )
    return [turn, Delivered(at=float(code), turn=name)]


def job() -> list[tuple[str, Record]]:
    """Two tasks of two samples: a fork, a retried infrastructure failure, a lease acked in part, one given back."""
    it = Journalled(size=2)
    it.open("q1.0.0", "q1.1.0", "q2.0.0")
    for session, record in [
        *(("q1.0.0", record) for record in said("a", None, 1) + said("b", "a", 2)),
        *(("q1.0.0", record) for record in said("c", "a", 3, fork="assistant_edited")),
        *(("q1.1.0", record) for record in said("d", None, 4)),
        ("q1.0.0", Rewarded(at=5.0, turn="b", reward=0.5)),
        ("q1.0.0", Sealed(at=6.0, reward=1.0, discount=0.5, info={"checked": True})),
    ]:
        it.write(session, record)
    it.seal("q1.1.0", failure="infra")
    it.open("q1.1.1")
    for record in said("e", None, 5):
        it.write("q1.1.1", record)
    it.seal("q1.1.1", "q2.0.0", failure="policy")
    assert it.lease("l1") == ("q1.0.0", "q1.1.1")
    it.ack("l1", ["q1.0.0"])
    it.close("q2")
    assert it.lease(
        "l2",
    ) == ("q2.0.0",)
    it.nack("l2")
    return it.log


async def write(path: Path, log: list[tuple[str, Record]]) -> None:
    async with await SqliteStore.open(path) as store:
        for session, record in log:
            await store.append(session, record)
        path.with_suffix(".jsonl").write_text(lines(told(store)), "utf-8")
    path.with_name(f"{path.name}.lock").unlink()


async def main() -> None:
    folder = HERE / f"v{VERSION}"
    if any(folder.glob("*.sqlite")):
        sys.exit(f"{folder.name} is written already, for ever")
    folder.mkdir(exist_ok=True)
    await write(folder / "every-kind.sqlite", [("s", record) for record in EVERY_KIND.values()])
    await write(folder / "job.sqlite", job())


if __name__ == "__main__":
    asyncio.run(main())
