"""A short look on every run; `run(seed, n)` looks longer."""

from __future__ import annotations

import pytest

from tests.fuzz.fuzz_ends import run


@pytest.mark.parametrize("seed", range(3))
def test_every_end_is_sealed_and_every_answer_read_or_refused(seed: int) -> None:
    seen = run(seed, 600)
    messages = {"message rewarded", "message unrewarded"}
    assert messages | {"status ended", "status running", "told read", "told refused"} <= {*seen}
