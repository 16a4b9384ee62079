"""What verl's trainer is configured with: `actor_rollout_ref.rollout.agent.agent_loop_manager_class:
sandgate.trainer.verl.AgentFrameworkRolloutAdapter`, and the framework's own section, `rollout.custom.agent_framework`.

The gateways are actors of the driver, the framework is an actor beside them; so a framework that dies takes no gateway
along, and the trainer's process does nothing but call.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.client.gateway_manager import GatewayManager
from sandgate.trainer.credit.reasons import Truncated
from sandgate.trainer.ray.actor import GatewaySettings
from sandgate.trainer.ray.manager import AgentGatewayManager, gateway_actor
from sandgate.trainer.verl.calls import GeneratesSequences
from sandgate.trainer.verl.cli import CliRunner
from sandgate.trainer.verl.dataproto import to_dataproto
from sandgate.trainer.verl.engine import VerlEngine
from sandgate.trainer.verl.framework import OpenAICompatibleAgentFramework
from sandgate.trainer.verl.reward_columns import ValidationColumns
from sandgate.trainer.verl.rows import Lengths, extra_fields
from sandgate.trainer.verl.runners import LEGACY, RunnerConfig, runner_configs
from sandgate.trainer.verl.sessions import Score
from sandgate.trainer.verl.settings import (
    GatewayActors,
    gateway_actors,
    logprobs_mode_of,
    reward_of,
    truncated_of,
)

KEYS = frozenset(
    {
        "gateway_count", "agent_runners", "model_name", "truncated", "truncated_reward",
        "gateway_host", "gateway_options", "gateway_limits", "session_limits",
    }
)  # fmt: skip
PROCESSORS = ("preprocessor_config.json", "processor_config.json")
"""What a model that sees has beside its tokenizer."""
MODEL = "default"
"""What agents call the model, unless `model_name` says otherwise; as in the examples of uni-agent."""
CALLS = 1_000
"""Of the framework's actor at once; `submit` returns at once, `generate` is called by one trainer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameworkSettings:
    """What the framework needs of verl's config."""

    gateway_count: int
    runners: dict[str, RunnerConfig]
    lengths: Lengths
    n: int
    validation_n: int
    sampling: dict[str, Any]
    validation_sampling: dict[str, Any]
    model: str
    tokenizer: str
    truncated: Truncated = "score"
    truncated_reward: float = 0.0
    actors: GatewayActors = field(default_factory=GatewayActors)
    logprobs_mode: str = "processed_logprobs"


def framework_settings(config: Any) -> FrameworkSettings:
    """From verl's config (DictConfig). Raises ValueError naming what is missing, BadManifest for a runner."""
    rollout = config.actor_rollout_ref.rollout
    custom = _plain(rollout.get("custom")) or {}
    section = custom.get("agent_framework")
    if not isinstance(section, Mapping):
        raise ValueError("actor_rollout_ref.rollout.custom.agent_framework is required in the configuration")
    if unknown := set(section) - KEYS - set(LEGACY):
        raise ValueError(f"agent_framework.{min(unknown)}: no such key; there are {', '.join(sorted(KEYS))}")
    runners = runner_configs(section)
    count = section.get("gateway_count")
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        said = "is required in the configuration" if count is None else f"must be at least 1, not {count!r}"
        raise ValueError(f"agent_framework.gateway_count {said}")
    validation = rollout.get("val_kwargs") or {}
    return FrameworkSettings(
        gateway_count=count,
        runners=told_the_model(runners, str(section.get("model_name") or MODEL)),
        lengths=Lengths(int(rollout.prompt_length), int(rollout.response_length)),
        n=int(rollout.get("n") or 1),
        validation_n=int(validation.get("n") or 1),
        sampling=_sampling(rollout),
        validation_sampling=_sampling(validation),
        model=str(section.get("model_name") or MODEL),
        tokenizer=_folder(config.actor_rollout_ref.model),
        truncated=truncated_of(section),
        truncated_reward=reward_of(section),
        actors=gateway_actors(section),
        logprobs_mode=logprobs_mode_of(rollout),
    )


def told_the_model(runners: Mapping[str, RunnerConfig], model: str) -> dict[str, RunnerConfig]:
    """Programs learn the model's name; one that says its own keeps that."""
    cli = f"{CliRunner.__module__}.{CliRunner.__qualname__}"
    names = {cli, f"{__package__}.{CliRunner.__qualname__}"}
    return {
        name: replace(one, runner_kwargs={"model": model} | one.runner_kwargs)
        if one.runner_fqn in names
        else one
        for name, one in runners.items()
    }


def _plain(value: Any) -> Any:
    from omegaconf import OmegaConf  # type: ignore[import-not-found]

    return OmegaConf.to_container(value, resolve=True) if OmegaConf.is_config(value) else value


def _sampling(section: Any) -> dict[str, Any]:
    """verl's -1 for top_k means all, which a gateway says by leaving it out."""
    found = {name: section.get(name) for name in ("temperature", "top_p", "top_k")}
    return {name: value for name, value in found.items() if value is not None and value != -1}


def _folder(model: Any) -> str:
    path = str(model.get("tokenizer_path") or model.path)
    if Path(path).is_dir():
        return path
    from verl.utils.fs import copy_to_local  # type: ignore[import-not-found]

    return str(copy_to_local(path))


def start_gateways(settings: FrameworkSettings, llm_client: Any, **options: Any) -> list[Any]:
    """`gateway_count` actors that answer, over verl's inference servers. `options` are Ray's, before the configured
    ones. Raises what a gateway raises when it cannot start; then none is left."""
    import ray  # type: ignore[import-not-found]

    window = settings.lengths.prompt + settings.lengths.response
    told = GatewaySettings(
        model=settings.model,
        tokenizer=settings.tokenizer,
        engine=functools.partial(
            VerlEngine, llm_client, max_model_len=window, logprobs_mode=settings.logprobs_mode
        ),
        max_model_len=window,
        host=settings.actors.host,
        limits=settings.actors.limits,
        session_limits=settings.actors.session_limits,
    )
    chosen = settings.actors.options | options
    actors = [gateway_actor(told, **chosen) for _ in range(settings.gateway_count)]
    try:
        ray.get([actor.start.remote() for actor in actors])
    except BaseException:
        for actor in actors:
            ray.kill(actor)
        raise
    return actors


def build_agent_framework(
    config: Any,
    *,
    llm_client: Any = None,
    gateways: GatewayManager | None = None,
    reward_loop_worker_handles: Sequence[Any] | None = None,
) -> OpenAICompatibleAgentFramework:
    """The framework that a verl config describes; starts its gateways over `llm_client` unless `gateways` are given.
    Raises ValueError, BadManifest."""
    settings = framework_settings(config)
    if gateways is None:
        gateways = AgentGatewayManager(start_gateways(settings, llm_client))
    processor = _processor(settings.tokenizer)
    return OpenAICompatibleAgentFramework(
        gateways,
        settings.runners,
        settings.lengths,
        n=settings.n,
        validation_n=settings.validation_n,
        sampling=settings.sampling,
        validation_sampling=settings.validation_sampling,
        pad_token_id=_pad_token_id(settings.tokenizer),
        score=reward_loop_score(reward_loop_worker_handles, processor)
        if reward_loop_worker_handles
        else None,
        processor=processor,
        truncated=settings.truncated,
        truncated_reward=settings.truncated_reward,
    )


def _pad_token_id(folder: str) -> int:
    from transformers import AutoTokenizer  # type: ignore[import-not-found]

    return int(AutoTokenizer.from_pretrained(folder).pad_token_id or 0)


def _processor(folder: str) -> Any:
    """verl's, of a model that sees; None for one that does not, as its folder says."""
    if not any((Path(folder) / name).exists() for name in PROCESSORS):
        return None
    from verl.utils.tokenizer import hf_processor  # type: ignore[import-not-found]

    return hf_processor(folder)


def reward_loop_score(handles: Sequence[Any], processor: Any = None) -> Score:
    """verl's reward loop as a score: asked for the final trajectory alone, as its own agent loop worker does."""

    async def score(row: Trajectory, columns: Mapping[str, Any]) -> tuple[float, Mapping[str, Any]]:
        prompt, response = len(row.prompt_ids), len(row.response_ids)
        given = {name: [value] for name, value in columns.items()}
        given |= {
            "prompt_len": [prompt],
            "response_len": [response],
            "tool_extra_fields": [extra_fields(row)],
        }
        data = to_dataproto([row], Lengths(prompt, response), columns=given, processor=processor)
        said = await random.choice(handles).compute_score.remote(data)
        return float(said["reward_score"]), dict(said.get("reward_extra_info") or {})

    return score


class AgentFrameworkWorker:
    """The framework inside its actor."""

    def __init__(self, config: Any, gateways: Sequence[Any], reward_handles: Sequence[Any] | None) -> None:
        self.framework = build_agent_framework(
            config, gateways=AgentGatewayManager(gateways), reward_loop_worker_handles=reward_handles
        )
        self._queue = False
        self._columns = ValidationColumns()

    async def ready(self) -> None:
        """Its constructor is through."""

    async def submit(self, batch: Any) -> None:
        """Start a TransferQueue batch."""
        if not self._queue:
            import transfer_queue as tq  # type: ignore[import-not-found]

            tq.init()
            self._queue = True
        self.framework.submit(batch)

    async def generate(self, prompts: Any) -> Any:
        """A DataProto batch, row by row."""
        made = await self.framework.generate_aligned(prompts)
        self._columns.settle(made, prompts.meta_info)
        return made

    async def rows(self) -> tuple[dict[str, float], str]:
        """What teaches and what does not, since the start: for a trainer's log, and for Prometheus."""
        counters = self.framework.counters
        return counters.metrics(), counters.prometheus()


class AgentFrameworkRolloutAdapter(GeneratesSequences):
    """verl's agent loop manager, with our framework behind it. Make it with `create`."""

    def __init__(self, worker: Any, gateways: Sequence[Any]) -> None:
        self.worker, self.gateways = worker, list(gateways)

    @classmethod
    def create(
        cls,
        config: Any,
        llm_client: Any,
        teacher_client: Any = None,
        reward_loop_worker_handles: Sequence[Any] | None = None,
    ) -> AgentFrameworkRolloutAdapter:
        """Start gateways and framework. Raises BadManifest, ValueError; that also for a teacher, as distillation needs
        verl's own agent loop."""
        import ray

        if teacher_client:
            raise ValueError(
                "teacher_client: on-policy distillation is not supported by this agent framework"
            )
        gateways = start_gateways(framework_settings(config), llm_client)
        worker = ray.remote(AgentFrameworkWorker).options(num_cpus=0, max_concurrency=CALLS)
        made = worker.remote(config, gateways, reward_loop_worker_handles)
        ray.get(made.ready.remote())
        return cls(made, gateways)
