"""Agents and workflows that tests resolve by import path, and that processes of a pool unpickle."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import httpx

from sandgate.trainer.areal import RolloutWorkflow


def chat(base_url: str, key: str, *texts: str) -> str:
    """A chat completion's id, without an SDK."""
    answer = httpx.post(
        f"{base_url}/chat/completions",
        json={"model": "default", "messages": [{"role": "user", "content": text} for text in texts]},
        headers={"x-api-key": key},
        verify=False,
    )
    answer.raise_for_status()
    return str(answer.json()["id"])


class Inline:
    """Two calls; then what it was made to return, or to raise."""

    def __init__(self, reward: Any = 1.0) -> None:
        self.reward = reward

    async def run(self, data: dict[str, Any], **extra_kwargs: Any) -> Any:
        http, ids = extra_kwargs["http_client"], []
        for text in (data["prompt"], "and then"):
            answer = await http.post(
                f"{extra_kwargs['base_url']}/chat/completions",
                json={"model": "default", "messages": [{"role": "user", "content": text}]},
                headers={"authorization": f"Bearer {extra_kwargs['api_key']}"},
            )
            answer.raise_for_status()
            ids.append(answer.json()["id"])
        if isinstance(self.reward, Exception):
            raise self.reward
        return dict(zip(ids, self.reward, strict=True)) if isinstance(self.reward, list) else self.reward


class InProcess:
    """Blocking code in a process of its own: base URL and key from the environment."""

    async def run(self, data: dict[str, Any], **extra_kwargs: Any) -> dict[str, float]:
        assert not extra_kwargs
        assert os.getpid() != data["trainer"]
        base_url, key = os.environ["OPENAI_BASE_URL"], os.environ["OPENAI_API_KEY"]
        assert (os.environ["ANTHROPIC_BASE_URL"], os.environ["ANTHROPIC_API_KEY"]) == (base_url, key)
        return {chat(base_url, key, data["prompt"]): float(data["reward"])}


class Unpicklable(Inline):
    """Holds what no process can be given."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Blocking:
    """Its run() is no coroutine."""

    def run(self, data: dict[str, Any], **extra_kwargs: Any) -> float:
        return 0.0


class Rejecting(RolloutWorkflow):
    """Rejects every other episode, or all of them."""

    def __init__(self, every: bool = False) -> None:
        self.every, self.count = every, 0

    async def arun_episode(self, engine: Any, data: dict[str, Any]) -> Any:
        self.count += 1
        return None if self.every or self.count % 2 else {str(self.count): None}


INLINE = Inline()
REJECTING = Rejecting()


class Dying(InProcess):
    """Its process is killed, as for memory, where the data says so."""

    async def run(self, data: dict[str, Any], **extra_kwargs: Any) -> dict[str, float]:
        if data.get("dies"):
            os.kill(os.getpid(), signal.SIGKILL)
        return await super().run(data, **extra_kwargs)
