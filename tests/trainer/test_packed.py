"""Packed trees: what is shared is stored once, what comes out is what went in, and the mask is the paths'."""

from __future__ import annotations

from array import array
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.contract.errors import CorruptRecord, InvalidBody
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.export.packed import Leaf, PackedTree, unpack
from sandgate.trainer.export.packing import pack_trees
from tests.trainer.trajectories import exact, trajectory

FEW = st.integers(1, 3)
"""Few ids and few logprobs, so that rows do share."""


@st.composite
def alike(draw: st.DrawFn) -> Trajectory:
    """A row that keeps the record's laws, and is likely to share its head with the next one."""
    prompt, n = draw(st.integers(0, 4)), draw(st.integers(0, 6))
    mask = draw(st.lists(st.integers(0, 1), min_size=n, max_size=n))
    logprobs = [draw(st.sampled_from([-0.5, -1.5, 0.0])) if bit else 0.0 for bit in mask]
    return trajectory(
        draw(st.integers(0, 2)),
        uid=draw(st.sampled_from(["q1", "q1", "q1", "q2"])),
        prompt_ids=array("i", draw(st.lists(FEW, min_size=prompt, max_size=prompt))),
        response_ids=array("i", draw(st.lists(FEW, min_size=n, max_size=n))),
        response_logprobs=array("f", logprobs),
        loss_mask=array("b", mask),
        versions=array("i", [draw(st.integers(7, 8)) if bit else -1 for bit in mask]),
        turn_ids=(), turn_ends=(), turn_rewards=(),
        reward=draw(st.none() | st.floats(-1, 1)),
        multimodal=draw(st.sampled_from([None, None, b"image"])),
    )  # fmt: skip


def tokens(row: Trajectory) -> list[int]:
    return [*row.prompt_ids, *row.response_ids]


ROWS = st.lists(alike(), max_size=8)
ROOM = st.integers(1, 40)


@given(rows=ROWS, room=ROOM)
def test_unpacking_gives_back_every_trajectory(rows: list[Trajectory], room: int) -> None:
    found = [row for tree in pack_trees(rows, max_tokens=room) for row in unpack(tree)]
    assert [exact(row) for row in found] == [exact(row) for row in rows]


@given(rows=ROWS, room=ROOM)
def test_a_packed_row_is_one_group_and_keeps_to_its_room(rows: list[Trajectory], room: int) -> None:
    for tree in pack_trees(rows, max_tokens=room):
        assert {leaf.record.uid for leaf in tree.leaves} == {tree.uid}
        assert len(tree.leaves) == 1 or len(tree.input_ids) <= room


@given(rows=ROWS)
def test_a_group_that_fits_is_one_row(rows: list[Trajectory]) -> None:
    """So that room is not asked for in vain: nothing is closed early."""
    group = [row for row in rows if row.uid == "q1"]
    for alone in pack_trees(group):
        assert len(list(pack_trees(group, max_tokens=max(1, len(alone.input_ids))))) == 1


@given(rows=ROWS)
def test_a_token_sees_exactly_what_is_before_it_on_its_path(rows: list[Trajectory]) -> None:
    for tree in pack_trees(rows):
        mask, before = tree.attention_mask(), tree.token_parents()
        for token in range(len(tree.input_ids)):
            path, at = [token], int(before[token])
            while at >= 0:
                path.append(at)
                at = int(before[at])
            assert np.flatnonzero(mask[token]).tolist() == path[::-1]
            assert tree.position_ids[token] == len(path) - 1


@given(rows=ROWS)
def test_a_leafs_indices_are_its_row(rows: list[Trajectory]) -> None:
    for tree in pack_trees(rows):
        for leaf, row in zip(tree.leaves, unpack(tree), strict=True):
            where = tree.indices(leaf)
            assert tree.input_ids[where].tolist() == tokens(row)
            assert tree.position_ids[where].tolist() == list(range(len(where)))


@given(rows=ROWS)
def test_a_context_that_two_rows_share_is_stored_once(rows: list[Trajectory]) -> None:
    """No two children of one segment begin alike, unless both are sampled: then their logprobs or versions differ."""
    for tree in pack_trees(row for row in rows if row.multimodal is None):
        heads: dict[tuple[int, int], list[int]] = {}
        for start, parent in zip(tree.starts.tolist(), tree.parents.tolist(), strict=True):
            heads.setdefault((parent, int(tree.input_ids[start])), []).append(start)
        for same in heads.values():
            if len(same) > 1:
                known = {(float(tree.logprobs[at]), int(tree.versions[at])) for at in same}
                assert len(known) == len(same)
                assert all(tree.loss_mask[at] for at in same)


def sampled(ids: list[int], logprob: float = -0.5, number: int = 0, **changes: Any) -> Trajectory:
    """Context 1 2 3, then these."""
    n = len(ids)
    return trajectory(
        number,
        **{
            "response_ids": array("i", ids),
            "response_logprobs": array("f", [logprob] * n),
            "loss_mask": array("b", [1] * n),
            "versions": array("i", [7] * n),
            "turn_ids": ("a",), "turn_ends": (n,), "turn_rewards": (1.0,),
            **changes,
        },
    )  # fmt: skip


def given_once(ids: list[int], number: int = 0) -> Trajectory:
    """The same as context: a turn that an earlier trajectory of the session trains."""
    n = len(ids)
    nothing: dict[str, Any] = {"loss_mask": array("b", [0] * n), "versions": array("i", [-1] * n)}
    return sampled(ids, 0.0, number, **nothing)


STORED: dict[str, tuple[list[Trajectory], list[int], list[tuple[int, ...]]]] = {
    "siblings share their prompt": (
        [sampled([10, 11]), sampled([12], number=1)], [1, 2, 3, 10, 11, 12], [(1,), (2,)]),
    "the same sample with the same logprobs is stored once, and trained by both": (
        [sampled([10, 11]), sampled([10, 12], number=1)], [1, 2, 3, 10, 11, 12], [(1, 2), (1, 3)]),
    "the same sample with other logprobs is two samples": (
        [sampled([10, 11]), sampled([10, 12], -0.25, 1)], [1, 2, 3, 10, 11, 10, 12], [(1,), (2,)]),
    "the same sample of another version is two samples": (
        [sampled([10]), sampled([10], number=1, versions=array("i", [8]))], [1, 2, 3, 10, 10], [(1,), (2,)]),
    "a turn that only the first trajectory trains is stored once": (
        [sampled([10, 11]), given_once([10, 11, 4])], [1, 2, 3, 10, 11, 4], [(1,), ()]),
    "also when the one that trains it comes second": (
        [given_once([10, 11, 4]), sampled([10, 11])], [1, 2, 3, 10, 11, 4], [(), (1,)]),
    "a row that ends inside another one": (
        [sampled([10, 11, 12]), sampled([10], number=1)], [1, 2, 3, 10, 11, 12], [(1, 2), (1,)]),
    "the same row twice": ([sampled([10]), sampled([10])], [1, 2, 3, 10], [(1,), (1,)]),
    "nothing in common": (
        [sampled([10]), sampled([10], prompt_ids=array("i", [9]))], [1, 2, 3, 10, 9, 10], [(1,), (3,)]),
    "other images, other tokens": (
        [sampled([10], multimodal=b"a"), sampled([10], multimodal=b"b")], [1, 2, 3, 10, 1, 2, 3, 10], [(1,), (3,)]),
    "a row without a token": ([sampled([], prompt_ids=array("i")), sampled([10])], [1, 2, 3, 10], [(), (1,)]),
}  # fmt: skip
"""Rows -> stored ids, and which segments each row trains."""


@pytest.mark.parametrize(("rows", "ids", "trained"), STORED.values(), ids=STORED)
def test_what_is_stored(rows: list[Trajectory], ids: list[int], trained: list[tuple[int, ...]]) -> None:
    (tree,) = pack_trees(rows)
    assert tree.input_ids.tolist() == ids
    assert [leaf.trained for leaf in tree.leaves] == trained
    assert [exact(row) for row in unpack(tree)] == [exact(row) for row in rows]


@pytest.mark.parametrize("common", [0, 1, 63, 64, 65, 200, 499, 500])
@pytest.mark.parametrize("trained", [True, False], ids=["sampled", "context"])
def test_long_stretches_are_shared_up_to_the_token_where_they_part(common: int, trained: bool) -> None:
    ids = list(range(500))
    other = [*ids[:common], *range(1000, 1500 - common)]
    rows = [sampled(ids), sampled(other, number=1)]
    if not trained:
        rows = [given_once(ids), given_once(other, 1)]
    (tree,) = pack_trees(rows)
    assert len(tree.input_ids) == 3 + 500 + (500 - common)
    assert [exact(row) for row in unpack(tree)] == [exact(row) for row in rows]


BROKEN: dict[str, dict[str, Any]] = {
    "loss_mask is neither 0 nor 1": {"loss_mask": array("b", [1, 1, 0, 0, 2])},
    "response_logprobs is not 0.0 where": {"response_logprobs": array("f", [-1, -1, -1, 0, -1])},
    "versions is not -1 where": {"versions": array("i", [7, 7, 7, -1, 8])},
}


@pytest.mark.parametrize("why", BROKEN)
def test_a_row_that_breaks_the_records_laws_is_named(why: str) -> None:
    with pytest.raises(InvalidBody, match=f"session shop-q1-0 trajectory 0: {why}"):
        list(pack_trees([trajectory(**BROKEN[why])]))


def test_no_room_at_all_is_refused() -> None:
    with pytest.raises(InvalidBody, match="max_tokens must be at least 1"):
        list(pack_trees([], max_tokens=0))


def test_a_mask_that_would_not_fit_says_what_to_do() -> None:
    (tree,) = pack_trees([trajectory(prompt_ids=array("i", range(1 << 15)))])
    with pytest.raises(InvalidBody, match=r"use ends\(\), or pack with max_tokens"):
        tree.attention_mask()


def test_one_packed_row_is_held_at_a_time() -> None:
    taken = 0

    def source() -> Any:
        nonlocal taken
        for number in range(100):
            taken += 1
            yield trajectory(uid=f"q{number // 4}")

    trees = pack_trees(source())
    assert (len(next(trees).leaves), taken) == (4, 5)
    assert sum(len(tree.leaves) for tree in trees) == 96


def changed(**changes: Any) -> PackedTree:
    (tree,) = pack_trees([sampled([10, 11]), sampled([12], number=1)])
    fields = {name: getattr(tree, name) for name in PackedTree.__dataclass_fields__}
    return PackedTree(**fields | changes)


CORRUPT: dict[str, tuple[dict[str, Any], str]] = {
    "arrays of different lengths": ({"versions": np.zeros(2, np.int32)}, "versions has 2 entries for 6 input_ids"),
    "a parent too few": ({"parents": np.zeros(2, np.int32)}, "2 parents for 3 starts"),
    "segments that overlap": ({"starts": np.array([0, 5, 3], np.int32)}, "do not divide 6 tokens"),
    "an empty segment": ({"starts": np.array([0, 3, 6], np.int32)}, "do not divide 6 tokens"),
    "tokens of no segment": ({"starts": np.array([1, 3, 5], np.int32)}, "do not divide 6 tokens"),
    "a parent that comes later": ({"parents": np.array([-1, 2, 0], np.int32)}, "parent is not an earlier one"),
    "a parent that is none": ({"parents": np.array([-2, 0, 0], np.int32)}, "parent is not an earlier one"),
    "a leaf beyond the last segment": ({"leaves": (Leaf(trajectory(), 3, 3),)}, "ends at segment 3 of 3"),
    "a prompt longer than its path": ({"leaves": (Leaf(trajectory(), 5, 2),)}, "cannot have 5 tokens"),
    "training beside the path": ({"leaves": (Leaf(trajectory(), 3, 2, (1,)),)}, "not on its path"),
}  # fmt: skip


@pytest.mark.parametrize(("changes", "why"), CORRUPT.values(), ids=CORRUPT)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], why: str) -> None:
    assert len(changed().leaves) == 2
    with pytest.raises(CorruptRecord, match=why):
        changed(**changes)


def test_a_trained_prompt_is_refused() -> None:
    with pytest.raises(CorruptRecord, match="trains its prompt"):
        list(unpack(changed(leaves=(replace(changed().leaves[0], prompt_tokens=4),))))
