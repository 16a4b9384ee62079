"""The agents of Node's registry that are run unmodified."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from tests.agents.real_agent import LOOK, NODE, PROMPT, Json, RealAgent, call

NodeAgent = functools.partial(RealAgent, environment=NODE)


def _program(name: str, *words: str) -> Callable[[Path, str], list[str]]:
    return lambda folder, base: [
        str(folder / "node_modules" / ".bin" / name),
        *[word.replace("BASE", base) for word in words],
    ]


def driver(name: str, *words: str) -> Callable[[Path, str], list[str]]:
    """Runs one of drivers/."""
    return lambda folder, base: ["node", str(folder / name), *words]


PROVIDER = '{name="sg",base_url="BASE",env_key="OPENAI_API_KEY",wire_api="responses"}'


def _pi(base: str, key: str) -> Json:
    model = {"id": "shop", "reasoning": True, "contextWindow": 200_000, "maxTokens": 8_000}
    return {
        "providers": {"sg": {"baseUrl": base, "apiKey": key, "api": "openai-completions", "models": [model]}}
    }


def _cline(base: str, key: str) -> Json:
    name = "openai-compatible"
    settings = {"provider": name, "apiKey": key, "model": "shop", "baseUrl": base}
    provider = {"settings": settings, "updatedAt": "2026-11-24T00:00:00.000Z", "tokenSource": "manual"}
    return {"version": 1, "lastUsedProvider": name, "modes": {}, "providers": {name: provider}}


def _silent_cline(base: str, key: str) -> Json:
    del base, key
    return {"telemetryOptOut": True, "autoUpdateEnabled": False}


def _silent_qwen(base: str, key: str) -> Json:
    del base, key
    return {"privacy": {"usageStatisticsEnabled": False}, "general": {"enableAutoUpdate": False}}


def _opencode(base: str, key: str) -> Json:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "options": {"baseURL": base, "apiKey": key},
        "models": {"shop": {"limit": {"context": 200_000, "output": 8_000}}},
    }
    return {"provider": {"sg": provider}, "model": "sg/shop", "small_model": "sg/shop", "autoupdate": False}


NODE_AGENTS: dict[str, RealAgent] = {
    "Claude Code": NodeAgent(
        package="@anthropic-ai/claude-code",
        protocol="messages",
        command=_program("claude", "-p", PROMPT, "--model", "shop", "--dangerously-skip-permissions"),
        calls=(
            call("Bash", '{ "description": "list" ,"command":"ls . \\/dev\\/null" }'),
            call("Bash", '{"command": "cat a.txt"}'),
        ),
    ),
    "Codex": NodeAgent(
        package="@openai/codex",
        protocol="responses",
        command=_program(
            "codex", "exec", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox", "-m", "shop",
            "-c", "model_provider=sg", "-c", f"model_providers.sg={PROVIDER}", PROMPT,
        ),
        calls=(call("exec_command", '{ "cmd":"ls . \\/dev\\/null" }'), call("exec_command", '{"cmd": "cat a.txt"}')),
        elsewhere=True,
    ),
    "qwen-code": NodeAgent(
        package="@qwen-code/qwen-code",
        protocol="chat",
        command=_program("qwen", "-y", "-p", PROMPT, "--auth-type", "openai"),
        calls=(
            call("run_shell_command", '{"is_background":false, "command" : "ls . \\/dev\\/null"}'),
            call("run_shell_command", '{"command": "cat a.txt", "is_background": false}'),
        ),
        files={".qwen/settings.json": _silent_qwen},
    ),
    "pi": NodeAgent(
        package="@mariozechner/pi-coding-agent",
        protocol="chat",
        command=_program("pi", "-p", PROMPT, "--provider", "sg", "--model", "shop", "--no-session", "--offline"),
        calls=(call("bash", '{"timeout": 5.0,"command" : "ls . \\/dev\\/null"}'), call("read", '{"path": "a.txt"}')),
        files={".pi/agent/models.json": _pi},
    ),
    "cline": NodeAgent(
        package="cline",
        protocol="chat",
        command=_program("cline", "-P", "openai-compatible", "-m", "shop", PROMPT),
        calls=(
            call("run_commands", '{ "commands":["ls . \\/dev\\/null"] }'),
            call("run_commands", '{"commands": ["cat a.txt"]}'),
        ),
        files={
            ".cline/data/settings/providers.json": _cline,
            ".cline/data/settings/global-settings.json": _silent_cline,
        },
        elsewhere=True,
    ),
    "opencode": NodeAgent(
        package="opencode-ai",
        protocol="chat",
        command=_program("opencode", "run", "--model", "sg/shop", PROMPT),
        calls=(
            call("bash", '{"description": "list","command" : "ls . \\/dev\\/null"}'),
            call("bash", '{"command": "cat a.txt", "description": "see"}'),
        ),
        files={".config/opencode/opencode.json": _opencode},
        asides=1,
        elsewhere=True,
    ),
    **{
        f"Vercel AI SDK, {protocol}": NodeAgent(
            package="ai", protocol=protocol, command=driver("ai_sdk.mjs", protocol), calls=LOOK
        )
        for protocol in ("chat", "responses", "messages")
    },
    **{
        f"openai-agents-js, {protocol}": NodeAgent(
            package="@openai/agents",
            protocol=protocol,
            command=driver("agents_sdk.mjs", protocol),
            calls=LOOK,
        )
        for protocol in ("chat", "responses")
    },
}  # fmt: skip
