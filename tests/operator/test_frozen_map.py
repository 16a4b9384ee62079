"""FrozenMap: a dict that gives another one for each change, and never changes itself."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sandgate.operator.observed import frozen_map
from sandgate.operator.observed.frozen_map import FrozenMap

KEYS = st.integers(0, 12)
CHANGES = st.lists(st.tuples(KEYS, st.none() | st.integers(0, 3)), max_size=40)


@given(start=st.dictionaries(KEYS, st.integers(0, 3)), changes=CHANGES, overlay=st.integers(0, 8))
def test_it_is_at_every_step_what_a_dict_would_be_and_earlier_ones_stay(
    start: dict[int, int], changes: list[tuple[int, int | None]], overlay: int
) -> None:
    before, frozen_map.OVERLAY_MIN = frozen_map.OVERLAY_MIN, overlay  # copies now and then, as large ones do
    try:
        mapping, plain = FrozenMap(start), dict(start)
        versions = [(mapping, dict(plain))]
        for key, value in changes:
            if value is None:
                plain.pop(key, None)
                mapping = mapping.without(key)
            else:
                plain[key] = value
                mapping = mapping.set(key, value)
            versions.append((mapping, dict(plain)))
        for mapping, plain in versions:
            assert list(mapping.entries()) == list(plain.items())
            assert (len(mapping), dict(mapping), mapping == plain) == (len(plain), plain, True)
            assert all((key in mapping) is (key in plain) for key in range(13))
    finally:
        frozen_map.OVERLAY_MIN = before


@given(
    start=st.dictionaries(KEYS, st.integers(0, 3)),
    changes=st.lists(st.dictionaries(KEYS, st.integers(0, 3)) | st.lists(KEYS), max_size=12),
    overlay=st.integers(0, 8),
)
def test_many_changes_at_once_are_those_one_by_one(
    start: dict[int, int], changes: list[dict[int, int] | list[int]], overlay: int
) -> None:
    before, frozen_map.OVERLAY_MIN = frozen_map.OVERLAY_MIN, overlay
    try:
        at_once = one_by_one = FrozenMap(start)
        for change in changes:
            if isinstance(change, dict):
                at_once = at_once.with_all(change)
                for key, value in change.items():
                    one_by_one = one_by_one.set(key, value)
            else:
                at_once = at_once.without_all(change)
                for key in change:
                    one_by_one = one_by_one.without(key)
            assert list(at_once.entries()) == list(one_by_one.entries())
            assert len(at_once) == len(one_by_one) == len(list(at_once))
    finally:
        frozen_map.OVERLAY_MIN = before


def test_a_change_of_a_large_one_copies_little() -> None:
    large = FrozenMap(dict.fromkeys(range(100_000)))
    changed = large.set(5, None).without(7).set(100_001, None)
    assert changed._base is large._base
    assert (len(changed), 7 in changed, 7 in large) == (100_000, False, True)
