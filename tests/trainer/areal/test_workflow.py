"""AReaL's workflow rules on our own client: modes, rewards, groups, and what resolves to what."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import httpx
import pytest
import pytest_asyncio

from sandgate.contract.errors import CorruptRecord
from sandgate.trainer import testing
from sandgate.trainer.areal import (
    GroupedRolloutWorkflow,
    OpenAIProxyClient,
    OpenAIProxyWorkflow,
    client,
    grant_capacity,
    resolve_workflow,
)
from sandgate.trainer.areal.client import parse
from tests.trainer.areal import agents
from tests.trainer.areal.agents import Blocking, Dying, Inline, InProcess, Rejecting, Unpicklable


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def running() -> AsyncIterator[testing.RunningGateway]:
    async with testing.gateway(lambda ids, number: f"answer {number}") as found:
        yield found


pytestmark = pytest.mark.asyncio(loop_scope="module")


def workflow(
    running: testing.RunningGateway, agent: Any, mode: str = "inline", **more: Any
) -> OpenAIProxyWorkflow:
    return OpenAIProxyWorkflow(mode, agent, running.origin, running.admin_key, **more)


# -- episodes -------------------------------------------------------------------------------------------------------

REWARDS: dict[str, tuple[Any, dict[str, Any], list[float]]] = {
    "a float is the last interaction's, discounted": (1.0, {"discount": 0.5}, [0.5, 1.0]),
    "a dict is each one's": ([0.25, 0.5], {"discount": 0.0}, [0.25, 0.5]),
    "leaves alone have the rewards of leaves": (1.0, {"export_style": "concat"}, [1.0, 1.0]),
}


@pytest.mark.parametrize("case", REWARDS)
async def test_an_episode_inline(running: testing.RunningGateway, case: str) -> None:
    reward, more, expected = REWARDS[case]
    async with workflow(running, Inline(reward), **more) as mine:
        found = await mine.arun_episode(None, {"prompt": "buy"})
    assert [one.reward for one in found.values()] == expected
    assert [one.interaction_id for one in found.values()] == list(found)
    for one in found.values():
        columns = one.columns
        assert columns["input_ids"].shape == (
            1,
            columns["loss_mask"].sum() + (columns["versions"] == -1).sum(),
        )
        assert {name: column.dtype.name for name, column in columns.items()} == {
            "input_ids": "int32",
            "loss_mask": "int32",
            "logprobs": "float32",
            "versions": "int32",
            "attention_mask": "bool",
            "rewards": "float32",
        }


async def test_keys_go_to_the_gateway_and_to_no_proxy_of_the_environment(
    running: testing.RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(proxy, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, url)
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        async with workflow(running, Inline(1.0)) as mine:
            assert len(await mine.arun_episode(None, {"prompt": "buy"})) == 2
    assert heads == []


@pytest.mark.parametrize("reward", [1, True, None, "1.0", [0.5]], ids=repr)
async def test_what_is_no_float_is_no_reward(running: testing.RunningGateway, reward: Any) -> None:
    agent = Inline()
    agent.reward = reward if not isinstance(reward, list) else tuple(reward)
    async with workflow(running, agent) as mine:
        with pytest.raises(ValueError, match="a float or a dict"):
            await mine.arun_episode(None, {"prompt": "buy"})


async def test_what_an_agent_raises_is_raised_and_its_session_is_ended(
    running: testing.RunningGateway,
) -> None:
    before = {one["session_id"] async for one in running.client.sessions()}
    async with workflow(running, Inline(RuntimeError("it failed"))) as mine:
        with pytest.raises(RuntimeError, match="it failed"):
            await mine.arun_episode(None, {"prompt": "buy"})
    new = [one async for one in running.client.sessions() if one["session_id"] not in before]
    assert [(one["state"], one["turns"]) for one in new] == [("complete", 2)]


async def test_processes_of_a_pool_each_have_their_own_session(running: testing.RunningGateway) -> None:
    async with workflow(running, InProcess(), "subproc", subproc_max_workers=2) as mine:
        grouped = GroupedRolloutWorkflow(mine, 3)
        found = await grouped.arun_episode(None, {"prompt": "buy", "reward": 0.75, "trainer": os.getpid()})
    assert found is not None
    assert [one.reward for one in found.values()] == [0.75] * 3


async def test_a_group_is_so_many_sessions(running: testing.RunningGateway) -> None:
    async with workflow(running, Inline()) as mine:
        found = await GroupedRolloutWorkflow(mine, 4).arun_episode(None, {"prompt": "buy"})
    assert found is not None
    assert len(found) == 8
    trees = [await running.client.tree(one["session_id"]) async for one in running.client.sessions()]
    mine_of = [sum(f"chatcmpl-{turn['turn']}" in found for turn in tree["turns"]) for tree in trees]
    assert sorted(count for count in mine_of if count) == [2, 2, 2, 2]


async def test_what_was_rejected_is_left_out_of_its_group() -> None:
    kept = await GroupedRolloutWorkflow(Rejecting(), 4).arun_episode(None, {})
    assert kept is not None
    assert list(kept) == ["2", "4"]
    assert await GroupedRolloutWorkflow(Rejecting(every=True), 4).arun_episode(None, {}) is None
    with pytest.raises(ValueError, match="group_size"):
        GroupedRolloutWorkflow(Rejecting(), 0)


async def test_a_group_raises_what_one_of_it_raises(running: testing.RunningGateway) -> None:
    async with workflow(running, Inline(RuntimeError("it failed"))) as mine:
        with pytest.raises(RuntimeError, match="it failed"):
            await GroupedRolloutWorkflow(mine, 2).arun_episode(None, {"prompt": "buy"})


# -- the client -----------------------------------------------------------------------------------------------------


async def test_a_reward_for_nothing_is_logged_and_forgotten(
    running: testing.RunningGateway, caplog: pytest.LogCaptureFixture
) -> None:
    async with httpx.AsyncClient() as http:
        await grant_capacity(http, running.origin, running.admin_key)
        async with OpenAIProxyClient(http, running.origin, "5", running.admin_key) as client:
            await client.set_last_reward(1.0)
            assert "reward not set" in caplog.text
        assert await client.export_interactions() == {}


@pytest.mark.parametrize("status", [408, 429, 502, 503, 504, None])
async def test_a_start_is_tried_until_it_works(status: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    def answer(request: httpx.Request) -> httpx.Response:
        nonlocal asked
        asked += 1
        if asked > 12 or not request.url.path.endswith("start_session"):
            return httpx.Response(200, json={"session_id": "s", "api_key": "k"})
        if status is None:
            raise httpx.ConnectError("nobody there")
        return httpx.Response(status)

    monkeypatch.setattr("sandgate.trainer.areal.client.BACKOFF_S", (0.0, 0.0))
    async with (
        httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http,
        OpenAIProxyClient(http, "http://gateway", "5", "key") as client,
    ):
        assert (client.session_id, client.session_api_key, asked) == ("s", "k", 13)


async def test_a_reward_is_tried_ten_times_and_a_refusal_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        if request.url.path.endswith("set_reward"):
            return httpx.Response(503)
        if request.url.path.endswith("end_session"):
            return httpx.Response(410)
        return httpx.Response(200, json={"session_id": "s", "api_key": "k"})

    monkeypatch.setattr("sandgate.trainer.areal.client.BACKOFF_S", (0.0, 0.0))
    async with httpx.AsyncClient(transport=httpx.MockTransport(answer)) as http:
        client = OpenAIProxyClient(http, "http://gateway", "5", "key")
        with pytest.raises(ValueError, match="not started"):
            await client.set_last_reward(1.0)
        await client.__aenter__()
        with pytest.raises(httpx.HTTPStatusError, match="503"):
            await client.set_last_reward(1.0)
        with pytest.raises(httpx.HTTPStatusError, match="410"):
            await client.__aexit__(None, None, None)
    assert [asked.count(f"/rl/{name}") for name in ("start_session", "set_reward", "end_session")] == [
        1,
        10,
        1,
    ]


BAD: dict[str, Any] = {
    "no interactions": {},
    "no tensors": {"interactions": {"a": {"interaction_id": "a", "reward": 1.0, "messages": []}}},
    "a class to import": {
        "interactions": {
            "a": {
                "interaction_id": "a",
                "reward": 1.0,
                "tensor_dict": {"input_ids": {"type": "dataclass", "class_path": "os.system"}},
            }
        }
    },
    "a shape that does not fit": {
        "interactions": {
            "a": {
                "interaction_id": "a",
                "reward": 1.0,
                "tensor_dict": {"input_ids": {"data": "AAAA", "shape": [1, 9], "dtype": "torch.bool"}},
            }
        }
    },
}


@pytest.mark.parametrize("case", BAD)
async def test_an_export_that_is_none_is_refused(case: str) -> None:
    with pytest.raises(CorruptRecord):
        parse(BAD[case])


# -- resolution -----------------------------------------------------------------------------------------------------

ADDRESS = {"proxy_addr": "http://127.0.0.1:1", "admin_api_key": "k"}
MINE = "tests.trainer.areal.agents"


def kind(found: Any) -> str:
    """Classes from the outside in, and the agent."""
    if isinstance(found, GroupedRolloutWorkflow):
        return f"{found.group_size} x {kind(found.workflow)}"
    return type(found.agent).__name__ if isinstance(found, OpenAIProxyWorkflow) else type(found).__name__


RESOLVED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "a workflow is itself": (agents.REJECTING, {}, "Rejecting"),
    "a workflow's class is made with its kwargs": (
        Rejecting,
        {"workflow_kwargs": {"every": True}},
        "Rejecting",
    ),
    "a path to a workflow": (f"{MINE}.REJECTING", {}, "Rejecting"),
    "a path to a workflow's class": (f"{MINE}.Rejecting", {"workflow_kwargs": {}}, "Rejecting"),
    "an agent is wrapped": (Inline(), ADDRESS, "Inline"),
    "an agent's class is made and wrapped": (
        Inline,
        {**ADDRESS, "workflow_kwargs": {"reward": 0.0}},
        "Inline",
    ),
    "an agent's class needs no kwargs": (Inline, ADDRESS, "Inline"),
    "a path to an agent": (f"{MINE}.INLINE", ADDRESS, "Inline"),
    "a path with a colon": (f"{MINE}:Inline", ADDRESS, "Inline"),
    "a group of an agent": (Inline, {**ADDRESS, "group_size": 4}, "4 x Inline"),
    "a group of a workflow": (agents.REJECTING, {"group_size": 2}, "2 x Rejecting"),
    "a group of one is no group": (Inline, {**ADDRESS, "group_size": 1}, "Inline"),
    "an agent for processes": (
        InProcess,
        {**ADDRESS, "mode": "subproc", "subproc_max_workers": 1},
        "InProcess",
    ),
}


@pytest.mark.parametrize("case", RESOLVED)
async def test_what_resolves_to_what(case: str) -> None:
    said, more, expected = RESOLVED[case]
    assert kind(resolve_workflow(said, **more)) == expected


REFUSED: dict[str, tuple[Any, dict[str, Any], type[Exception], str]] = {
    "a workflow's class without kwargs": (Rejecting, {}, ValueError, "workflow_kwargs are required"),
    "a path to a workflow's class without kwargs": (f"{MINE}.Rejecting", {}, ValueError, "are required"),
    "an agent without a gateway": (Inline, {}, ValueError, "proxy_addr is required"),
    "a path to no module": ("nowhere.at.All", ADDRESS, ValueError, "no workflow at 'nowhere.at.All'"),
    "a path to no name": (f"{MINE}.Nothing", ADDRESS, ValueError, "no workflow at"),
    "a word": ("word", ADDRESS, ValueError, "no workflow at 'word'"),
    "something without run()": (object(), ADDRESS, TypeError, "object has no"),
    "a run() that blocks": (Blocking, ADDRESS, TypeError, "Blocking has no"),
    "an agent that cannot be pickled": (
        Unpicklable,
        {**ADDRESS, "mode": "subproc"},
        TypeError,
        "Unpicklable",
    ),
    "a mode that is none": (Inline, {**ADDRESS, "mode": "thread"}, ValueError, "inline or subproc"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_what_does_not_resolve_says_why(case: str) -> None:
    said, more, error, words = REFUSED[case]
    with pytest.raises(error, match=words):
        resolve_workflow(said, **more)


async def test_an_agent_whose_process_is_killed_ends_its_episode_and_not_all_that_come_after(
    running: testing.RunningGateway,
) -> None:
    data = {"prompt": "buy", "trainer": os.getpid(), "reward": 1.0}
    async with workflow(running, Dying(), "subproc", subproc_max_workers=1) as mine:
        with pytest.raises(BrokenProcessPool):
            await mine.arun_episode(None, data | {"dies": True})
        assert len(await mine.arun_episode(None, data)) == 1


async def test_an_export_of_a_gateway_that_says_nothing_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "EXPORT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:  # connections wait in the kernel
        port = silent.getsockname()[1]
        await given_up(f"http://127.0.0.1:{port}")


async def given_up(origin: str) -> None:
    async with httpx.AsyncClient() as http:
        proxy = OpenAIProxyClient(http, origin, "t", "key")
        proxy.session_id = "t-1"
        with pytest.raises(httpx.ReadTimeout):
            async with asyncio.timeout(10):
                await proxy.export_interactions()
