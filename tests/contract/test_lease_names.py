"""Names of groups without a row, as a header carries them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.contract.lease import EMPTY_BYTES_MAX, empty_header, empty_names

ENTRY = st.fixed_dictionaries({"lease_id": st.text(), "job": st.text(), "uid": st.text(max_size=400)})


@given(st.lists(ENTRY, unique_by=lambda one: one["lease_id"], max_size=12))
def test_a_header_says_the_first_ones_in_ascii_within_its_bound(empty: list[dict[str, str]]) -> None:
    text = empty_header(empty)
    assert text.isascii()
    assert text.isprintable()
    assert len(text) <= EMPTY_BYTES_MAX
    found = empty_names(text)
    told = [(one["lease_id"], (one["job"], one["uid"])) for one in empty]
    assert list(found.items()) == told[: len(found)]
    if sum(len(str(one)) for one in empty) < 300:
        assert len(found) == len(empty)


@pytest.mark.parametrize("said", ["", "no", "%5B1%5D", "{}", None, 7, [{"lease_id": "l"}], [3]])
def test_what_names_nothing_is_no_error(said: object) -> None:
    assert empty_names(said) == {}
