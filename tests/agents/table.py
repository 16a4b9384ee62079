"""The agents of Node's registry that are run unmodified: what starts each, and what its tools are called."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DRIVERS = Path(__file__).parent / "drivers"
PROMPT = "What does a.txt say?"
Json = dict[str, Any]


@dataclass(frozen=True)
class NodeAgent:
    """One client in one protocol."""

    package: str
    protocol: str
    command: Callable[[Path, str], list[str]]
    """(folder of the packages' programs, base URL) -> what is run."""
    calls: tuple[str, str]
    """What the model says to call its tools: as text, odd on purpose."""
    files: dict[str, Callable[[str, str], Json]] = field(default_factory=dict)
    """Path below HOME -> its JSON, made of base URL and key."""
    asides: int = 0
    """Calls beside the conversation (titles)."""


def call(name: str, arguments: str) -> str:
    """The JSON text is what a model might write: spaces, escapes, keys in any order."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def _program(name: str, *words: str) -> Callable[[Path, str], list[str]]:
    return lambda bin_folder, base: [
        str(bin_folder / name),
        *[word.replace("BASE", base) for word in words],
    ]


def _driver(name: str, *words: str) -> Callable[[Path, str], list[str]]:
    return lambda bin_folder, base: ["node", str(bin_folder.parents[1] / name), *words]


PROVIDER = '{name="sg",base_url="BASE",env_key="OPENAI_API_KEY",wire_api="responses"}'
LOOK = (
    call("look", '{ "line":1.0 ,"path": "a.txt" }'),
    call("look", '{"path":"caf\\u00e9\\/b.txt",  "line": 1.2e1}'),
)


def _pi(base: str, key: str) -> Json:
    model = {"id": "shop", "reasoning": True, "contextWindow": 200_000, "maxTokens": 8_000}
    return {
        "providers": {"sg": {"baseUrl": base, "apiKey": key, "api": "openai-completions", "models": [model]}}
    }


def _opencode(base: str, key: str) -> Json:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": base, "apiKey": key},
        "models": {"shop": {"limit": {"context": 200_000, "output": 8_000}}},
    }
    return {"provider": {"sg": provider}, "model": "sg/shop", "small_model": "sg/shop", "autoupdate": False}


NODE_AGENTS: dict[str, NodeAgent] = {
    "Claude Code": NodeAgent(
        "@anthropic-ai/claude-code",
        "messages",
        _program("claude", "-p", PROMPT, "--model", "shop", "--dangerously-skip-permissions"),
        (
            call("Bash", '{ "description": "list" ,"command":"ls . \\/dev\\/null" }'),
            call("Bash", '{"command": "cat a.txt"}'),
        ),
    ),
    "Codex": NodeAgent(
        "@openai/codex",
        "responses",
        _program(
            "codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-m", "shop",
            "-c", "model_provider=sg", "-c", f"model_providers.sg={PROVIDER}", PROMPT,
        ),
        (call("exec_command", '{ "cmd":"ls . \\/dev\\/null" }'), call("exec_command", '{"cmd": "cat a.txt"}')),
    ),
    "qwen-code": NodeAgent(
        "@qwen-code/qwen-code",
        "chat",
        _program("qwen", "-y", "-p", PROMPT, "--auth-type", "openai"),
        (
            call("run_shell_command", '{"is_background":false, "command" : "ls . \\/dev\\/null"}'),
            call("run_shell_command", '{"command": "cat a.txt", "is_background": false}'),
        ),
    ),
    "pi": NodeAgent(
        "@mariozechner/pi-coding-agent",
        "chat",
        _program("pi", "-p", PROMPT, "--provider", "sg", "--model", "shop", "--no-session", "--offline"),
        (call("bash", '{"timeout": 5.0,"command" : "ls . \\/dev\\/null"}'), call("read", '{"path": "a.txt"}')),
        {".pi/agent/models.json": _pi},
    ),
    "opencode": NodeAgent(
        "opencode-ai",
        "chat",
        _program("opencode", "run", "--model", "sg/shop", PROMPT),
        (
            call("bash", '{"description": "list","command" : "ls . \\/dev\\/null"}'),
            call("bash", '{"command": "cat a.txt", "description": "see"}'),
        ),
        {".config/opencode/opencode.json": _opencode},
        asides=1,
    ),
    **{
        f"Vercel AI SDK, {protocol}": NodeAgent("ai", protocol, _driver("ai_sdk.mjs", protocol), LOOK)
        for protocol in ("chat", "responses", "messages")
    },
    **{
        f"openai-agents-js, {protocol}": NodeAgent(
            "@openai/agents", protocol, _driver("agents_sdk.mjs", protocol), LOOK
        )
        for protocol in ("chat", "responses")
    },
}  # fmt: skip


def written(files: dict[str, Callable[[str, str], Json]], home: Path, base: str, key: str) -> None:
    """The agent's settings below its HOME."""
    for name, make in files.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(make(base, key)), "utf-8")
