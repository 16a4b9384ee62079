"""Keys: what verifies, and that nothing else does."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.contract.errors import Unauthorized
from sandgate.contract.keys import KEY_CHARS_MAX, PREFIX, Key, Scope, mint, verify

SECRET = b"0123456789abcdef"
KEY = Key(Scope.AGENT, "shop", "shop-q1-0-0", 2_000_000_000.0)
TEXT = mint(SECRET, KEY)


def test_a_minted_key_says_what_it_was_minted_for() -> None:
    assert verify(SECRET, TEXT, now=1_999_999_999.0) == KEY
    assert mint(SECRET, KEY) == TEXT, "the same arguments give the same key"


BAD = {
    "an empty key": "",
    "another gateway's prefix": "sk-" + TEXT[len(PREFIX) :],
    "no signature": TEXT.partition(".")[0],
    "an empty signature": TEXT.partition(".")[0] + ".",
    "another secret's signature": mint(b"another-secret-16", KEY),
    "a signature with padding": TEXT + "=",
    "non-ASCII": TEXT + "é",
    "far too long": PREFIX + "A" * KEY_CHARS_MAX,
    "white space inside": TEXT[:20] + " " + TEXT[20:],
}


@pytest.mark.parametrize("text", BAD.values(), ids=BAD)
def test_is_refused(text: str) -> None:
    with pytest.raises(Unauthorized):
        verify(SECRET, text, now=0.0)


@given(
    at=st.integers(len(PREFIX), len(TEXT) - 1),
    char=st.sampled_from(string.ascii_letters + string.digits + "-_."),
)
def test_any_one_changed_character_is_refused(at: int, char: str) -> None:
    changed = TEXT[:at] + char + TEXT[at + 1 :]
    if changed != TEXT:
        with pytest.raises(Unauthorized):
            verify(SECRET, changed, now=0.0)


def test_an_expired_key_is_refused_at_the_very_second() -> None:
    with pytest.raises(Unauthorized, match="expired"):
        verify(SECRET, TEXT, now=KEY.expires_at)


def test_the_error_never_repeats_the_key() -> None:
    with pytest.raises(Unauthorized) as refused:
        verify(b"another-secret-16", TEXT, now=0.0)
    assert TEXT[10:] not in str(refused.value)


@given(
    scope=st.sampled_from(list(Scope)),
    job=st.text(max_size=60),
    session=st.text(max_size=60),
    expires=st.integers(1, 2**40),
)
def test_every_field_survives(scope: Scope, job: str, session: str, expires: int) -> None:
    key = Key(scope, job, session, float(expires))
    assert verify(SECRET, mint(SECRET, key), now=0.0) == key
