"""A short look on every run; `run(seed, n)` looks longer."""

from __future__ import annotations

import pytest

from tests.fuzz import fuzz_rows
from tests.fuzz.fuzz_answers import run


@pytest.mark.parametrize("seed", range(3))
def test_every_answer_is_read_told_and_shown_again(seed: int) -> None:
    seen = run(seed, 3_000)
    assert min(seen["calls"], seen["text"], seen["shown again"]) > 50


@pytest.mark.parametrize("seed", range(3))
def test_every_sampled_token_is_trained_in_exactly_one_row(seed: int) -> None:
    seen = fuzz_rows.run(seed, 300)
    assert min(seen["one row"], seen["forked"]) > 50
