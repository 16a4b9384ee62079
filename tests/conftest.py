"""What every test gets: reproducible property tests (a longer look for `make fuzz`), no settings from outside."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "default",
    deadline=None,  # CI machines stall; time is judged by tests/bench
    derandomize=True,  # `make test` says the same thing twice; `make fuzz` is the one that explores
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "fuzz",
    settings.get_profile("default"),
    derandomize=False,
    max_examples=int(os.environ.get("SANDGATE_FUZZ_EXAMPLES", "5000")),
)
settings.load_profile("default")

KEPT = {"SANDGATE_FUZZ_EXAMPLES"}
"""Settings that tests themselves read."""


@pytest.fixture(autouse=True)
def _own_settings_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's SANDGATE_*, OPENAI_* and ANTHROPIC_* variables never decide a test."""
    for name in os.environ.keys() - KEPT:
        if name.startswith(("SANDGATE_", "OPENAI_", "ANTHROPIC_")):
            monkeypatch.delenv(name)
