"""OfferQueue beside a plain list: the same groups, oldest first; and what nobody leases takes no room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sandgate.gateway.trajectories.groups import GroupKey
from sandgate.gateway.trajectories.offer_queue import SPARE, OfferQueue

KEYS = [GroupKey(job, uid) for job in ("a", "b") for uid in "123"]
STEPS = st.lists(
    st.tuples(st.sampled_from(KEYS), st.sampled_from(["offers", "taken", "nothing"]), st.booleans()),
    max_size=60,
)


def test_groups_that_nobody_leases_from_it_leave_nothing_behind() -> None:
    queue = OfferQueue()
    for number in range(5000):
        key = GroupKey("a", f"q{number}")
        queue.settle(key, offers=True, taken=False)
        queue.settle(key, offers=False, taken=False)
    assert len(queue._heaps["a"]) <= 2 * SPARE
    assert len(queue._listed) <= 2 * SPARE


@given(steps=STEPS, many=st.integers(0, 3 * SPARE))
def test_it_gives_what_a_list_would(steps: list[tuple[GroupKey, str, bool]], many: int) -> None:
    queue, plain = OfferQueue(), dict[GroupKey, bool]()
    for key, how, walks in steps:
        for number in range(many):  # others that come and go, so that it is tidied now and then
            gone = GroupKey(key.job, f"gone{number}")
            queue.settle(gone, offers=True, taken=False)
            queue.settle(gone, offers=False, taken=False)
        walk = queue.oldest(None)
        first = next(walk, None) if walks else None
        queue.settle(key, offers=how != "nothing", taken=how == "taken")
        if how == "nothing":
            plain.pop(key, None)
        else:
            plain[key] = how == "offers"
        walk.close()
        assert first is None or first in KEYS
        for job in (None, "a", "b"):
            expected = [one for one, free in plain.items() if free and job in (None, one.job)]
            assert list(queue.oldest(job)) == expected
