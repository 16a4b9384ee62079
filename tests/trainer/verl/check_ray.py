"""Real Ray: gateways as actors, runners as tasks, and the adapter that verl's trainer is configured with."""

from __future__ import annotations

import asyncio
import functools
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray  # type: ignore[import-not-found]
import transfer_queue as tq  # type: ignore[import-not-found]
from omegaconf import OmegaConf  # type: ignore[import-not-found]
from verl import DataProto  # type: ignore[import-not-found]
from verl.utils.import_utils import load_class_from_fqn  # type: ignore[import-not-found]
from verl.utils.tensordict_utils import list_of_dict_to_tensordict  # type: ignore[import-not-found]
from verl.workers.rollout.llm_server import LLMServerClient  # type: ignore[import-not-found]
from verl.workers.rollout.router import GlobalRequestLoadBalancer  # type: ignore[import-not-found]

from sandgate.contract.errors import Unavailable
from sandgate.gateway.engine.scripted import ScriptedEngine
from sandgate.trainer import tinymodel
from sandgate.trainer.ray import AgentGatewayManager, GatewaySettings, gateway_actor
from sandgate.trainer.verl import (
    Lengths,
    OpenAICompatibleAgentFramework,
    build_agent_framework,
    runner_configs,
)
from sandgate.trainer.verl.dataproto import objects

agents: Any = importlib.import_module("agents")
"""Under the name by which workers import it."""

PROMPT = [{"role": "user", "content": "hi"}]
HELLO = agents.HELLO
SCRIPTED = functools.partial(
    ScriptedEngine, [HELLO], eos_ids=[tinymodel.END], vocab_size=tinymodel.VOCAB_SIZE
)
"""Says hello, and ends its turn."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tinymodel.write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def settings(model: Path) -> GatewaySettings:
    return GatewaySettings(
        model="tiny", tokenizer=str(model), engine=SCRIPTED, host="127.0.0.1", max_model_len=2048
    )


@pytest.fixture
def actors(ray_cluster: None, settings: GatewaySettings) -> Iterator[list[Any]]:
    made = [gateway_actor(settings) for _ in range(4)]
    ray.get([one.start.remote() for one in made])
    yield made
    for one in made:
        ray.kill(one)


async def test_four_gateways_64_sessions_one_killed(actors: list[Any]) -> None:
    manager = AgentGatewayManager(actors)
    handles = await asyncio.gather(*(manager.create_session(f"s{at}", uid="q") for at in range(64)))
    assert manager.load == [16, 16, 16, 16]
    assert len({handle.base_url.split("/sessions")[0] for handle in handles}) == 4
    ray.kill(actors[0], no_restart=True)
    said = await asyncio.gather(*(agents.ask(one, PROMPT) for one in handles), return_exceptions=True)
    assert sorted(one == "hello" for one in said) == [False] * 16 + [True] * 48
    rows = await asyncio.gather(
        *(manager.finalize_session(one.session_id, 1.0) for one in handles), return_exceptions=True
    )
    lost = [one for one in rows if isinstance(one, BaseException)]
    assert [type(one) for one in lost] == [Unavailable] * 16
    exact = [one[0] for one in rows if not isinstance(one, BaseException)]
    assert {tuple(row.response_ids) for row in exact} == {tuple(HELLO)}
    for session in handles:
        if session.session_id in manager._routes:
            with pytest.raises(Unavailable):
                await manager.abort_session(session.session_id)
    again = await asyncio.gather(*(manager.create_session(f"t{at}") for at in range(6)))
    assert manager.load == [0, 2, 2, 2]
    assert len(again) == 6


async def test_an_actor_forgets_what_it_gave(actors: list[Any]) -> None:
    manager = AgentGatewayManager(actors[:1])
    first, second = [await manager.create_session(name) for name in ("a", "b")]
    await agents.ask(first, PROMPT)
    (row,) = await manager.finalize_session("a", 0.5)
    assert (row.reward, row.session_id) == (0.5, "a")
    await manager.abort_session(second.session_id)
    assert await actors[0].sessions.remote() == 0
    await agents.complete(await manager.create_session("c"), {"score": 1.0})
    assert await manager.wait_for_completion("c", 5.0)
    assert not await _waits(manager)


async def _waits(manager: AgentGatewayManager) -> bool:
    await manager.create_session("d")
    return await manager.wait_for_completion("d", 0.05)


def batch(size: int, **do: str) -> Any:
    asked = {int(name[1:]): value for name, value in do.items()}
    columns: dict[str, list[Any]] = {
        "uid": ["q1"] * size,
        "raw_prompt": [PROMPT] * size,
        "tools_kwargs": [{"do": asked}] * size,
    }
    return DataProto.from_dict(
        non_tensors={name: objects(values) for name, values in columns.items()}, tensors=_dummy(size)
    )


def _dummy(size: int) -> dict[str, Any]:
    import torch  # type: ignore[import-not-found]

    return {"dummy_tensor": torch.zeros(size, 1)}


async def test_a_ray_task_imports_its_runner_again_and_fails_alone(actors: list[Any]) -> None:
    entry = {"runner_fqn": "agents.blocking", "dispatch_mode": "ray_task"}
    framework = OpenAICompatibleAgentFramework(
        AgentGatewayManager(actors[:2]), runner_configs({"agent_runners": {"task": entry}}), Lengths(64, 64)
    )
    out = await framework.generate_sequences(batch(4, s1="raise", s2="exit"))
    assert out.batch["rm_scores"].sum(-1).tolist() == [1.0, 1.0]
    assert os.getpid() not in out.non_tensor_batch["pid"].tolist()
    assert framework.sessions.gateways.load == [0, 0]
    with pytest.raises(RuntimeError, match="the task broke"):
        await framework.generate_sequences(batch(1, s0="raise"))


# -- verl's own client, and the adapter ------------------------------------------------------------------------------


def config(model: Path, **framework: Any) -> Any:
    section = {
        "gateway_count": 2,
        "model_name": "tiny",
        "agent_runners": {"chat": {"runner_fqn": "agents.chat", "max_concurrent_sessions": 0}},
    } | framework
    rollout = {
        "name": "vllm",
        "prompt_length": 64,
        "response_length": 64,
        "n": 3,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "val_kwargs": {"n": 1, "temperature": 1.0, "top_p": 1.0, "top_k": -1},
        "agent": {"agent_loop_manager_class": "sandgate.trainer.verl.AgentFrameworkRolloutAdapter"},
        "custom": {"agent_framework": {name: value for name, value in section.items() if value is not None}},
    }
    return OmegaConf.create({"actor_rollout_ref": {"rollout": rollout, "model": {"path": str(model)}}})


@pytest.fixture
def adapter(ray_cluster: None, model: Path) -> Iterator[Any]:
    conf = config(model)
    server = ray.remote(agents.Server).options(num_cpus=0).remote()
    balancer = ray.remote(GlobalRequestLoadBalancer).options(num_cpus=0).remote(servers={"server-0": server})
    made = load_class_from_fqn(
        conf.actor_rollout_ref.rollout.agent.agent_loop_manager_class, "AgentLoopManager"
    )
    running = made.create(
        config=conf,
        llm_client=LLMServerClient(conf, balancer),
        teacher_client=None,
        reward_loop_worker_handles=None,
    )
    yield running
    for one in [running.worker, *running.gateways, server, balancer]:
        ray.kill(one)


def test_v0_gives_a_row_per_prompt_through_verls_own_client(adapter: Any) -> None:
    asked = batch(3, s1="raise")
    out = adapter.generate_sequences(asked)
    assert len(asked.union(out)) == 3  # as the trainer does
    assert out.batch["response_mask"].sum(-1).tolist() == [6, 0, 6]
    assert out.batch["rollout_log_probs"][0][:7].tolist() == [-0.5] * 6 + [0.0]
    assert out.non_tensor_batch["max_global_steps"].tolist() == [7, None, 7]


def test_v1_returns_at_once_and_the_rows_come_by_the_queue(adapter: Any) -> None:
    from types import SimpleNamespace

    from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer  # type: ignore[import-not-found]

    tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
    row = {"raw_prompt": PROMPT, "data_source": "shop", "global_steps": 3, "index": 0}
    rows = [row | {"uid": uid, "tools_kwargs": {"do": do}} for uid, do in (("u1", {}), ("u2", {1: "raise"}))]
    for one in rows:
        tag = {"is_prompt": True, "status": "pending", "global_steps": 3}
        tq.kv_put(key=one["uid"], partition_id="train", tag=tag)
    assert adapter.generate_sequences(list_of_dict_to_tensordict(rows)) is None
    buffer = ReplayBuffer("sync", SimpleNamespace(), None, "drop", SimpleNamespace(), poll_interval=0.05)
    sampled, _ = buffer.sample(3, "train", 2)
    assert sorted(sampled.keys) == ["u1_0_0", "u1_1_0", "u1_2_0", "u2_0_0", "u2_2_0"]
    data = tq.kv_batch_get(keys=["u1_0_0"], partition_id="train")
    assert data["responses"][0].tolist() == HELLO
    assert list(data["data_source"]) == ["shop"]
    assert sampled.tags[0]["max_global_steps"] == 7
    tq.close()


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "gateway_count is missing": ({"gateway_count": None}, "agent_framework.gateway_count is required"),
    "gateway_count is no count": ({"gateway_count": 0}, "gateway_count must be at least 1, not 0"),
    "a key is misspelt": ({"gateway_cuont": 1}, "agent_framework.gateway_cuont: no such key"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_config_is_refused_by_a_value_error(case: str, model: Path) -> None:
    change, why = WRONG[case]
    with pytest.raises(ValueError, match=why):
        build_agent_framework(config(model, **change))


def test_no_section_at_all_is_refused_by_a_value_error(model: Path) -> None:
    conf = config(model)
    conf.actor_rollout_ref.rollout.custom = None
    with pytest.raises(ValueError, match=r"custom\.agent_framework is required"):
        build_agent_framework(conf)
