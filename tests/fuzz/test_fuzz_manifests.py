"""A short look on every run; `run(seed, n)` looks longer."""

from __future__ import annotations

import pytest

from tests.fuzz.fuzz_manifests import run


@pytest.mark.parametrize("seed", range(3))
def test_spoilt_manifests_are_read_or_refused(seed: int) -> None:
    seen = run(seed, 150)
    assert seen["bad"] > 0
    assert seen["good"] > 0
