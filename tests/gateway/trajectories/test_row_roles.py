"""The role of a row is that of the turns that only it has; exactly one row is the main one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.gateway.journal.records import Sealed
from sandgate.gateway.trajectories.linearize import leaves, linearize
from sandgate.gateway.trajectories.row_roles import roles_of
from tests.gateway.trajectories.forest import T, seen

CASES: dict[str, tuple[list[T], list[str], int]] = {
    "one conversation": ([T("a", role="main"), T("b", "a", role="main")], ["main"], 0),
    "a title first, then the conversation": ([T("a", role="side"), T("b", role="main")], ["side", "main"], 1),
    "a title after the answer is not the main row": (
        [T("a", role="main"), T("b", role="side")], ["main", "side"], 0,
    ),
    "a sub-agent that ends last is not the main row": (
        [T("a", role="main"), T("b", role="subagent"), T("c", "b", role="subagent")], ["main", "subagent"], 0,
    ),
    "a title in the middle of the conversation is a side call, whatever its head": (
        [T("a", role="main"), T("b", "a", role="side"), T("c", "a", role="main")], ["side", "main"], 1,
    ),
    "a conversation that ends in a summary, and the one that goes on from it": (
        [T("a", role="main"), T("b", "a", role="side"), T("c", fork="compaction", role="main")], ["main", "main"], 1,
    ),
    "a conversation that ends in two titles is in the newer one's row": (
        [T("a", role="main"), T("b", "a", role="side"), T("c", "a", role="side"), T("d", role="main")],
        ["side", "main", "main"], 2,
    ),
    "of an answer sampled again the newer is the main row": (
        [T("a", role="main"), T("b", "a", role="main"), T("c", "a", role="main")], ["main", "main"], 1,
    ),
    "of n choices the first is the main row": (
        [T("a", role="main"), T("b", role="main", index=1), T("c", role="main", index=2)], ["main"] * 3, 0,
    ),
    "where all are side calls the newest stands for the main row": (
        [T("a", role="side"), T("b", role="side")], ["side", "main"], 1,
    ),
    "old turns: a root is the agent's own, and what goes on with it": (
        [T("a"), T("b", "a"), T("c", fork="side_call"), T("d", "c")], ["main", "side"], 0,
    ),
    "a session without turns has no rows": ([], [], -1),
}  # fmt: skip


@pytest.mark.parametrize(("turns", "roles", "main"), CASES.values(), ids=CASES)
def test_roles_of_rows(turns: list[T], roles: list[str], main: int) -> None:
    found, number = roles_of(leaves(turns, seen(turns)))
    assert ([role.value for role in found], number) == (roles, main)


def test_what_was_said_before_a_title_is_trained_in_the_conversation_and_not_in_the_titles_row() -> None:
    turns = [T("a", role="main"), T("b", "a", role="side"), T("c", "a", role="main")]
    title, conversation = linearize(
        turns, session_id="s", spec={}, sealed=Sealed(at=1.0), delivered=seen(turns)
    )
    assert (title.role, title.loss_mask.tolist()) == ("side", [0, 0, 0, 0, 0, 1, 1, 1])
    assert (conversation.main, conversation.loss_mask.tolist()) == (True, [1, 1, 1, 0, 0, 1, 1, 1])


@given(
    st.lists(
        st.tuples(st.integers(-1, 20), st.sampled_from(["", "main", "side", "subagent"]), st.integers(0, 1)),
        min_size=1, max_size=12,
    )
)  # fmt: skip
def test_exactly_one_row_is_the_main_one(shape: list[tuple[int, str, int]]) -> None:
    names = "abcdefghijkl"
    turns = [
        T(names[at], names[parent] if 0 <= parent < at else None, role=role, index=index)
        for at, (parent, role, index) in enumerate(shape)
    ]
    paths = leaves(turns, seen(turns))
    found, number = roles_of(paths)
    assert len(found) == len(paths)
    assert found[number] == "main"
