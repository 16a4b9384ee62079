"""A run's --out directory: a real journal with known sessions, and the trajectories they gave."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

from sandgate.contract.trajectory import Trajectory
from sandgate.gateway.journal.records import Delivered, Opened, Record, Rewarded, Sealed, TurnCommitted
from sandgate.gateway.journal.reply import Reply
from sandgate.gateway.journal.sqlite import SqliteStore
from sandgate.trainer.export.arrow import write_parquet
from sandgate.trainer.tinymodel import END, encode
from tests.trainer.trajectories import trajectory


def opened(sample: int, **changes: Any) -> Opened:
    spec = {"job": "shop", "uid": "q1", "sample_index": sample, "group_size": 2, "attempt": 0, "metadata": {}}
    return Opened(at=1.0, spec=spec | changes)


def turn(name: str, parent: str | None, context: list[int], ids: list[int], **changes: Any) -> TurnCommitted:
    fields: dict[str, Any] = {
        "at": 2.0,
        "turn": name,
        "parent": parent,
        "fork": None,
        "digest": name.encode(),
        "context": array("i", context).tobytes(),
        "ids": array("i", ids).tobytes(),
        "logprobs": array("f", [-0.5] * len(ids)).tobytes(),
        "versions": ((7, 0, len(ids)),),
        "finish": "stop",
        "reply": Reply(text="ok"),
        "prompt_key": b"p" + name.encode(),
        "head_key": b"h",
        "prompt_tokens": len(context),
    }
    return TurnCommitted(**fields | changes)


FORKED: list[Record] = [
    opened(0),
    turn("t1", None, [1, 2, 3], [10, 11]),
    Delivered(at=2.5, turn="t1"),
    turn("t2", "t1", [4], [12], versions=((7, 0, 1),)),
    Delivered(at=2.6, turn="t2"),
    turn("t3", "t1", [5, 6], [13, 14], fork="user_or_tool_edited", versions=((7, 0, 1), (8, 1, 2))),
    Delivered(at=2.7, turn="t3"),
    turn(
        "t4",
        None,
        [9],
        [15],
        fork="compaction",
        finish="length",
        resampled=True,
        role="side",
        role_why="compaction",
    ),
    Rewarded(at=3.0, turn=None, reward=1.0),
    Sealed(at=4.0, reward=1.0),
]
"""t1 -> t2, and t3 which left t1; a new root t4 that was never delivered."""

LINEAR: list[Record] = [
    opened(1),
    turn("u1", None, [1, 2, 3], [10]),
    Delivered(at=2.5, turn="u1"),
    turn("u2", "u1", [4], [11]),
    Delivered(at=2.6, turn="u2"),
    Sealed(at=4.0, failure_class="policy", failure_reason="TurnLimit", complete=False),
]


def spoken(name: str, parent: str | None, context: str, sampled: str, **changes: Any) -> list[Record]:
    """A turn in words of the tiny model, delivered."""
    heard, said = encode(context), [*encode(sampled), END]
    return [turn(name, parent, heard, said, **changes), Delivered(at=2.5, turn=name)]


SPOKEN: list[Record] = [
    opened(0, uid="kiwi"),
    *spoken("a1", None, "<|im_start|>user\nbuy 7 kiwi<|im_end|>\n<|im_start|>assistant\n", "buy(kiwi, 7)",
            role="main"),
    *spoken("a2", "a1", "\n<|im_start|>tool\nreceipt 44<|im_end|>\n<|im_start|>assistant\n", "receipt 44",
            role="main"),
    *spoken("a3", None, "<|im_start|>user\ntitle of this chat?<|im_end|>\n<|im_start|>assistant\n", "Kiwi",
            fork="side_call", role="side", role_why="title"),
    Sealed(at=4.0, reward=1.0),
]  # fmt: skip
"""What docs/cli.md shows: a tool call, its answer, and a title asked for on the side."""


def rows_for(sessions: list[str], count: int = 2) -> list[Trajectory]:
    """Not what they said: what an export must give back as it is."""
    return [
        trajectory(
            number, session_id=sessions[number % len(sessions)], role="main", main=number < len(sessions)
        )
        for number in range(count)
    ]


async def write_run(out: Path, sessions: dict[str, list[Record]], *, rows: int | None = 2) -> Path:
    """`rows`: trajectories in trajectories.parquet, of the sessions in turn; None: the run has not finished, and there
    is none."""
    (out / "gateway-0").mkdir(parents=True)
    async with await SqliteStore.open(out / "gateway-0" / "journal.sqlite") as store:
        for session, records in sessions.items():
            await store.append(session, *records)
    if rows is not None:
        write_parquet(out / "trajectories.parquet", rows_for(list(sessions), rows))
    return out
