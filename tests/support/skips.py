"""A skip says what a developer's machine has not. Where everything is installed there is no such thing: `.ci/run` sets
SANDGATE_TEST_ALL=1, and what is skipped there fails, or a test that nobody can run would be green for ever."""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from typing import TypeVar

import pytest

ALL = os.environ.get("SANDGATE_TEST_ALL") == "1"
"""Read before tests/conftest.py hides it from tests."""

LACKS = re.compile(
    r"\broot\b|\bLinux\b|namespaces|CAP_SYS_ADMIN"  # nothing installs these
    r"|power over the machines|kind only"  # a cluster that a person named
    r"|a cluster runs on this machine"  # `make cluster-up`, or another run of the tests
    r"|shallow clone"  # of one commit, from a place that cannot be asked for more
)
"""What a machine may lack all the same; searched for in the reason."""

AnyReport = TypeVar("AnyReport", pytest.TestReport, pytest.CollectReport)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test, or its fixtures."""
    return judged((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """A whole module."""
    return judged((yield))


def judged(report: AnyReport) -> AnyReport:
    """Failed instead of skipped, where that is not to be."""
    if ALL and report.skipped and not hasattr(report, "wasxfail"):
        why = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not LACKS.search(why):
            report.outcome = "failed"
            report.longrepr = (
                f"{why}\nNothing may be missing here (SANDGATE_TEST_ALL, tests/support/skips.py)."
            )
    return report
