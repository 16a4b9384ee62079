"""Environment variables and files of agents and verifiers (docs/agents.md), in pods and locally. (pure)

Every agent in our tests finds the gateway by its own documented variables; nothing of ours is installed beside it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from sandgate.contract.session import DROPPED, SessionHandle, TerminationMessage, agents_task, task_of
from sandgate.sandbox.expand import container_env as container_env
from sandgate.sandbox.expand import expand_all as expand_all

TASK_PATH = "/sandgate/task.json"
"""SANDGATE_TASK_FILE in a pod."""
RESULT_PATH = "/sandgate/result.json"
"""SANDGATE_RESULT_FILE in a verifier's pod."""
TERMINATION_PATH = "/dev/termination-log"
"""Kubernetes' own default of terminationMessagePath."""
ENV_BYTES_MAX = 120_000
"""Size limit of one variable: Linux refuses a longer string than 128 KiB to execve."""

TASK_FILE = "File"
"""TaskDelivery.FILE, without importing manifests beside untrusted code."""


def agent_env(
    handle: SessionHandle,
    *,
    model: str,
    prompt: Any,
    delivery: str,
    task_path: str = TASK_PATH,
    termination_path: str = TERMINATION_PATH,
) -> dict[str, str]:
    """The agent's variables. `delivery`: Env puts the prompt into SANDGATE_PROMPT (chat messages as JSON), File only
    names the file. A prompt that is too long for a variable is delivered as a file in any case."""
    env = {
        "OPENAI_BASE_URL": handle.base_url,
        "OPENAI_API_BASE": handle.base_url,
        "OPENAI_API_KEY": handle.api_key,
        "ANTHROPIC_BASE_URL": handle.anthropic_base_url,
        "ANTHROPIC_API_KEY": handle.api_key,
        "SANDGATE_SESSION_ID": handle.session_id,
        "SANDGATE_COMPLETE_URL": handle.complete_url,
        "SANDGATE_MODEL": model,
        "SANDGATE_TERMINATION_LOG": termination_path,
    }
    text = prompt_text(prompt)
    if delivery == TASK_FILE or len(text.encode("utf-8", "surrogatepass")) > ENV_BYTES_MAX:
        return env | {"SANDGATE_TASK_FILE": task_path}
    return env | {"SANDGATE_PROMPT": text}


def verifier_env(
    handle: SessionHandle,
    *,
    model: str,
    task_path: str = TASK_PATH,
    result_path: str = RESULT_PATH,
    termination_path: str = TERMINATION_PATH,
) -> dict[str, str]:
    """The verifier's variables: no model endpoint; a key that can set this session's reward and nothing else."""
    return {
        "SANDGATE_SESSION_ID": handle.session_id,
        "SANDGATE_MODEL": model,
        "SANDGATE_TASK_FILE": task_path,
        "SANDGATE_RESULT_FILE": result_path,
        "SANDGATE_REWARD_URL": handle.reward_url,
        "SANDGATE_REWARD_KEY": handle.reward_key,
        "SANDGATE_TERMINATION_LOG": termination_path,
    }


def prompt_text(prompt: Any) -> str:
    """A prompt as the text of a variable: text as it is, chat messages as JSON; no NUL, which ends a C string."""
    text = prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False)
    return text.replace("\0", "")


def task_document(uid: str, prompt: Any, data: Any, sample_index: int) -> bytes:
    """The content of a verifier's SANDGATE_TASK_FILE."""
    return _json(task_of(uid, prompt, data, sample_index))


def agents_document(uid: str, prompt: Any, data: Any, sample_index: int) -> bytes:
    """The content of an agent's SANDGATE_TASK_FILE: the part of the task that an agent may see."""
    return _json(agents_task(task_of(uid, prompt, data, sample_index)) or {})


def result_document(
    exit_code: int | None, message: TerminationMessage, bytes_max: int | None = None
) -> bytes:
    """The content of SANDGATE_RESULT_FILE. `message`: the agent's termination message, parsed if it was JSON;
    `exit_code`: null if the agent was killed. A document over `bytes_max` has no message, and says so."""
    result: dict[str, Any] = {"exit_code": exit_code, "message": message.value}
    raw = _json(result)
    if bytes_max is None or len(raw) <= bytes_max:
        return raw
    note = f"message has {len(raw)} bytes as JSON, at most {bytes_max}"
    return _json(result | {"message": None, DROPPED: note})


def _json(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode("utf-8", "backslashreplace")
