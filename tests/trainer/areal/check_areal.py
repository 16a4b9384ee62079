"""Runs in AReaL's own environment, with nothing of ours: its proxy client and its workflow, unmodified, against the
gateway at ORIGIN. Prints what they got as one JSON line per check; fails by an exception."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import aiohttp
import torch  # type: ignore[import-not-found]
from areal.experimental.openai import OpenAIProxyClient, OpenAIProxyWorkflow  # type: ignore[import-not-found]
from areal.infra.remote_inf_engine import GroupedRolloutWorkflow  # type: ignore[import-not-found]
from areal.utils import logging  # type: ignore[import-not-found]
from openai import AsyncOpenAI, OpenAI

ORIGIN, KEY = os.environ["ORIGIN"], os.environ["ADMIN_KEY"]
DTYPES = {
    "input_ids": torch.int64,
    "loss_mask": torch.int64,
    "logprobs": torch.float32,
    "versions": torch.int64,
    "attention_mask": torch.bool,
    "rewards": torch.float32,
}


class Talker:
    """An agent as AReaL's documents have it: two turns of one conversation."""

    def __init__(self, reward: Any = 1.0) -> None:
        self.reward = reward

    async def run(self, data: dict[str, Any], **extra_kwargs: Any) -> Any:
        client = AsyncOpenAI(
            base_url=extra_kwargs.get("base_url") or os.getenv("OPENAI_BASE_URL"),
            api_key=extra_kwargs.get("api_key") or os.getenv("OPENAI_API_KEY"),
            http_client=extra_kwargs.get("http_client"),
            max_retries=0,
        )
        messages: list[Any] = [{"role": "user", "content": data["prompt"]}]
        ids = []
        for _ in range(2):
            answer = await client.chat.completions.create(model="default", messages=messages)
            ids.append(answer.id)
            messages += [
                answer.choices[0].message.model_dump(exclude_none=True),
                {"role": "user", "content": "go on"},
            ]
        if self.reward == "raise":
            raise RuntimeError("the agent failed")
        if self.reward == "dict":
            return dict(zip(ids, (0.25, 0.5), strict=True))
        return self.reward


class SyncTalker:
    """For subproc mode: blocking code, keys from the environment."""

    async def run(self, data: dict[str, Any], **extra_kwargs: Any) -> float:
        assert not extra_kwargs
        assert os.environ["ANTHROPIC_API_KEY"] == os.environ["OPENAI_API_KEY"]
        client = OpenAI(base_url=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
        client.chat.completions.create(
            model="default", messages=[{"role": "user", "content": data["prompt"]}]
        )
        return 0.75


def workflow(agent: Any, mode: str = "inline", **more: Any) -> OpenAIProxyWorkflow:
    return OpenAIProxyWorkflow(mode, agent, ORIGIN, admin_api_key=KEY, **more)


def plain(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Its interactions, in its order, after a look at their types."""
    out = []
    for name, interaction in found.items():
        assert interaction.interaction_id == name
        tensors = interaction.to_tensor_dict()
        assert {key: tensor.dtype for key, tensor in tensors.items()} == DTYPES
        length = tensors["input_ids"].shape[1]
        assert all(
            tensor.shape == ((1,) if key == "rewards" else (1, length)) for key, tensor in tensors.items()
        )
        out.append(
            {"id": name, "reward": interaction.reward}
            | {key: tensor.squeeze(0).tolist() for key, tensor in tensors.items()}
        )
    return out


async def inline() -> Any:
    return plain(await workflow(Talker(), discount=0.5).arun_episode(None, {"prompt": "inline"}))


async def by_id() -> Any:
    return plain(await workflow(Talker("dict"), discount=0.0).arun_episode(None, {"prompt": "by_id"}))


async def concat() -> Any:
    return plain(await workflow(Talker(), export_style="concat").arun_episode(None, {"prompt": "concat"}))


async def subproc() -> Any:
    return plain(await workflow(SyncTalker(), "subproc").arun_episode(None, {"prompt": "subproc"}))


async def group() -> Any:
    grouped = GroupedRolloutWorkflow(workflow(Talker()), 4, logging.getLogger("check"))
    return plain(await grouped.arun_episode(None, {"prompt": "group"}))


async def failures() -> Any:
    """What its workflow does with an int, and with an agent that raises."""
    said = []
    for reward in (1, "raise"):
        try:
            await workflow(Talker(reward)).arun_episode(None, {"prompt": "failures"})
        except (ValueError, RuntimeError) as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


async def client() -> Any:
    """Its client alone. A start without capacity waits until there is some; an unknown interaction is only logged."""
    async with aiohttp.ClientSession() as http:
        session = OpenAIProxyClient(http, ORIGIN, "client", KEY)
        entering = asyncio.ensure_future(session.__aenter__())
        refused = await http.post(
            f"{ORIGIN}/rl/start_session",
            json={"task_id": "probe"},
            headers={"Authorization": f"Bearer {KEY}"},
        )
        granted = await http.post(f"{ORIGIN}/grant_capacity", headers={"Authorization": f"Bearer {KEY}"})
        await entering
        await session.set_last_reward(1.0)  # 400: no interactions
        openai = AsyncOpenAI(base_url=ORIGIN, api_key=session.session_api_key, max_retries=0)
        answer = await openai.chat.completions.create(
            model="default", messages=[{"role": "user", "content": "client"}]
        )
        await session.set_reward("chatcmpl-nothing", 1.0)
        await session.set_reward(answer.id, -1.5)
        await session.__aexit__(None, None, None)
        await session.__aexit__(None, None, None)
        found = plain(await session.export_interactions())
        return {"refused": refused.status, "granted": await granted.json(), "found": found}


CHECKS = {check.__name__: check for check in (inline, by_id, concat, subproc, group, failures, client)}


async def main(names: list[str]) -> None:
    for name in names:
        async with asyncio.timeout(60):
            print("CHECK", json.dumps({name: await CHECKS[name]()}), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:] or list(CHECKS)))
