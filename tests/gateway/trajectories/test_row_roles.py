"""The role of a row is that of the turns that only it has; exactly one row is the main one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.gateway.conversation.message_equality import KEY_BYTES, NO_TOOLS
from sandgate.gateway.journal.records import Rewarded, Sealed
from sandgate.gateway.trajectories.linearize import linearize, main_reward, read_by_agent, rows_of
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
    found, number = roles_of(rows_of(turns, seen(turns)), read_by_agent(turns, seen(turns)))
    assert ([role.value for role in found], number) == (roles, main)


TOOLS = KEY_BYTES * b"s" + KEY_BYTES * b"t"
"""The head of an agent with tools, and one of another conversation without."""
BARE = KEY_BYTES * b"o" + NO_TOOLS


def main(
    name: str, parent: str | None = None, *, finish: str = "stop", index: int = 0, head: bytes = TOOLS
) -> T:
    return T(name, parent, finish=finish, index=index, role="main", head_key=head)


def cut(name: str, parent: str | None = None, *, index: int = 0, head: bytes = TOOLS) -> T:
    return main(name, parent, finish="cut", index=index, head=head)


LET_GO: dict[str, tuple[list[T], str, str]] = {
    "a first call that was let go of, and cut when its agent had its answer": (
        [main("a"), cut("b")], "", "a",
    ),
    "one that was whole by then": ([main("a"), main("b")], "b", "a"),
    "a later call, cut so": ([main("a"), main("b", "a"), cut("c", "a")], "", "ab"),
    "a later call, whole by then": ([main("a"), main("b", "a"), main("c", "a")], "c", "ab"),
    "the losers of a race of three": ([main("a"), cut("b"), cut("c")], "", "a"),
    "what it let go of before its answer": ([main("a"), cut("b", "a"), main("c", "a")], "", "ac"),
    "the last call, in which it ran out of time, is behind its answers": ([main("a"), cut("b", "a")], "", "ab"),
    "so is one that it was sent in part": ([main("a"), main("b", "a")], "b", "ab"),
    "its only call, in which it ran out of time": ([cut("a")], "", "a"),
    "of several such the last": ([cut("a"), cut("b")], "", "b"),
    "what it went on from counts as read": ([main("a"), cut("b"), cut("c", "b")], "", "bc"),
    "a conversation behind a summary, though its last call was cut": (
        [main("a"), main("b", "a"), main("c"), cut("d", "c")], "", "cd",
    ),
    "of n choices that were cut the first": (
        [main("a"), cut("b", "a"), cut("c", "a", index=1)], "", "ab",
    ),
    "of n choices that were let go of none": (
        [main("a"), main("b", "a"), cut("c", "a"), cut("d", "a", index=1)], "", "ab",
    ),
    "the second of n choices, if it went on from that": (
        [main("a"), main("b", index=1), cut("c", "b")], "", "bc",
    ),
    "a judge is not the agent for calls that its client let go of": (
        [main("a"), main("j", head=BARE), cut("k", head=BARE), cut("l", head=BARE)], "", "a",
    ),
    "nor for a second one": (
        [main("a"), main("b", "a"), main("j", head=BARE), cut("k", "j", head=BARE), cut("l", "k", head=BARE)],
        "", "ab",
    ),
    "an agent that ran out of time in its first call is not the title before it": (
        [main("j", head=BARE), cut("a")], "", "a",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("turns", "partly", "path"), LET_GO.values(), ids=LET_GO)
def test_the_main_row_is_where_the_agent_had_its_answer(turns: list[T], partly: str, path: str) -> None:
    delivered = {turn.id for turn in turns if turn.finish != "cut"} - set(partly)
    found = linearize(
        turns, session_id="s", spec={}, sealed=Sealed(at=1.0), delivered=delivered, partly=set(partly)
    )
    assert ["".join(row.turn_ids) for row in found if row.main] == [path]


def test_a_cut_turn_that_a_kill_left_in_doubt_is_none_that_the_agent_was_sent() -> None:
    turns = [main("a"), cut("b")]
    found = linearize(turns, session_id="s", spec={}, sealed=Sealed(at=1.0), delivered=seen(turns))
    assert [row.main for row in found] == [True, False]


def test_the_role_of_what_was_said_before_goes_with_the_title_that_the_agent_was_sent() -> None:
    turns = [main("a"), T("b", "a", role="side"), T("c", "a", role="side", finish="cut")]
    found = linearize(turns, session_id="s", spec={}, sealed=Sealed(at=1.0), delivered={"a", "b"})
    assert [(row.role, row.main) for row in found] == [("main", True), ("side", False)]


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
    rows = rows_of(turns, seen(turns))
    found, number = roles_of(rows, read_by_agent(turns, seen(turns)))
    assert len(found) == len(rows.ends)
    assert found[number] == "main"


@given(
    st.lists(
        st.tuples(
            st.integers(-1, 12),
            st.sampled_from(["", "main", "side", "subagent"]),
            st.integers(0, 1),
            st.sampled_from(["stop", "cut", "abort"]),
            st.none() | st.sampled_from([0.0, 0.1, 1.0, -2.5]),
        ),
        min_size=1, max_size=12,
    ),
    st.sets(st.sampled_from("abcdefghijkl")),
    st.sampled_from([0.0, 0.9, 1.0]),
)  # fmt: skip
def test_what_a_seal_says_of_rewards_of_turns_is_the_reward_of_the_main_row(
    shape: list[tuple[int, str, int, str, float | None]], unread: set[str], discount: float
) -> None:
    names = "abcdefghijkl"
    turns, rewarded = list[T](), list[Rewarded]()
    for at, (parent, role, index, finish, reward) in enumerate(shape):
        above = names[parent] if 0 <= parent < at else None
        turns.append(T(names[at], above, role=role, index=index, finish=finish))
        if reward is not None:
            rewarded.append(Rewarded(at=0.0, turn=names[at], reward=reward))
    read = seen(turns, *unread)
    rows = linearize(
        turns,
        session_id="s",
        spec={},
        sealed=Sealed(at=1.0, discount=discount),
        delivered=read,
        rewarded=rewarded,
    )
    told = main_reward(turns, spec={}, delivered=read, partly=(), rewarded=rewarded, discount=discount)
    assert told == next((row.reward for row in rows if row.main), None)


class Counted(T):
    """A turn that counts how often its id is looked at."""

    looks = 0

    def __getattribute__(self, name: str) -> object:
        Counted.looks += name == "id"
        return super().__getattribute__(name)


def late(count: int) -> list[T]:
    """A conversation of so many turns, and behind its last as many answers."""
    trunk = [main(f"t{at}", f"t{at - 1}" if at else None) for at in range(count)]
    return [*trunk, *(main(f"l{at}", f"t{count - 1}") for at in range(count))]


def comb(count: int) -> list[T]:
    """... and behind each of them one."""
    return [*late(count)[:count], *(main(f"l{at}", f"t{at}") for at in range(count))]


@pytest.mark.parametrize("grown", [late, comb])
def test_a_seals_work_grows_with_the_turns_and_not_with_the_rows_that_share_them(
    grown: Callable[[int], list[T]],
) -> None:
    looks = []
    for count in (50, 100):
        turns = [Counted(turn.id, turn.parent, role="main") for turn in grown(count)]
        rewarded = [Rewarded(at=0.0, turn=turn.id, reward=1.0) for turn in turns]
        read = seen(turns)
        Counted.looks = 0
        assert main_reward(turns, spec={}, delivered=read, partly=(), rewarded=rewarded, discount=1.0)
        looks.append(Counted.looks)
    assert looks[1] < 2.2 * looks[0]
