"""What every test gets: reproducible property tests (a longer look for `make fuzz`), no settings from outside."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from tests.support.heap import pytest_collection
from tests.support.skips import pytest_make_collect_report, pytest_runtest_makereport
from tests.support.tiers import (
    pytest_addoption,
    pytest_collection_modifyitems,
    pytest_configure,
    pytest_report_header,
)
from tests.support.unclosed import pytest_runtest_teardown
from tests.support.workers import pytest_xdist_make_scheduler

settings.register_profile(
    "default",
    max_examples=50,  # the same each time, see below
    deadline=None,  # CI machines stall; time is judged by tests/bench
    derandomize=True,  # `make test` says the same thing twice; `make fuzz` is the one that explores
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile(
    "fuzz",
    settings.get_profile("default"),
    derandomize=False,
    max_examples=int(os.environ.get("SANDGATE_FUZZ_EXAMPLES") or "5000"),
)
settings.load_profile("default")

__all__ = [
    "pytest_addoption",
    "pytest_collection",
    "pytest_collection_modifyitems",
    "pytest_configure",
    "pytest_make_collect_report",
    "pytest_report_header",
    "pytest_runtest_makereport",
    "pytest_runtest_teardown",
    "pytest_xdist_make_scheduler",
]

KEPT = {"SANDGATE_FUZZ_EXAMPLES", "SANDGATE_KILLS", "SANDGATE_TEST_KUBECONFIG", "SANDGATE_TEST_UPGRADE_FROM"}
"""Settings that tests themselves read."""


@pytest.fixture(autouse=True)
def _own_settings_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A developer's SANDGATE_*, OPENAI_* and ANTHROPIC_* variables never decide a test."""
    for name in os.environ.keys() - KEPT:
        if name.startswith(("SANDGATE_", "OPENAI_", "ANTHROPIC_")):
            monkeypatch.delenv(name)


@pytest.fixture(autouse=True)
def _loop_stays_free(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """With `--asyncio-debug`, a callback that holds the event loop for over 100 ms fails its test.

    Not by default: debug mode is slow, and a busy machine stalls by itself. Blocking calls that can be seen in the text
    are errors always (ruff's ASYNC rules).
    """
    yield
    records = caplog.get_records("call")
    stalls = [
        text for record in records if record.name == "asyncio" and " took " in (text := record.getMessage())
    ]
    assert not stalls, "\n".join(stalls)
