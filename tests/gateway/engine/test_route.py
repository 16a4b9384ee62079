"""Which replica takes a generation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.gateway.engine import routing
from sandgate.gateway.engine.routing import FAILURES_MAX, ReplicaTable

A, B, C = "http://a", "http://b", "http://c"

CASES: dict[str, tuple[list[str], list[str | None]]] = {
    "new sessions go where fewest are": (["g1/1", "g2/1", "g3/1"], [A, B, C]),
    "a session stays on its replica": (["g1/1", "-a", "g2/1", "-b", "g1/1"], [A, None, B, None, A]),
    "a group's second session joins the first": (["g1/1", "g1/2"], [A, A]),
    "a group larger than its share spreads": (["g1/1", "g1/2", "g1/3", "g1/4"], [A, A, B, C]),
    "sessions that rest count": (
        ["g1/1", "-a", "g2/1", "-b", "g3/1", "-c", "g1/1"],
        [A, None, B, None, C, None, A],
    ),
    "sessions that ended do not": (
        ["g1/1", "-a", "g2/1", "-b", "g3/1", "-c", "g1/1.", "g4/1"],
        [A, None, B, None, C, None, None, A],
    ),
    "sessions one after the other take turns": (
        ["g1/1", "-a", "g1/1.", "g2/1", "-b", "g2/1.", "g3/1", "-c", "g3/1.", "g4/1"],
        [A, None, None, B, None, None, C, None, None, A],
    ),
    "without a group or session: least in flight": (["", "", ""], [A, B, C]),
    "a session whose home is down moves": (["g1/1", "!a", "g1/1"], [A, None, B]),
    "a session that moved stays where it moved": (
        ["g1/1", "!a", "g1/1", "+a", "g1/1"],
        [A, None, B, None, B],
    ),
    "no replica is up": (["!a", "!b", "!c", "g1/1"], [None, None, None, None]),
    "one is up again": (["!a", "!b", "!c", "+b", "g1/1"], [None, None, None, None, B]),
    "what others do there counts": (["a=5", "b=1", "c=3", "g1/1"], [None, None, None, B]),
    "a group does not join where others do too much": (["g1/1", "a=9", "g1/2"], [A, None, B]),
    "a session leaves where others do too much": (["g1/1", "-a", "a=20", "g1/1"], [A, None, None, B]),
    "a session stays where others do a little more": (
        ["g1/1", "-a", "a=4", "b=3", "c=3", "g1/1"],
        [A, None, None, None, None, A],
    ),
}


@pytest.mark.parametrize(("events", "want"), CASES.values(), ids=CASES)
def test_table(events: list[str], want: list[str | None]) -> None:
    table = ReplicaTable.of((A, B, C))
    got: list[str | None] = []
    for event in events:
        done: str | None = None
        if event.startswith("-"):
            table.release(f"http://{event[1:]}")
        elif event.startswith("!"):
            table.down(f"http://{event[1:]}", "gone")
        elif event.startswith("+"):
            assert table.probed(f"http://{event[1:]}", None)
        elif "=" in event:
            table.reported(f"http://{event[0]}", float(event[2:]))
        elif event.endswith("."):
            table.ended(event[:-1])
        else:
            done = table.reserve(event.split("/")[0], session=event if "/" in event else "")
        got.append(done)
    assert got == want


def test_gateways_begin_at_different_replicas() -> None:
    urls = tuple(f"http://{number}" for number in range(8))
    first = [ReplicaTable.of(urls, peers=4, index=index).reserve("g", session="g/1") for index in range(4)]
    assert first == [urls[0], urls[2], urls[4], urls[6]]


def test_a_replica_is_down_after_failures_in_a_row_and_up_after_one_success() -> None:
    table = ReplicaTable.of((A,))
    seen = [table.probed(A, failure) for failure in ("slow", None, "slow", "dead", "dead", None)]
    assert seen == [False, False, False, True, False, True]
    assert FAILURES_MAX == 2
    assert table.status()[0].detail == ""


def test_avoided_replicas_are_not_taken() -> None:
    table = ReplicaTable.of((A, B))
    assert table.reserve("g", {A}) == B
    assert table.reserve("g", {A, B}) is None
    assert [each.in_flight for each in table.status()] == [0, 1]


def test_forgotten_sessions_are_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "HOMES_MAX", 2)
    table = ReplicaTable.of((A, B))
    for session in ("s1", "s2", "s1", "s3"):  # s2 is the least recently used
        table.release(str(table.reserve("", session=session)))
    assert set(table._sessions) == {"s1", "s3"}
    assert sum(replica.sessions for replica in table.replicas.values()) == 2


EVENTS = st.tuples(
    st.sampled_from(["take", "give", "down", "up", "end", "join", "leave", "report"]), st.integers(0, 4)
)


@given(st.lists(EVENTS, max_size=80), st.integers(1, 4))
def test_counts_are_what_was_taken_and_not_given_back(events: list[tuple[str, int]], peers: int) -> None:
    urls = (A, B, C)
    table = ReplicaTable.of(urls, peers=peers, index=peers - 1)
    held: list[str] = []
    for what, number in events:
        url = urls[number % 3]
        match what:
            case "take":
                taken = table.reserve(f"g{number // 2}", session=f"s{number}")
                assert (taken is None) == (not any(table.replicas[each].healthy for each in table.members()))
                if taken is not None:
                    assert table.replicas[taken].healthy
                    assert not table.replicas[taken].leaving
                    held.append(taken)
            case "give" if held:
                table.release(held.pop(number % len(held)))
            case "down":
                table.down(url, "x")
            case "up":
                table.probed(url, None)
            case "end":
                table.ended(f"s{number}")
            case "join":
                table.join(url)
            case "leave" if url in table.members():
                table.leave(url)
            case "report":
                table.reported(url, float(number))
        members = [each for each in table.replicas.values() if not each.leaving]
        assert sum(each.sessions for each in members) == len(table._sessions)
        assert [each.position for each in table.replicas.values()] == list(range(len(table.replicas)))
        assert all(each.others >= 0 for each in members)
        assert {each.url: each.in_flight for each in table.replicas.values() if each.in_flight} == {
            each: held.count(each) for each in set(held)
        }
