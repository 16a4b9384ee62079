"""Runners for the tests. `tools_kwargs["do"]` says how a session ends."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from pathlib import Path
from typing import Any

import httpx

from sandgate.contract.session import SessionHandle
from sandgate.trainer import tinymodel

MODEL = "tiny"
HELLO = [*tinymodel.encode("hello"), tinymodel.END]
RUNNING: dict[str, int] = {}
PEAK: dict[str, int] = {}
"""Sessions at once in this process, by the runner's `name`."""
MEETING: dict[str, asyncio.Barrier] = {}


class Broken(BaseException):
    """Not an Exception: what naive code does not catch."""


async def ask(session: SessionHandle, messages: Any) -> str:
    """One turn."""
    key = {"authorization": f"Bearer {session.api_key}"}
    async with httpx.AsyncClient(timeout=30, trust_env=False) as http:
        body = {"model": MODEL, "messages": messages}
        answer = await http.post(f"{session.base_url}/chat/completions", json=body, headers=key)
        answer.raise_for_status()
        return str(answer.json()["choices"][0]["message"]["content"])


async def complete(session: SessionHandle, info: dict[str, Any]) -> None:
    """The agent's own end."""
    key = {"authorization": f"Bearer {session.api_key}"}
    async with httpx.AsyncClient(timeout=30, trust_env=False) as http:
        answer = await http.post(session.complete_url, json={"reward_info": info}, headers=key)
        answer.raise_for_status()


async def chat(
    *,
    session: SessionHandle,
    raw_prompt: Any,
    sample_index: int,
    tools_kwargs: Any = None,
    name: str = "chat",
    meet: int = 0,
    **kwargs: Any,
) -> float | None:
    """One turn, then what is asked for."""
    RUNNING[name] = RUNNING.get(name, 0) + 1
    PEAK[name] = max(PEAK.get(name, 0), RUNNING[name])
    try:
        if meet:  # so many are in here at once, or nobody goes on
            await MEETING.setdefault(name, asyncio.Barrier(meet)).wait()
        await ask(session, raw_prompt)
        return await _end(session, (tools_kwargs or {}).get("do", {}).get(sample_index, ""), kwargs)
    finally:
        RUNNING[name] -= 1


async def forked(*, session: SessionHandle, raw_prompt: Any, **_: Any) -> None:
    """Two conversations, and no reward."""
    await ask(session, raw_prompt)
    await ask(session, [{"role": "user", "content": "something else"}])


async def endless(
    *, session: SessionHandle, raw_prompt: Any, time: bool = False, score: float | None = None, **_: Any
) -> float:
    """Never content with the answer. `time`: its runner says that it took too long, after two turns."""
    from sandgate.trainer.verl import TimedOut

    messages = list(raw_prompt)
    while True:
        try:
            answer = await ask(session, messages)
        except httpx.HTTPStatusError:
            if score is not None:
                await complete(session, {"score": score})
            raise
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "more"}]
        if time and len(messages) == 5:
            raise TimedOut("the agent took too long")


async def _end(session: SessionHandle, do: str, kwargs: dict[str, Any]) -> float | None:
    if do == "raise":
        raise RuntimeError("the agent broke")
    if do == "base":
        raise Broken
    if do == "cancel":
        raise asyncio.CancelledError
    if do == "exit":
        sys.exit(3)
    if do in ("upload", "none"):
        if do == "upload":
            await complete(session, {"score": 0.25, "why": "half"})
        return None
    if do == "later":
        kwargs.setdefault("tasks", []).append(asyncio.create_task(complete(session, {"score": 0.75})))
        return None
    return float(kwargs.get("reward", 1.0))


class Chatter:
    """A class runner: its configuration comes once, by its constructor."""

    def __init__(self, reward: float = 1.0) -> None:
        self.reward = reward

    async def __call__(
        self, *, session: SessionHandle, raw_prompt: Any, sample_index: int, **_: Any
    ) -> float:
        await ask(session, raw_prompt)
        return self.reward


def blocking(
    *, session: SessionHandle, raw_prompt: Any, sample_index: int, tools_kwargs: Any = None, **_: Any
) -> Any:
    """For ray_task: blocks its process; says which one by its reward_info."""
    do = (tools_kwargs or {}).get("do", {}).get(sample_index, "")
    key = {"authorization": f"Bearer {session.api_key}"}
    body = {"model": MODEL, "messages": raw_prompt}
    with httpx.Client(timeout=30, trust_env=False, headers=key) as http:
        http.post(f"{session.base_url}/chat/completions", json=body).raise_for_status()
        if do == "raise":
            raise RuntimeError("the task broke")
        if do == "exit":
            sys.exit(3)
        if do == "crash":
            os._exit(3)
        if do == "stuck":
            Path(tools_kwargs["pid"]).write_text(str(os.getpid()))
            threading.Event().wait()
        info = {"score": 1.0, "pid": os.getpid()}
        http.post(session.complete_url, json={"reward_info": info}).raise_for_status()


class Server:
    """An inference server as verl's client calls it: says hello with version 7."""

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> Any:
        from verl.workers.rollout.replica import TokenOutput  # type: ignore[import-not-found]

        assert sampling_params["logprobs"] is True
        assert sampling_params["temperature"] == 1.0
        logprobs, extra = [-0.5] * len(HELLO), {"global_steps": 7}
        return TokenOutput(token_ids=HELLO, log_probs=logprobs, stop_reason="completed", extra_fields=extra)
