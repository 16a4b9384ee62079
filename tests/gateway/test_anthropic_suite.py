"""The tests of messages that Anthropic's SDK has of itself, against a gateway: none fails."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import anthropic
import pytest

from scripts.fetch_sdk_tests import PIN, SUITES, folder
from tests.support.gateway import gateway

PLUGIN = Path(__file__).parents[1] / "support" / "sdk_suite"
TESTS = 100
"""Fewer: some were not found."""

WITHOUT = {
    "container": "Anthropic's own machines, with Anthropic's skills",
    "mcp_servers": "Anthropic's servers call them",
    "thread": "refused in the words at which the SDK sends the whole conversation: tests/gateway/test_messages.py",
}
"""Fields that are taken out of the requests with all parameters, and why: a gateway refuses each by name."""

LEFT_OUT = {
    "aiohttp": "needs httpx-aiohttp; the server sees the same requests",
}
"""What no test's name may have, and why. The model is the one that is served: a job has no others."""


def test_the_tests_are_of_the_sdk_that_is_installed() -> None:
    assert PIN.file == f"anthropic-{anthropic.__version__}.tar.gz"


@pytest.mark.timeout(120)
async def test_anthropics_own_tests_pass(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    async with gateway(["hello"]) as g:
        agent = await g.session()
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(folder()), str(PLUGIN)]),
            "TEST_API_BASE_URL": agent.handle["anthropic_base_url"],
            "SANDGATE_KEY": agent.handle["api_key"],
            "SANDGATE_MODEL": "shop",
            "SANDGATE_WITHOUT": " ".join(WITHOUT),
        }
        command = [
            *(sys.executable, "-m", "pytest", "-p", "sdk_suite_clients", "-p", "no:cacheprovider", "-q"),
            *(
                "--rootdir",
                str(folder()),
                "-c",
                os.devnull,
                f"--junitxml={report}",
                "--import-mode=importlib",
            ),
            *("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=session"),
            *("-k", " and ".join(f"not {name}" for name in LEFT_OUT)),
            *(str(folder() / PIN.inside / suite) for suite in SUITES),
        ]
        run = await asyncio.create_subprocess_exec(
            *command,
            env=environment,
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await run.communicate()
        turns = await g.tree(agent)
    assert run.returncode == 0, said.decode()
    cases = list(ET.parse(report).getroot().iter("testcase"))
    assert len(cases) == TESTS
    assert not [case.get("name") for case in cases if len(case)], "each passed; none was skipped"
    assert len(turns) > TESTS // 2
