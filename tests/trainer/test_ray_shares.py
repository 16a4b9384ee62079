"""How row groups are dealt out to Ray's read tasks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sandgate.trainer.ray.dataset import shares

FILES = st.lists(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 99)), max_size=5), max_size=4)


@given(found=FILES, tasks=st.integers(1, 9))
def test_every_row_group_is_read_once_in_order_by_no_more_tasks_than_asked_for(
    found: list[list[tuple[int, int]]], tasks: int
) -> None:
    files = [(f"f{number}", groups) for number, groups in enumerate(found)]
    dealt = shares(files, tasks)
    assert 1 <= len(dealt) <= tasks
    assert [(file, at) for parts, _, _ in dealt for file, numbers in parts for at in numbers] == [
        (file, at) for file, groups in files for at in range(len(groups))
    ]
    assert sum(rows for _, rows, _ in dealt) == sum(rows for _, groups in files for rows, _ in groups)
    assert sum(size for _, _, size in dealt) == sum(size for _, groups in files for _, size in groups)


def test_row_groups_of_one_size_are_dealt_evenly() -> None:
    dealt = shares([("a", [(10, 1)] * 6), ("b", [(10, 1)] * 2)], 4)
    assert dealt == [([("a", (0, 1))], 20, 2), ([("a", (2, 3))], 20, 2), ([("a", (4, 5))], 20, 2),
                     ([("b", (0, 1))], 20, 2)]  # fmt: skip
