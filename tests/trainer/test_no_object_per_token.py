"""From the journal's records to the trainer's arrays: what is made of Python objects does not grow with the tokens."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from array import array
from collections.abc import Callable
from typing import Any

from sandgate.contract.trajectory import Trajectory
from sandgate.gateway.delivery import arrow
from sandgate.gateway.journal.records import Delivered, Opened, Record, Sealed, TurnCommitted, decode, encode
from sandgate.gateway.journal.reply import Reply
from sandgate.gateway.service.session_tree import trajectories_from
from sandgate.gateway.trajectories.linearize import Facts
from sandgate.trainer.client.groups import nbytes
from sandgate.trainer.client.lag import oldest
from sandgate.trainer.export.arrow import from_ipc

FEW, MANY = 1_000, 100_000
BLOCKS = 1_000
"""Objects that may be more or less from one run to the next, whatever else this process frees meanwhile (132 were
seen); one for each token would be 99,000."""


def journalled(tokens: int) -> list[bytes]:
    """A session with one turn: half of the tokens are its prompt. Ids beyond those that Python keeps ready."""
    half = tokens // 2
    turn = TurnCommitted(
        at=1.0, turn="t", parent=None, fork=None, digest=b"d",
        context=array("i", range(1000, 1000 + half)).tobytes(),
        ids=array("i", range(1000, 1000 + half)).tobytes(),
        logprobs=array("f", [-0.1] * half).tobytes(),
        versions=((700, 0, half),), finish="stop", reply=Reply(), prompt_key=b"p", head_key=b"h", prompt_tokens=half,
    )  # fmt: skip
    records: list[Record] = [
        Opened(at=1.0, spec={"uid": "q"}),
        turn,
        Delivered(at=1.0, turn="t"),
        Sealed(at=2.0),
    ]
    return [encode(record) for record in records]


def whole_path(raws: list[bytes]) -> list[Trajectory]:
    rows = trajectories_from("s", map(decode, raws), Facts())
    found = list(from_ipc(arrow.to_ipc(rows)))
    assert nbytes(found) > 0
    assert oldest(found) == 700
    return found


def cost(work: Callable[[], Any]) -> tuple[int, int]:
    """(blocks that its result keeps, bytes at its peak)."""
    work()  # what only the first time makes
    gc.collect()
    before = sys.getallocatedblocks()
    kept = work()
    gc.collect()
    blocks = sys.getallocatedblocks() - before
    del kept
    tracemalloc.start()
    try:
        work()
        return blocks, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_objects_do_not_grow_with_tokens_and_memory_is_that_of_arrays() -> None:
    few, many = journalled(FEW), journalled(MANY)
    (few_blocks, few_peak), (many_blocks, many_peak) = (
        cost(lambda: whole_path(few)),
        cost(lambda: whole_path(many)),
    )
    assert abs(many_blocks - few_blocks) < BLOCKS
    grown = (many_peak - few_peak) / (MANY - FEW)
    assert grown < 40, (
        f"{grown:.0f} bytes a token at the peak; a list of ints alone takes 36 beside its arrays"
    )


def test_the_measure_sees_a_list() -> None:
    many = journalled(MANY)
    blocks, _ = cost(lambda: [list(row.response_ids) for row in whole_path(many)])
    assert blocks > MANY // 4
