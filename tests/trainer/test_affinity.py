"""Which of verl's servers takes a generation: prefix first, load second, within a bound; simulated from seeds."""

from __future__ import annotations

import random
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.trainer.verl.affinity import SLACK, GroupRouter, choose, sticky_id

CHOICES: dict[str, tuple[dict[str, int], str | None, list[str], str]] = {
    "a session stays where its history is, however busy": ({"a": 90, "b": 0}, "a", ["b"], "a"),
    "a session whose server is gone goes to its group": ({"a": 1, "b": 1}, "c", ["b"], "b"),
    "a new session goes where its prompt is": ({"a": 2, "b": 1}, None, ["a"], "a"),
    "but not beyond the bound": ({"a": 4, "b": 1}, None, ["a"], "b"),
    "of several that have its prompt, to the least busy": ({"a": 2, "b": 1, "c": 0}, None, ["a", "b"], "b"),
    "a new group goes to the least busy": ({"a": 2, "b": 1}, None, [], "b"),
}


@pytest.mark.parametrize(("loads", "mine", "group", "chosen"), CHOICES.values(), ids=CHOICES)
def test_a_choice(loads: dict[str, int], mine: str | None, group: list[str], chosen: str) -> None:
    assert choose(loads, mine, group) == chosen


LOADS = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 100), min_size=1)


@given(LOADS, st.lists(st.sampled_from("abcdefghij")))
def test_no_new_session_makes_a_server_busier_than_the_bound(loads: dict[str, int], group: list[str]) -> None:
    after = loads[choose(loads, None, group)] + 1
    assert after <= ceil(SLACK * (sum(loads.values()) + 1) / len(loads))


def simulated(seed: int, *, groups: int, n: int, servers: int, turns: int) -> tuple[float, float, int]:
    """All sessions take their turns in a random order, a turn at a time each. The most that ran at one server at once,
    over the mean then, with the whole batch in flight; servers that prefilled a group's prompt, on average; turns that
    were not where their history is."""
    rng, router = random.Random(seed), GroupRouter({f"s{at}": object() for at in range(servers)})
    sessions = [(f"q{group}", f"q{group}-{sample}") for group in range(groups) for sample in range(n)]
    worst, moved = 0.0, 0
    homes: dict[str, str] = {}
    prompts: dict[str, set[str]] = {}
    for _ in range(turns):
        rng.shuffle(sessions)
        running = []
        for group, session in sessions:
            chosen, _ = router.acquire_server(sticky_id(group, session))
            moved += homes.setdefault(session, chosen) != chosen
            prompts.setdefault(group, set()).add(chosen)
            running.append(chosen)
        loads = router.get_status()["servers"].values()
        worst = max(worst, max(loads) / (sum(loads) / len(loads)))
        for one in running:
            router.release_server(one)
    assert router.get_total_inflight() == 0
    return worst, sum(map(len, prompts.values())) / groups, moved


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("groups", "spread"),
    [pytest.param(1, 8, id="one prompt: over all of them"), pytest.param(2, 8, id="two prompts"),
     pytest.param(64, 4, id="many prompts: each at few")],
)  # fmt: skip
def test_32_samples_of_a_few_prompts_spread_and_those_of_many_stay_together(
    seed: int, groups: int, spread: int
) -> None:
    worst, prefills, moved = simulated(seed, groups=groups, n=32, servers=8, turns=4)
    assert worst <= SLACK + 8 / (32 * groups)
    assert prefills <= spread
    assert moved == 0


def test_servers_come_and_go() -> None:
    router = GroupRouter({"a": "A"})
    assert router.acquire_server("q") == ("a", "A")
    router.remove_servers(["a", "nobody"])
    with pytest.raises(RuntimeError, match="No available servers in load balancer"):
        router.acquire_server("q")
    router.add_servers({"b": "B"})
    assert router.acquire_server("q") == ("b", "B")
    router.release_server("a")
    assert router.clear_sticky_cache() == {"cleared_entries": 1, "server_loads": {"b": 1}}
    assert (router.get_all_servers(), router.get_inflight_count("b"), router.get_total_inflight()) == (
        ["b"],
        1,
        1,
    )


@pytest.mark.parametrize("slack", [0.5, float("nan")])
def test_a_bound_below_the_mean_is_refused(slack: float) -> None:
    with pytest.raises(ValueError, match="slack: must be at least 1"):
        GroupRouter({}, {"slack": slack})
