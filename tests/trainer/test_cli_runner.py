"""Programs as agents of verl's prompts: what they are told, and a real one, as docs/trainers/verl.md configures it."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sandgate.contract.errors import InvalidBody
from sandgate.trainer.client.gateway_manager import GatewayManager, HttpGateway
from sandgate.trainer.testing import RunningGateway, gateway
from sandgate.trainer.verl import AgentTimedOut, CliRunner
from sandgate.trainer.verl.cli import text_of
from tests.support.environments import python_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "trainers" / "verl.md").read_text("utf-8")
TELL = """
import json, os, sys
said = {"argv": sys.argv[1:], "env": dict(os.environ), "task": json.load(open(os.environ["SANDGATE_TASK_FILE"]))}
open(os.environ["TOLD"], "w").write(json.dumps(said))
open(os.environ["SANDGATE_TERMINATION_LOG"], "w").write('{"reward": 0.5}')
"""


@pytest.fixture
async def one() -> AsyncIterator[RunningGateway]:
    async with gateway(["hello"]) as found:
        yield found


async def told(one: RunningGateway, path: Path, prompt: Any, *args: str, **options: Any) -> dict[str, Any]:
    """What the program was told."""
    env = {"TOLD": str(path / "told.json")} | options.pop("env", {})
    runner = CliRunner([sys.executable, "-c", TELL, *args], env=env, model="tiny", **options)
    session = await one.client.create_session()
    assert await runner(session=session, raw_prompt=prompt, sample_index=3) == 0.5
    found: dict[str, Any] = json.loads((path / "told.json").read_text())
    return found


MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "buy 7 kiwi"}]


async def test_references_are_expanded_as_in_a_pod(one: RunningGateway, tmp_path: Path) -> None:
    found = await told(
        one, tmp_path, "buy 7 kiwi", "$(SANDGATE_PROMPT)", "openai/$(SANDGATE_MODEL)", "$$(SANDGATE_PROMPT)",
        "$(NOBODY)", "$(RECIPE)/x", env={"RECIPE": "/r", "MODEL": "my-$(SANDGATE_MODEL)"},
    )  # fmt: skip
    assert found["argv"] == ["buy 7 kiwi", "openai/tiny", "$(SANDGATE_PROMPT)", "$(NOBODY)", "/r/x"]
    assert (found["env"]["MODEL"], found["env"]["SANDGATE_SAMPLE_INDEX"]) == ("my-tiny", "3")


async def test_messages_are_json_or_what_the_user_says(one: RunningGateway, tmp_path: Path) -> None:
    whole = await told(one, tmp_path, MESSAGES, "$(SANDGATE_PROMPT)")
    assert json.loads(whole["argv"][0]) == whole["task"]["prompt"] == MESSAGES
    text = await told(one, tmp_path, MESSAGES, "$(SANDGATE_PROMPT)", prompt_as="text")
    assert (text["argv"], text["task"]["prompt"]) == (["buy 7 kiwi"], MESSAGES)


async def test_a_prompt_of_200_kb_is_in_a_file_that_exists(one: RunningGateway, tmp_path: Path) -> None:
    long = "buy 7 kiwi. " * 17_000
    found = await told(one, tmp_path, long, "$(SANDGATE_PROMPT)")
    assert len(long) > 200_000
    assert found["task"]["prompt"] == long
    assert "SANDGATE_PROMPT" not in found["env"]
    assert found["argv"][0].startswith("The task is too long for a command line")
    assert found["env"]["SANDGATE_TASK_FILE"] in found["argv"][0]


async def test_a_program_that_takes_too_long_is_a_truncated_episode(one: RunningGateway) -> None:
    runner = CliRunner([sys.executable, "-c", "import threading; threading.Event().wait()"], timeout_s=0.3)
    with pytest.raises(AgentTimedOut, match=r"ran longer than 0\.3 s"):
        await runner(session=await one.client.create_session(), raw_prompt="x", sample_index=0)


TEXTS: dict[str, tuple[Any, str]] = {
    "text": ("buy", "buy"),
    "one message": (MESSAGES, "buy 7 kiwi"),
    "two of the user": ([*MESSAGES, {"role": "user", "content": "now"}], "buy 7 kiwi\n\nnow"),
    "parts": ([{"role": "user", "content": [{"type": "text", "text": "hi"}]}], '[{"type": "text", "text": "hi"}]'),
    "nobody": (None, ""),
}  # fmt: skip


@pytest.mark.parametrize(("prompt", "text"), TEXTS.values(), ids=TEXTS)
def test_the_text_of_a_prompt(prompt: Any, text: str) -> None:
    assert text_of(prompt) == text


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a command that is one text": ({"command": "mini --yolo"}, "command must be a list"),
    "no command": ({"command": []}, "command must be a list"),
    "a form that there is none of": ({"command": ["a"], "prompt_as": "xml"}, "prompt_as must be messages or text"),
}  # fmt: skip


@pytest.mark.parametrize(("options", "why"), WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_named(options: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidBody, match=why):
        CliRunner(**options)


def documented() -> dict[str, Any]:
    """The runner of programs that the page shows."""
    (block,) = [text for text in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL) if "CliRunner" in text]
    framework = yaml.safe_load(block)["actor_rollout_ref"]["rollout"]["custom"]["agent_framework"]
    found: dict[str, Any] = framework["agent_runners"]["swe"]["runner_kwargs"]
    return found


@pytest.mark.slow
async def test_the_documented_agent_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real mini-swe-agent: it asks the session's model, by its name, what the user says."""
    folder = python_of("agent-env.sh", "examples/mini_swe_agent").parent
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    given = documented()
    given["env"]["RECIPE"] = str(ROOT / "examples" / "mini_swe_agent")
    async with gateway(["hello", "hello"]) as one:
        routes = GatewayManager([HttpGateway(one.client)])
        session = await routes.create_session("s1", uid="q1")
        await CliRunner(**given, model="tiny")(session=session, raw_prompt=MESSAGES, sample_index=0)
        rows = await routes.finalize_session("s1", 1.0)
    assert rows
    assert all(row.role == "main" and 1 in row.loss_mask for row in rows)
