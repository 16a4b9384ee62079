"""Real Ray: gateways as actors, runners as tasks, and the adapter that verl's trainer is configured with."""

from __future__ import annotations

import asyncio
import functools
import importlib
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray  # type: ignore[import-not-found]
import transfer_queue as tq  # type: ignore[import-not-found]
from omegaconf import OmegaConf  # type: ignore[import-not-found]
from verl import DataProto  # type: ignore[import-not-found]
from verl.protocol import pad_dataproto_to_divisor, unpad_dataproto  # type: ignore[import-not-found]
from verl.trainer.ppo.core_algos import AdvantageEstimator  # type: ignore[import-not-found]
from verl.trainer.ppo.ray_trainer import RayPPOTrainer, compute_advantage  # type: ignore[import-not-found]
from verl.trainer.ppo.reward import extract_reward  # type: ignore[import-not-found]
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer  # type: ignore[import-not-found]
from verl.utils.import_utils import load_class_from_fqn  # type: ignore[import-not-found]
from verl.utils.tensordict_utils import (  # type: ignore[import-not-found]
    assign_non_tensor_data,
    get_tensordict,
)
from verl.workers.rollout.llm_server import LLMServerClient  # type: ignore[import-not-found]
from verl.workers.rollout.router import (  # type: ignore[import-not-found]
    GlobalRequestLoadBalancer,
    RequestLoadBalancer,
    get_router_handle,
)

from sandgate.contract.errors import NotFound, Unavailable
from sandgate.gateway.engine.scripted.engine import ScriptedEngine
from sandgate.trainer import tinymodel
from sandgate.trainer.ray import AgentGatewayManager, GatewaySettings, gateway_actor
from sandgate.trainer.verl import (
    GroupRouter,
    Lengths,
    OpenAICompatibleAgentFramework,
    build_agent_framework,
    runner_configs,
)
from sandgate.trainer.verl.dataproto import objects
from tests.support.waiting import until

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


@pytest.fixture(scope="module")
def actors(ray_cluster: None, settings: GatewaySettings) -> Iterator[list[Any]]:
    made = [gateway_actor(settings) for _ in range(4)]
    ray.get([one.start.remote() for one in made])
    yield made
    for one in made:
        ray.kill(one)


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


async def test_an_answer_that_is_lost_on_its_way_is_there_again(actors: list[Any]) -> None:
    manager = AgentGatewayManager(actors[:1])
    before = await actors[0].sessions.remote()
    await agents.ask(await manager.create_session("e"), PROMPT)
    lost = await actors[0].finalize_session.remote("e", 0.5)
    again = await actors[0].finalize_session.remote("e", 0.5)
    assert lost.body == again.body
    (row,) = await manager.finalize_session("e", 0.5)
    assert (row.reward, row.session_id) == (0.5, "e")
    assert await actors[0].sessions.remote() == before
    with pytest.raises(NotFound):
        await manager.finalize_session("e", 0.5)


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


def tasks(actors: list[Any]) -> OpenAICompatibleAgentFramework:
    """A framework whose runner blocks its process."""
    entry = {"runner_fqn": "agents.blocking", "dispatch_mode": "ray_task"}
    return OpenAICompatibleAgentFramework(
        AgentGatewayManager(actors[:2]), runner_configs({"agent_runners": {"task": entry}}), Lengths(64, 64)
    )


async def test_a_ray_task_imports_its_runner_again_and_fails_alone(actors: list[Any]) -> None:
    framework = tasks(actors)
    out = await framework.generate_sequences(batch(5, s1="raise", s2="exit", s3="crash"))
    assert out.batch["rm_scores"].sum(-1).tolist() == [1.0, 1.0]
    assert os.getpid() not in out.non_tensor_batch["pid"].tolist()
    assert framework.sessions.gateways.load == [0, 0]
    with pytest.raises(RuntimeError, match="the task broke"):
        await framework.generate_sequences(batch(1, s0="raise"))


async def test_a_ray_task_that_is_cancelled_ends_and_so_does_its_session(
    actors: list[Any], tmp_path: Path
) -> None:
    framework, note = tasks(actors), tmp_path / "pid"
    asked = batch(1)
    asked.non_tensor_batch["tools_kwargs"] = objects([{"do": {0: "stuck"}, "pid": str(note)}])
    work = asyncio.ensure_future(framework.generate_sequences(asked))

    async def noted() -> bool:
        return note.exists() and bool(note.read_text())

    async def gone() -> bool:
        return not _lives(note.read_text())

    await until(noted, what="the task runs", within_s=60.0)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert framework.sessions.gateways.load == [0, 0]
    await until(gone, what="its process ended", within_s=30.0)


def _lives(pid: str) -> bool:
    return Path("/proc", pid).exists()


async def test_four_gateways_64_sessions_one_killed(actors: list[Any]) -> None:
    """The last one of these actors' tests."""
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


@pytest.fixture(scope="module")
def adapter(queue_running: None, model: Path) -> Iterator[Any]:
    where = {
        "gateway_options": {"scheduling_strategy": "SPREAD", "num_cpus": 0.5},
        "gateway_host": "127.0.0.1",
    }
    limits = {"gateway_limits": {"in_flight": 100}, "session_limits": {"turns": 50}}
    conf = config(model, gateway_count=1, **where, **limits)
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


def dataset(size: int) -> Any:
    """A batch as verl's dataloader gives it to the v0 trainer, with its uids."""
    columns: dict[str, list[Any]] = {"uid": [f"q{at}" for at in range(size)], "raw_prompt": [PROMPT] * size}
    columns["tools_kwargs"] = [{"do": {1: "raise"}} if at == 0 else {} for at in range(size)]
    columns["reward_model"] = [{"ground_truth": "7"}] * size
    found = {name: objects(values) for name, values in columns.items()}
    return DataProto.from_single_dict(_dummy(size) | found)


def test_v0_gives_a_row_per_prompt_through_verls_own_client(adapter: Any) -> None:
    """The steps of RayPPOTrainer.fit between its dataloader and its advantages."""
    batch = dataset(2)
    prompts = RayPPOTrainer._get_gen_batch(None, batch).repeat(repeat_times=3, interleave=True)
    prompts.meta_info["global_steps"] = 1
    out = adapter.generate_sequences(prompts)
    assert out.meta_info.pop("timing")["agent_loop/generate_sequences/max"] > 0
    whole = batch.repeat(repeat_times=3, interleave=True).union(out.slice(0, len(prompts)))
    assert whole.batch["response_mask"].sum(-1).tolist() == [6, 0, 6, 6, 6, 6]
    assert whole.batch["rollout_log_probs"][0][:7].tolist() == [-0.5] * 6 + [0.0]
    assert whole.non_tensor_batch["max_global_steps"].tolist() == [7, None, 7, 7, 7, 7]
    assert whole.non_tensor_batch["multi_modal_inputs"].tolist() == [{}] * 6
    scores, _ = extract_reward(whole)
    assert scores.sum(-1).tolist() == [1.0] * 6
    whole.batch["token_level_rewards"] = scores
    found = compute_advantage(whole, adv_estimator=AdvantageEstimator.GRPO, num_repeat=3)
    assert not found.batch["advantages"].any()  # all solved it; the failed one moves no baseline
    assert out.non_tensor_batch["sandgate_left_out"].tolist() == ["", "failure", "", "", "", ""]
    assert adapter.metrics()["rows/left_out/failure"] == 1.0
    assert 'sandgate_trainer_rows_left_out_total{reason="failure"} 1' in adapter.prometheus()


async def test_v0_may_be_awaited_as_the_one_step_off_policy_trainer_does(adapter: Any) -> None:
    prompts, padding = pad_dataproto_to_divisor(dataset(3), 2)
    prompts.meta_info["validate"] = True
    out = unpad_dataproto(await adapter.generate_sequences(prompts), pad_size=padding)
    assert out.batch["response_mask"].sum(-1).tolist() == [6, 6, 6]
    assert _without_await(adapter, prompts).meta_info["timing"]


def _without_await(adapter: Any, prompts: Any) -> Any:
    """As its validation does, a function that a coroutine calls."""
    return adapter.generate_sequences(prompts)


def submitted(*rows: dict[str, Any]) -> Any:
    """A batch as the v1 trainer makes it, its prompts registered in the queue."""
    columns = {name: objects([row[name] for row in rows]) for name in rows[0]}
    made = get_tensordict(columns)
    assign_non_tensor_data(made, "global_steps", 3)
    tags = [{"is_prompt": True, "status": "pending", "global_steps": 3} for _ in rows]
    tq.kv_batch_put(keys=list(made["uid"]), partition_id="train", tags=tags)
    return made


def replay() -> Any:
    return ReplayBuffer("sync", SimpleNamespace(), None, "drop", SimpleNamespace(), poll_interval=0.05)


def test_v1_returns_at_once_and_the_rows_come_by_the_queue(adapter: Any, queue: None) -> None:
    row = {"raw_prompt": PROMPT, "data_source": "shop", "index": 0}
    rows = [row | {"uid": uid, "tools_kwargs": {"do": do}} for uid, do in (("u1", {}), ("u2", {1: "raise"}))]
    assert adapter.generate_sequences(submitted(*rows)) is None
    sampled, _ = replay().sample(3, "train", 2)
    assert sorted(sampled.keys) == ["u1_0_0", "u1_1_0", "u1_2_0", "u2_0_0", "u2_2_0"]
    data = tq.kv_batch_get(keys=["u1_0_0"], partition_id="train")
    assert data["responses"][0].tolist() == HELLO
    assert list(data["data_source"]) == ["shop"]
    assert sampled.tags[0]["max_global_steps"] == 7


def test_v1_takes_prompts_that_were_in_the_queue_themselves(adapter: Any, queue: None) -> None:
    """As the asynchronous trainers issue them again after a checkpoint."""
    row = {"raw_prompt": PROMPT, "data_source": "shop", "index": 0, "tools_kwargs": {"do": {}}}
    made = submitted({**row, "uid": "u3", "__rollout_n__": 1}, {**row, "uid": "u4", "__rollout_n__": 2})
    kept = made.select(*(name for name in made.keys() if name != "global_steps"))  # noqa: SIM118
    tq.kv_batch_put(keys=["u3", "u4"], partition_id="train", fields=kept)
    back = tq.kv_batch_get(keys=["u3", "u4"], partition_id="train")
    assign_non_tensor_data(back, "global_steps", 4)
    adapter.generate_sequences(back)
    sampled, _ = replay().sample(4, "train", 2)
    assert sorted(sampled.keys) == ["u3_0_0", "u4_0_0", "u4_1_0"]
    assert [tag["global_steps"] for tag in sampled.tags] == [4, 4, 4]


def test_gateways_are_the_drivers_and_outlive_the_framework(adapter: Any) -> None:
    """The last one of this adapter's tests."""
    ray.kill(adapter.worker, no_restart=True)
    with pytest.raises(ray.exceptions.RayActorError):
        adapter.generate_sequences(batch(1))
    assert ray.get([one.sessions.remote() for one in adapter.gateways]) == [0]


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "gateway_count is missing": ({"gateway_count": None}, "agent_framework.gateway_count is required"),
    "gateway_count is no count": ({"gateway_count": 0}, "gateway_count must be at least 1, not 0"),
    "a key is misspelt": ({"gateway_cuont": 1}, "agent_framework.gateway_cuont: no such key"),
    "an option of Ray's is misspelt": (
        {"gateway_options": {"num_cpu": 1}},
        "gateway_options.num_cpu: no such key",
    ),
    "an option that would outlive the trainer": (
        {"gateway_options": {"lifetime": "detached"}},
        "gateway_options.lifetime: no such key",
    ),
    "a limit is misspelt": ({"gateway_limits": {"body_byte": 1}}, "gateway_limits.body_byte: no such key"),
    "a session's limit is misspelt": ({"session_limits": {"turn": 1}}, "session_limits.turn: no such key"),
    "options that are no mapping": ({"gateway_options": "SPREAD"}, "gateway_options must be a mapping"),
    "a host that is none": ({"gateway_host": 7}, "gateway_host must be a string"),
    "another word for truncated episodes": ({"truncated": "drop"}, "truncated must be score or mask"),
    "a reward that is none": ({"truncated_reward": "zero"}, "truncated_reward must be a finite number"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_config_is_refused_by_a_value_error(case: str, model: Path) -> None:
    change, why = WRONG[case]
    with pytest.raises(ValueError, match=why):
        build_agent_framework(config(model, **change))


def test_numbers_that_are_no_logprobs_are_refused(model: Path) -> None:
    conf = config(model)
    conf.actor_rollout_ref.rollout.logprobs_mode = "raw_logits"
    with pytest.raises(ValueError, match=r"rollout\.logprobs_mode: raw_logits are no logprobs"):
        build_agent_framework(conf)


def test_our_router_is_one_of_verls(tmp_path: Path, ray_cluster: None) -> None:
    (tmp_path / "router.yaml").write_text("router_class: sandgate.trainer.verl.GroupRouter\nslack: 1.5\n")
    router = get_router_handle({"a": "A", "b": "B"}, router_config_path=str(tmp_path / "router.yaml"))
    taken = [ray.get(router.acquire_server.remote(f"q1\x1fs{at}"))[0] for at in range(4)]
    assert taken == ["a", "a", "a", "b"]  # with the default slack b would have the third
    assert ray.get(router.get_total_inflight.remote()) == 4
    ray.kill(router)
    wanted = {name for name in vars(RequestLoadBalancer) if not name.startswith("_")}
    assert wanted <= set(vars(GroupRouter))


def test_no_section_at_all_is_refused_by_a_value_error(model: Path) -> None:
    conf = config(model)
    conf.actor_rollout_ref.rollout.custom = None
    with pytest.raises(ValueError, match=r"custom\.agent_framework is required"):
        build_agent_framework(conf)
