"""A short look on every run; `run(seed, n)` looks longer."""

from __future__ import annotations

import pytest

from tests.fuzz.fuzz_answers import run


@pytest.mark.parametrize("seed", range(3))
def test_every_answer_is_read_told_and_shown_again(seed: int) -> None:
    seen = run(seed, 3_000)
    assert min(seen["calls"], seen["text"], seen["shown again"]) > 50
