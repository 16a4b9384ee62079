"""The framework over a real gateway: each test is named for the behaviour that uni-agent's own test gates."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import torch  # type: ignore[import-not-found]
from verl import DataProto  # type: ignore[import-not-found]

from sandgate.contract.errors import BadManifest, InvalidBody
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.gateways import GatewayManager, HttpGateway
from sandgate.trainer.testing import RunningGateway, gateway
from sandgate.trainer.verl import (
    CliAgentFramework,
    CliRunner,
    Lengths,
    NoReward,
    OpenAICompatibleAgentFramework,
    runner_configs,
)
from sandgate.trainer.verl.dataproto import objects
from tests.trainer.verl import agents

LENGTHS = Lengths(64, 64)
CHAT = "tests.trainer.verl.agents.chat"


def configs(**runners: dict[str, Any]) -> Any:
    return runner_configs({"agent_runners": runners or {"chat": {"runner_fqn": CHAT}}})


@asynccontextmanager
async def running(runners: Any = None, **options: Any) -> AsyncIterator[tuple[Any, RunningGateway]]:
    """A framework over a gateway process and a scripted engine."""
    async with gateway(["hello"]) as one:
        manager = GatewayManager([HttpGateway(one.client)])
        yield OpenAICompatibleAgentFramework(manager, runners or configs(), LENGTHS, **options), one


def batch(rows: list[dict[str, Any]]) -> Any:
    prompt = [{"role": "user", "content": "hi"}]
    names = {name for row in rows for name in row}
    columns = {name: objects([row.get(name) for row in rows]) for name in names}
    columns["raw_prompt"] = objects([prompt] * len(rows))
    return DataProto.from_dict(non_tensors=columns, tensors={"dummy": torch.zeros(len(rows), 1)})


def group(size: int, uid: str = "q1", **do: str) -> list[dict[str, Any]]:
    """`size` rows of one task; `s1="raise"`: what sample 1 does."""
    asked = {int(name[1:]): value for name, value in do.items()}
    return [{"uid": uid, "tools_kwargs": {"do": asked}, "data_source": "shop"} for _ in range(size)]


async def test_a_batch_of_prompts_becomes_a_batch_of_rows() -> None:
    async with running() as (framework, _):
        out = await framework.generate_sequences(batch(group(2) + group(1, "q2")))
    assert out.non_tensor_batch["uid"].tolist() == ["q1", "q1", "q2"]
    assert out.non_tensor_batch["data_source"].tolist() == ["shop"] * 3
    assert out.batch["rm_scores"].sum(-1).tolist() == [1.0, 1.0, 1.0]
    assert out.batch["response_mask"].sum(-1).tolist() == [6, 6, 6]  # hello and the end of the turn


@pytest.mark.parametrize("how", ["raise", "base", "cancel", "exit"])
async def test_a_failed_session_is_aborted_and_its_siblings_are_kept(how: str) -> None:
    async with running() as (framework, one):
        out = await framework.generate_sequences(batch(group(3, s1=how)))
        states = sorted([session["state"] async for session in one.client.sessions()])
    assert out.non_tensor_batch["sandgate_session"].shape == (2,)
    assert states == ["aborted", "finalized", "finalized"]
    assert framework.sessions.gateways.load == [0]


async def test_a_batch_that_must_align_has_a_masked_row_for_a_failed_session() -> None:
    async with running() as (framework, _):
        out = await framework.generate_aligned(batch(group(2, s1="raise")))
    assert len(out) == 2
    assert out.batch["response_mask"].sum(-1).tolist() == [6, 0]
    assert out.batch["rm_scores"].sum(-1).tolist() == [1.0, 1.0]  # the group's mean


async def test_a_batch_of_failures_raises_the_first() -> None:
    async with running() as (framework, _):
        with pytest.raises(RuntimeError, match="the agent broke"):
            await framework.generate_sequences(batch(group(1, s0="raise")))


async def test_agent_name_selects_the_runner() -> None:
    both = configs(
        bad={"runner_fqn": CHAT, "runner_kwargs": {"reward": 0.0}},
        good={"runner_fqn": "tests.trainer.verl.agents.Chatter", "runner_kwargs": {"reward": 0.5}},
    )
    async with running(both) as (framework, _):
        rows = [{"uid": "a", "agent_name": "good"}, {"uid": "b", "agent_name": "bad"}]
        out = await framework.generate_sequences(batch(rows))
        assert out.batch["rm_scores"].sum(-1).tolist() == [0.5, 0.0]
        with pytest.raises(InvalidBody, match="no runner 'nobody'; there are bad, good"):
            framework.sessions.runner_of("nobody")
        with pytest.raises(InvalidBody, match="agent_name: must be a string, not None"):
            framework.sessions.runner_of(None)


async def test_the_cap_of_a_runner_is_its_own() -> None:
    agents.PEAK.clear()
    both = configs(
        capped={
            "runner_fqn": CHAT,
            "runner_kwargs": {"name": "capped", "meet": 2},
            "max_concurrent_sessions": 2,
        },
        free={"runner_fqn": CHAT, "runner_kwargs": {"name": "free", "meet": 6}},
    )
    async with running(both) as (framework, _):
        rows = [{"uid": f"{name}-{at}", "agent_name": name} for name in ("capped", "free") for at in range(6)]
        assert len(await framework.generate_sequences(batch(rows))) == 12
    assert agents.PEAK == {"capped": 2, "free": 6}


async def test_the_final_trajectory_is_scored_and_the_others_get_the_same() -> None:
    asked: list[Trajectory] = []

    async def score(row: Trajectory, columns: Any) -> tuple[float, dict[str, Any]]:
        asked.append(row)
        return 0.125, {"acc": 1.0}

    fork = {"runner_fqn": "tests.trainer.verl.agents.forked"}
    async with running(configs(fork=fork), score=score) as (framework, _):
        out = await framework.generate_sequences(batch(group(1)))
    assert [row.trajectory_id for row in asked] == [1]
    assert out.non_tensor_batch["sandgate_trajectory"].tolist() == [0, 1]
    assert out.batch["rm_scores"].sum(-1).tolist() == [0.125, 0.125]
    assert out.non_tensor_batch["acc"].tolist() == [1.0, 1.0]


async def test_an_agent_may_upload_its_reward() -> None:
    async with running() as (framework, _):
        out = await framework.generate_sequences(batch(group(1, s0="upload")))
    assert out.batch["rm_scores"].sum(-1).tolist() == [0.25]
    assert out.non_tensor_batch["why"].tolist() == ["half"]


async def test_a_session_that_nobody_scored_is_a_failure() -> None:
    async with running() as (framework, _):
        with pytest.raises(NoReward, match="neither runner nor agent gave a reward"):
            await framework.generate_sequences(batch(group(1, s0="none")))


async def test_an_agent_elsewhere_is_waited_for() -> None:
    remote = {"runner_fqn": CHAT, "completion_timeout_s": 20.0}
    async with running(configs(remote=remote)) as (framework, _):
        out = await framework.generate_sequences(batch(group(1, s0="later")))
    assert out.batch["rm_scores"].sum(-1).tolist() == [0.75]


PROGRAM = """
import json, os, urllib.request
def post(url, body):
    headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    return json.load(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request))
said = json.loads(os.environ["SANDGATE_PROMPT"])
post(os.environ["OPENAI_BASE_URL"] + "/chat/completions", {"model": "tiny", "messages": said})
with open(os.environ["SANDGATE_TERMINATION_LOG"], "w") as out:
    json.dump({"reward": 0.5}, out)
"""


async def test_a_program_is_an_agent_and_its_exit_the_end() -> None:
    async with gateway(["hello"]) as one:
        manager = GatewayManager([HttpGateway(one.client)])
        framework = CliAgentFramework(manager, [sys.executable, "-c", PROGRAM], LENGTHS)
        out = await framework.generate_sequences(batch(group(1)))
        assert out.batch["rm_scores"].sum(-1).tolist() == [0.5]
        failing = CliAgentFramework(manager, [sys.executable, "-c", "import sys; sys.exit('no')"], LENGTHS)
        with pytest.raises(Exception, match=r"(?s)ended with exit code 1.*no"):
            await failing.generate_sequences(batch(group(1)))


def test_the_command_runner_takes_its_config_from_yaml() -> None:
    entry = {"runner_fqn": "sandgate.trainer.verl.CliRunner", "runner_kwargs": {"command": ["true"]}}
    (config,) = configs(cli=entry).values()
    assert CliRunner(**config.runner_kwargs).command == ["true"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "the legacy shape": ({"runner_fqn": CHAT}, "agent_framework.runner_fqn: one runner per config"),
    "no runners": ({"agent_runners": {}}, "name at least one runner"),
    "a runner without a name to import": (
        {"agent_runners": {"a": {}}},
        "agent_runners.a: runner_fqn is missing",
    ),
    "a plain word": ({"agent_runners": {"a": {"runner_fqn": "x"}}}, "is not package.module.name"),
    "an unknown mode": (
        {"agent_runners": {"a": {"runner_fqn": CHAT, "dispatch_mode": "process"}}},
        "'process' is not inline_async or ray_task",
    ),
    "an unknown key": ({"agent_runners": {"a": {"runner_fqn": CHAT, "cap": 1}}}, "unknown key 'cap'"),
    "a negative cap": (
        {"agent_runners": {"a": {"runner_fqn": CHAT, "max_concurrent_sessions": -1}}},
        "must not be negative",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_config_is_refused_with_its_place(case: str) -> None:
    settings, why = REFUSED[case]
    with pytest.raises(BadManifest, match=why):
        runner_configs(settings)


async def test_a_runner_that_cannot_be_imported_is_refused_at_the_start() -> None:
    with pytest.raises(BadManifest, match=r"'no.such.runner' cannot be imported"):
        async with running(configs(a={"runner_fqn": "no.such.runner"})):
            pytest.fail("it started")


def test_numpy_makes_no_matrix_of_lists() -> None:
    assert objects([[1, 2], [3, 4]]).shape == (2,)
    assert np.array([[1, 2], [3, 4]]).shape == (2, 2)
