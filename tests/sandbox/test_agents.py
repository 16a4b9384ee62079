"""What agents and verifiers find in their environment: docs/agents.md."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from sandgate.contract.session import SessionHandle, parse_termination
from sandgate.sandbox.agents import (
    ENV_BYTES_MAX,
    agent_env,
    prompt_text,
    result_document,
    task_document,
    verifier_env,
)

HANDLE = SessionHandle(
    session_id="s",
    base_url="http://g/sessions/s/v1",
    anthropic_base_url="http://g/sessions/s",
    complete_url="http://g/sessions/s/complete",
    reward_url="http://g/v1/sessions/s/reward",
    api_key="agent-key",
    reward_key="reward-key",
    expires_at=1.0,
)


def env(prompt: Any = "buy", delivery: str = "Env") -> dict[str, str]:
    return agent_env(
        HANDLE, model="tiny", prompt=prompt, delivery=delivery, task_path="/t.json", termination_path="/x"
    )


def test_an_agent_finds_exactly_this() -> None:
    assert env() == {
        "OPENAI_BASE_URL": "http://g/sessions/s/v1",
        "OPENAI_API_BASE": "http://g/sessions/s/v1",
        "OPENAI_API_KEY": "agent-key",
        "ANTHROPIC_BASE_URL": "http://g/sessions/s",
        "ANTHROPIC_API_KEY": "agent-key",
        "SANDGATE_SESSION_ID": "s",
        "SANDGATE_COMPLETE_URL": "http://g/sessions/s/complete",
        "SANDGATE_MODEL": "tiny",
        "SANDGATE_PROMPT": "buy",
        "SANDGATE_TERMINATION_LOG": "/x",
    }


def test_delivered_as_a_file_the_prompt_is_in_no_variable() -> None:
    found = env(delivery="File")
    assert found["SANDGATE_TASK_FILE"] == "/t.json"
    assert "SANDGATE_PROMPT" not in found


def test_a_prompt_that_no_variable_can_hold_is_delivered_as_a_file() -> None:
    assert "SANDGATE_PROMPT" in env("x" * ENV_BYTES_MAX)
    assert env("x" * (ENV_BYTES_MAX + 1))["SANDGATE_TASK_FILE"] == "/t.json"
    assert "SANDGATE_PROMPT" not in env("é" * (ENV_BYTES_MAX // 2 + 1))


def test_the_agent_s_environment_never_holds_the_reward_key() -> None:
    assert "reward-key" not in env().values()


def test_a_verifier_has_a_reward_key_and_no_model() -> None:
    found = verifier_env(HANDLE, model="tiny", task_path="/t", result_path="/r", termination_path="/x")
    assert found == {
        "SANDGATE_SESSION_ID": "s",
        "SANDGATE_MODEL": "tiny",
        "SANDGATE_TASK_FILE": "/t",
        "SANDGATE_RESULT_FILE": "/r",
        "SANDGATE_REWARD_URL": "http://g/v1/sessions/s/reward",
        "SANDGATE_REWARD_KEY": "reward-key",
        "SANDGATE_TERMINATION_LOG": "/x",
    }


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("buy", "buy"),
        ("a\0b", "ab"),
        ([{"role": "user", "content": "é"}], '[{"role": "user", "content": "é"}]'),
    ],
)
def test_a_prompt_as_a_variable(prompt: Any, text: str) -> None:
    assert prompt_text(prompt) == text


def test_documents_are_what_the_api_says() -> None:
    task = json.loads(task_document("q1", "buy", {"n": 7}, 2))
    assert task == {"uid": "q1", "prompt": "buy", "data": {"n": 7}, "sample_index": 2}
    told = parse_termination(b'{"reward": 1, "reward_info": {"a": 1}}')
    assert json.loads(result_document(0, told)) == {
        "exit_code": 0,
        "message": {"reward": 1, "reward_info": {"a": 1}},
    }
    assert json.loads(result_document(None, parse_termination(b"free text"))) == {
        "exit_code": None,
        "message": "free text",
    }


def test_contract_and_sandbox_load_the_standard_library_only() -> None:
    code = (
        "import sys; before = set(sys.modules)\n"
        "import sandgate.contract.job, sandgate.contract.manifest_decoder, sandgate.contract.session\n"
        "import sandgate.sandbox.process, sandgate.sandbox.agents, sandgate.sandbox.guard\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - set(sys.stdlib_module_names) - {'sandgate'}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
