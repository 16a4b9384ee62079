"""The tests that SDKs have of themselves, against a gateway: none fails."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from scripts.fetch_sdk_tests import SUITES, folder
from tests.support.gateway import Agent, gateway

PLUGIN = Path(__file__).parents[1] / "support" / "sdk_suite"


@dataclass(frozen=True)
class Case:
    """How an SDK's suite runs here. The model is the one that is served: a job has no others."""

    clients: tuple[str, str]
    tests: int
    """That pass. Fewer: some were not found."""
    url: str
    """The variable of the session's handle."""
    without: dict[str, dict[str, str]]
    """End of a path -> fields of body and query that are taken out, and why: a gateway refuses them."""
    left_out: dict[str, str]
    """What no test's id may have, a pattern; and why."""
    given: dict[str, dict[str, Any]] = field(default_factory=dict)
    """End of a path -> what its requests have beside their own."""


BIAS = "would change what is sampled, and the engine's logprobs would not tell"
STORED = "OpenAI's store of conversations"
NO_ID = "one that nobody has: tests/gateway/test_responses.py goes on from those that are"
AIOHTTP = {"aiohttp": "needs httpx-aiohttp; the server sees the same requests"}
CASES = {
    "anthropic": Case(
        clients=("Anthropic", "AsyncAnthropic"),
        tests=100,
        url="anthropic_base_url",
        without={
            "": {
                "container": "Anthropic's own machines, with Anthropic's skills",
                "mcp_servers": "Anthropic's servers call them",
                "thread": "refused in the words at which the SDK sends the whole conversation: test_messages.py",
            },
        },
        left_out=AIOHTTP,
    ),
    "openai": Case(
        clients=("OpenAI", "AsyncOpenAI"),
        tests=196,
        url="base_url",
        without={
            "/chat/completions": {
                "audio": "speech is not sampled here",
                "functions": "of before `tools`, which are served",
                "function_call": "of before `tool_choice`, which is served",
                "logit_bias": BIAS,
                "max_completion_tokens": "0: a turn has a token",
                "max_tokens": "0: a turn has a token",
                "web_search_options": "OpenAI's own search",
            },
            "/v1/completions": {
                "best_of": "all that is sampled is an answer",
                "echo": "the client has its prompt",
                "logit_bias": BIAS,
                "suffix": "chat templates have no place for it",
            },
            "/responses": {
                "background": "a response is made while its client waits",
                "conversation": STORED,
                "previous_response_id": NO_ID,
                "prompt": "OpenAI's store of prompts",
            },
            "/input_tokens": {"conversation": STORED, "previous_response_id": NO_ID},
            "/input_items": {"after": NO_ID, "limit": "0 items"},
        },
        left_out={
            **AIOHTTP,
            "chat/test_completions.py.*_(retrieve|update|list|delete)": "stored chat completions; responses are stored",
            "test_models.py.*_delete": "nobody deletes a job's model",
            "test_responses.py.*_cancel": "only responses in the background can be cancelled",
            "test_responses.py.*_retrieve.*overload_2": "only responses in the background are streamed again",
            "test_responses.py.*_compact": "OpenAI's own summary, sealed by OpenAI",
        },
        given={"/responses": {"input": "hello"}, "/input_tokens": {"input": "hello"}},
    ),
}


def environment(sdk: str, agent: Agent) -> dict[str, str]:
    """Of the process that runs the suite."""
    case = CASES[sdk]
    suite = {
        "sdk": sdk,
        "clients": case.clients,
        "model": "shop",
        "without": {path: [*fields] for path, fields in case.without.items()},
        "given": case.given,
        "left_out": [*case.left_out],
    }
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(folder(sdk)), str(PLUGIN)]),
        "TEST_API_BASE_URL": agent.handle[case.url],
        "SANDGATE_KEY": agent.handle["api_key"],
        "SANDGATE_SUITE": json.dumps(suite),
    }


def command(sdk: str, report: Path) -> list[str]:
    """What runs the suite, and writes the report."""
    top, suite = folder(sdk), SUITES[sdk]
    return [
        *(sys.executable, "-m", "pytest", "-p", "sdk_suite_clients", "-p", "no:cacheprovider", "-q"),
        *("--rootdir", str(top), "-c", os.devnull, f"--junitxml={report}", "--import-mode=importlib"),
        *("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=session"),
        *(str(top / suite.pin.inside / tests) for tests in suite.tests),
    ]


@pytest.mark.parametrize("sdk", CASES)
def test_the_tests_are_of_the_sdk_that_is_installed(sdk: str) -> None:
    assert SUITES[sdk].pin.file == f"{sdk}-{importlib.metadata.version(sdk)}.tar.gz"


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("sdk", CASES)
async def test_an_sdks_own_tests_pass(sdk: str, tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    async with gateway(["hello"]) as g:
        agent = await g.session()
        run = await asyncio.create_subprocess_exec(
            *command(sdk, report),
            env=environment(sdk, agent),
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await run.communicate()
        turns = await g.tree(agent)
    assert run.returncode == 0, said.decode()
    cases = list(ET.parse(report).getroot().iter("testcase"))
    assert len(cases) == CASES[sdk].tests
    assert not [case.get("name") for case in cases if len(case)], "each passed; none was skipped"
    assert len(turns) > CASES[sdk].tests // 2
