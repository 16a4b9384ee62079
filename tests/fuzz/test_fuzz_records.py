"""A short look on every run; `python -m tests.fuzz.fuzz_records SEED N` looks longer."""

from __future__ import annotations

import pytest

from tests.fuzz.fuzz_records import run


@pytest.mark.parametrize("seed", range(4))
def test_mutated_records_are_read_or_refused(seed: int) -> None:
    run(seed, 300)
