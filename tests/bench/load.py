"""The load: agents in conversation, each waiting for its answer before it goes on.

Each session's first prompt has the scenario's length; every turn adds the 256 sampled tokens and a tool result. Eight
sessions share one prompt (a group). Reads a scenario as JSON on stdin, prints its result as JSON.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import msgspec
import orjson
import uvloop

from tests.bench.model import sources
from tests.bench.wire import Connection

GROUP = 8
PROBE_S = 0.02
"""Seconds between two looks at /healthz: what they wait beyond the usual is the event loop being held."""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{text} Paths are relative to the repository; output over 200 lines is cut in the middle.",
            "parameters": {
                "type": "object",
                "properties": {key: {"type": kind, "description": f"The {key}."} for key, kind in keys.items()},
                "required": list(keys)[:1],
            },
        },
    }
    for name, text, keys in (
        ("read_file", "Read a part of a file.", {"path": "string", "start": "integer", "end": "integer"}),
        ("write_file", "Replace a file.", {"path": "string", "content": "string"}),
        ("run", "Run a shell command.", {"command": "string", "timeout_s": "number", "cwd": "string"}),
        ("search", "Search by regular expression.", {"pattern": "string", "path": "string", "limit": "integer"}),
    )
]  # fmt: skip


class Scenario(msgspec.Struct, kw_only=True):
    """What to do. `target`: gateway, relay or stub (the engine directly)."""

    name: str
    target: str
    origin: str
    admin_key: str = ""
    prompt_chars: int
    """Of the first prompt's text; about 3.1 characters a token."""
    turns: int
    sessions: int
    concurrency: int
    stream: bool
    stagger_s: float = 0.0
    """Over which the agents start, evenly: in a job they are not in step with each other."""


@dataclass
class Seen:
    """Measured so far."""

    whole_s: list[float] = field(default_factory=list)
    first_s: list[float] = field(default_factory=list)
    stall_s: list[float] = field(default_factory=list)
    prompt_tokens: list[int] = field(default_factory=list)
    forks: int = 0
    errors: list[str] = field(default_factory=list)


class Texts:
    """Prompts and tool results of realistic text, from a seed."""

    def __init__(self) -> None:
        self._text = "\n".join(text for text, _ in zip(sources(), range(60), strict=False))

    def cut(self, seed: str, chars: int) -> str:
        at = random.Random(seed).randrange(len(self._text) - chars)
        return self._text[at : at + chars]


async def conversation(scenario: Scenario, texts: Texts, number: int, seen: Seen) -> None:
    connection = await Connection.open(scenario.origin)
    path, key = "/v1/chat/completions", ""
    if scenario.target == "gateway":
        body = orjson.dumps(
            {
                "session_id": f"{scenario.name}-{number}",
                "uid": f"{scenario.name}-{number // GROUP}",
                "sample_index": number % GROUP,
                "group_size": GROUP,
            }
        )
        made = await connection.ask("POST", "/v1/sessions", body, scenario.admin_key)
        handle = orjson.loads(made.body)
        if made.status not in (200, 201):
            raise RuntimeError(f"no session: {made.status} {handle}")
        path, key = f"/sessions/{handle['session_id']}/v1/chat/completions", handle["api_key"]
    system, share = texts.cut(scenario.name, scenario.prompt_chars // 2), scenario.prompt_chars // 2
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": system},
        {"role": "user", "content": texts.cut(f"{scenario.name}-{number // GROUP}", share)},
    ]
    for turn in range(scenario.turns):
        asked = {
            "model": "bench",
            "messages": messages,
            "tools": TOOLS,
            "max_tokens": 1024,
            "temperature": 1.0,
        }
        if scenario.stream:
            asked |= {"stream": True, "stream_options": {"include_usage": True}}
        got = await connection.ask("POST", path, orjson.dumps(asked), key)
        if got.status != 200:
            seen.errors.append(f"{got.status}: {got.body[:300]!r}")
            break
        seen.whole_s.append(got.whole_s)
        seen.first_s.append(got.first_s)
        said, usage = heard(got.body, stream=scenario.stream)
        seen.prompt_tokens.append(usage.get("prompt_tokens", 0))
        result = texts.cut(f"{scenario.name}-{number}-{turn}", 230)
        calls = said.get("tool_calls") or []
        messages.append(said)
        messages += [{"role": "tool", "tool_call_id": call["id"], "content": result} for call in calls]
        if not calls:
            messages.append({"role": "user", "content": result})
    connection.close()


def heard(body: bytes, *, stream: bool) -> tuple[dict[str, Any], dict[str, int]]:
    """The assistant message as an SDK would keep it, and the usage."""
    if not stream:
        whole = orjson.loads(body)
        message = whole["choices"][0]["message"]
        return {k: v for k, v in message.items() if k in ("role", "content", "tool_calls") and v}, whole[
            "usage"
        ]
    content: list[str] = []
    calls: dict[int, dict[str, Any]] = {}
    usage: dict[str, int] = {}
    for line in body.split(b"\n"):
        if not line.startswith(b"data: {"):
            continue
        told = orjson.loads(line[6:])
        usage = told.get("usage") or usage
        for choice in told["choices"]:
            delta = choice["delta"]
            content.append(delta.get("content") or "")
            for call in delta.get("tool_calls") or ():
                known = calls.setdefault(
                    call["index"], {"type": "function", "function": {"name": "", "arguments": ""}}
                )
                known["id"] = call.get("id") or known.get("id")
                for key, text in call["function"].items():
                    known["function"][key] += text or ""
    message = {"role": "assistant", "content": "".join(content)}
    return message | ({"tool_calls": list(calls.values())} if calls else {}), usage


async def probe(origin: str, seen: Seen) -> None:
    connection = await Connection.open(origin)
    while True:
        await asyncio.sleep(PROBE_S)
        seen.stall_s.append((await connection.ask("GET", "/healthz")).whole_s)


async def run(scenario: Scenario) -> dict[str, Any]:
    texts, seen = Texts(), Seen()
    numbers = iter(range(scenario.sessions))

    async def worker(index: int) -> None:
        await asyncio.sleep(scenario.stagger_s * index / scenario.concurrency)
        for number in numbers:
            await conversation(scenario, texts, number, seen)

    probing = None
    if scenario.target != "stub":
        probing = asyncio.create_task(probe(scenario.origin, seen))
    began = time.perf_counter()
    await asyncio.gather(*(worker(index) for index in range(scenario.concurrency)))
    took = time.perf_counter() - began
    if probing is not None:
        probing.cancel()
        await asyncio.gather(probing, return_exceptions=True)
    return {
        "turns": len(seen.whole_s),
        "turns_per_s": len(seen.whole_s) / took,
        **spread("whole_ms", seen.whole_s),
        **spread("first_ms", seen.first_s),
        **spread("healthz_ms", seen.stall_s),
        "prompt_tokens_min": min(seen.prompt_tokens, default=0),
        "prompt_tokens_max": max(seen.prompt_tokens, default=0),
        "errors": len(seen.errors),
        "first_error": seen.errors[0] if seen.errors else "",
    }


def spread(name: str, seconds: list[float]) -> dict[str, float]:
    """Median, 99th percentile and maximum, in milliseconds."""
    if not seconds:
        return {}
    ordered = sorted(seconds)
    at = {"p50": len(ordered) // 2, "p99": min(len(ordered) - 1, int(len(ordered) * 0.99)), "max": -1}
    return {f"{name}_{which}": ordered[index] * 1000 for which, index in at.items()}


def main() -> None:
    scenario = msgspec.json.decode(sys.stdin.buffer.read(), type=Scenario)
    print(json.dumps(uvloop.run(run(scenario))), flush=True)


if __name__ == "__main__":
    main()
