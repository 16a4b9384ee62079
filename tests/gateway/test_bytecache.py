"""A cache of bounded bytes: whatever is asked of it in whatever order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sandgate.gateway.conversation.byte_cache import ByteCache

STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 7)))
COST = (5, 10, 20, 30, 40, 50, 51, 90)


@given(STEPS)
def test_it_is_bounded_and_tells_what_was_put(steps: list[tuple[bool, int]]) -> None:
    cache: ByteCache[int, str] = ByteCache(100, 50)
    for puts, key in steps:
        if puts:
            cache.put(key, str(key), COST[key])
            assert cache.get(key) == (str(key) if COST[key] <= 50 else None)
        else:
            assert cache.get(key) in (str(key), None)
        assert cache.bytes <= 100


def test_what_is_used_stays_and_what_is_not_goes() -> None:
    cache: ByteCache[int, str] = ByteCache(100, 50)
    cache.put(0, "used", 10)
    cache.put(1, "not used", 10)
    for key in range(2, 30):
        cache.put(key, "new", 10)
        assert cache.get(0) == "used"
    assert cache.get(1) is None
