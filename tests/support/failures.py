"""A failure is told when it happens, not only after the last test: a run that is killed at its time limit (CI's, or a
session's) has said which test failed and why (a pytest plugin)."""

from __future__ import annotations

from typing import Any

import pytest


class TellsAtOnce:
    """Where reports are printed: the only process, or the one that hands tests to workers."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reporter: Any = self.config.pluginmanager.get_plugin("terminalreporter")
        if report.failed and reporter is not None:
            reporter.ensure_newline()
            reporter.write_line(f"{report.when} failed: {report.nodeid}\n{report.longreprtext}")


def tell_at_once(config: pytest.Config) -> None:
    """Workers have nobody to tell."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(TellsAtOnce(config), "sandgate-failures")
