"""Which replica takes a generation."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.gateway.engine import routing
from sandgate.gateway.engine.routing import FAILURES_MAX, ReplicaTable

A, B, C = "http://a", "http://b", "http://c"

CASES: dict[str, tuple[list[str], list[str | None]]] = {
    "new groups go where least is in flight": (["g1", "g2", "g3"], [A, B, C]),
    "a group stays on its replica": (["g1", "g2", "g1", "g1"], [A, B, A, A]),
    "groups that rest count as homes": (
        ["g1", "-a", "g2", "-b", "g3", "-c", "g1"],
        [A, None, B, None, C, None, A],
    ),
    "without a group: least in flight": (["", "", ""], [A, B, C]),
    "a group whose home is down moves": (["g1", "!a", "g1"], [A, None, B]),
    "a group that moved stays where it moved": (["g1", "!a", "g1", "+a", "g1"], [A, None, B, None, B]),
    "no replica is up": (["!a", "!b", "!c", "g1"], [None, None, None, None]),
    "one is up again": (["!a", "!b", "!c", "+b", "g1"], [None, None, None, None, B]),
}


@pytest.mark.parametrize(("events", "want"), CASES.values(), ids=CASES)
def test_table(events: list[str], want: list[str | None]) -> None:
    table = ReplicaTable.of((A, B, C))
    got: list[str | None] = []
    for event in events:
        url = f"http://{event[1:]}"
        if event.startswith("-"):
            table.release(url)
            got.append(None)
        elif event.startswith("!"):
            table.down(url, "gone")
            got.append(None)
        elif event.startswith("+"):
            assert table.probed(url, None)
            got.append(None)
        else:
            got.append(table.reserve(event))
    assert got == want


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


def test_forgotten_groups_are_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routing, "HOMES_MAX", 2)
    table = ReplicaTable.of((A, B))
    for group in ("g1", "g2", "g1", "g3"):  # g2 is the least recently used
        table.release(str(table.reserve(group)))
    assert {url: replica.homes for url, replica in table.replicas.items()} == {A: 2, B: 0}
    assert set(table._homes) == {"g1", "g3"}


@given(st.lists(st.tuples(st.sampled_from(["take", "give", "down", "up"]), st.integers(0, 4)), max_size=60))
def test_counts_are_what_was_taken_and_not_given_back(events: list[tuple[str, int]]) -> None:
    urls = (A, B, C)
    table = ReplicaTable.of(urls)
    held: list[str] = []
    for what, number in events:
        if what == "take":
            url = table.reserve(f"g{number}")
            if url is not None:
                assert table.replicas[url].healthy
                held.append(url)
        elif what == "give" and held:
            table.release(held.pop(number % len(held)))
        elif what == "down":
            table.down(urls[number % 3], "x")
        elif what == "up":
            table.probed(urls[number % 3], None)
    assert {each.url: each.in_flight for each in table.status()} == {url: held.count(url) for url in urls}
    assert sum(replica.homes for replica in table.replicas.values()) == len(table._homes)
