"""LoRA adapters that are served as such: what is refused by name, and what engines are told, before a scripted one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch  # type: ignore[import-not-found]
from openai import AsyncOpenAI
from peft import (  # type: ignore[import-not-found]
    IA3Config,
    LoraConfig,
    PrefixTuningConfig,
    get_peft_model,
)
from transformers import AutoTokenizer  # type: ignore[import-not-found]
from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]

from sandgate.contract.errors import EngineFailed, InvalidBody, Unsupported
from sandgate.contract.session import SessionHandle
from sandgate.gateway.engine.scripted.server import ScriptedServer
from sandgate.trainer import tinymodel
from sandgate.trainer.client.fleet import fleet
from sandgate.trainer.testing import gateway, tiny_player
from sandgate.trainer.trl import FolderWeights, Rollouts, env_reward
from sandgate.trainer.trl.background import Background
from sandgate.trainer.trl.lora import check_lora
from tests.trainer.trl.tiny import TASKS, agent, model

SOME: dict[str, Any] = {"target_modules": ["q_proj", "down_proj"], "r": 4}
JOBS = itertools.count()
SAMPLES, BATCH = 2, 4

# -- which models --------------------------------------------------------------------------------------------------

SERVED: dict[str, dict[str, Any]] = {
    "of some layers": SOME,
    "of all linear layers": {"target_modules": "all-linear"},
    "with a scale of each rank's root": {**SOME, "use_rslora": True},
    "of some depths, with dropout": {**SOME, "layers_to_transform": [0], "lora_dropout": 0.1},
    "that begins from normal numbers": {**SOME, "init_lora_weights": "gaussian"},
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "magnitude and direction": ({**SOME, "use_dora": True}, r"LoraConfig\(use_dora=True\)"),
    "biases that are trained": ({**SOME, "bias": "lora_only"}, r"LoraConfig\(bias='lora_only'\)"),
    "a bias of its own": ({**SOME, "lora_bias": True}, r"LoraConfig\(lora_bias=True\)"),
    "a head that is trained whole": ({**SOME, "modules_to_save": ["lm_head"]}, "modules_to_save"),
    "single tokens": ({**SOME, "trainable_token_indices": [3]}, "trainable_token_indices"),
    "another rank of one layer": ({**SOME, "rank_pattern": {"q_proj": 2}}, "rank_pattern"),
    "another scale of one layer": ({**SOME, "alpha_pattern": {"q_proj": 2}}, "alpha_pattern"),
    "a start that changes the weights below": (
        {**SOME, "init_lora_weights": "pissa"},
        "init_lora_weights='pissa'",
    ),
    "the embedding": ({"target_modules": ["embed_tokens"]}, "model.embed_tokens: an adapter of an embedding"),
    "the output head": (
        {"target_modules": ["lm_head"]},
        "lm_head: an adapter of an embedding, of the output head",
    ),
}


@pytest.mark.parametrize("told", SERVED.values(), ids=SERVED)
def test_plain_lora_is_served(told: dict[str, Any]) -> None:
    assert check_lora(get_peft_model(model(), LoraConfig(**told))) == "default"


@pytest.mark.parametrize(("told", "named"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_served_is_named(told: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidBody, match=named):
        check_lora(get_peft_model(model(), LoraConfig(**told)))


def other_kind() -> Any:
    return get_peft_model(model(), IA3Config(target_modules=["q_proj"], feedforward_modules=[]))


def prefix() -> Any:
    return get_peft_model(model(), PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2))


def quantized() -> Any:
    made = get_peft_model(model(), LoraConfig(**SOME))
    made.get_base_model().is_quantized = True
    return made


def eight_bits() -> Any:
    made = get_peft_model(model(), LoraConfig(**SOME))
    layer = made.get_base_model().model.layers[0].self_attn.q_proj.base_layer
    layer.weight = torch.nn.Parameter(layer.weight.to(torch.int8), requires_grad=False)
    return made


def more_trained() -> Any:
    made = get_peft_model(model(), LoraConfig(**SOME))
    made.get_base_model().model.norm.weight.requires_grad_(True)
    return made


def two_active() -> Any:
    made = get_peft_model(model(), LoraConfig(**SOME))
    made.add_adapter("second", LoraConfig(**SOME))
    made.base_model.set_adapter(["default", "second"])
    return made


def switched_off() -> Any:
    made = get_peft_model(model(), LoraConfig(**SOME))
    made.base_model.disable_adapter_layers()
    made.get_base_model().requires_grad_(False)
    return made


def another_merged() -> Any:
    made = get_peft_model(model(), LoraConfig(**SOME))
    made.add_adapter("second", LoraConfig(**SOME))
    made.merge_adapter(["second"])
    return made


MODELS: dict[str, tuple[Callable[[], Any], str]] = {
    "no adapters": (model, "is for a model with adapters"),
    "another method": (other_kind, "adapters of IA3 are not served"),
    "prefixes": (prefix, "PREFIX_TUNING"),
    "a quantized model": (quantized, "QLoRA"),
    "a quantized layer": (eight_bits, "QLoRA"),
    "a norm that is trained beside it": (
        more_trained,
        "norm.weight is trained, and is no part of the adapter",
    ),
    "two at once": (two_active, "2 adapters are active"),
    "one that is switched off": (switched_off, "switched off"),
    "one over another that is merged": (another_merged, "another is merged"),
}


@pytest.mark.parametrize(("made", "named"), MODELS.values(), ids=MODELS)
def test_a_model_that_is_not_base_weights_and_one_adapter_is_named(
    made: Callable[[], Any], named: str
) -> None:
    with pytest.raises(InvalidBody, match=named):
        check_lora(made())


def test_one_of_several_is_served_if_it_alone_is_active(tmp_path: Path) -> None:
    made = get_peft_model(model(), LoraConfig(**SOME))
    made.add_adapter("second", LoraConfig(**SOME))
    made.set_adapter("second")
    weights = FolderWeights(tmp_path).served("job")
    weights.save(made, 1)
    (saved,) = tmp_path.iterdir()
    assert {"adapter_model.safetensors", "adapter_config.json"} <= {one.name for one in saved.iterdir()}


def test_a_name_is_of_the_bytes_and_a_folder_is_never_replaced(tmp_path: Path) -> None:
    made = get_peft_model(model(), LoraConfig(**SOME))
    weights = FolderWeights(tmp_path).served("job")
    weights.save(made, 1)
    first = weights._saved[1]
    when = first.folder.stat().st_ino
    weights.save(made, 1)
    assert weights._saved[1] == first
    assert first.folder.stat().st_ino == when, "an engine may be reading it"
    with torch.no_grad():
        made.get_base_model().model.layers[0].self_attn.q_proj.lora_B["default"].weight += 1.0
    weights.save(made, 1)
    assert weights._saved[1].name != first.name
    assert first.folder.is_dir()


# -- a trainer before a scripted engine ------------------------------------------------------------------------------


def started(lora_rank: int) -> Iterator[Any]:
    """A gateway before an engine that takes adapters up to this rank, and that nobody published merged weights to."""
    with Background("world") as world:
        stack = AsyncExitStack()

        async def both() -> Any:
            player = tiny_player(lambda _, number: f"ok {number % 7}")
            server = ScriptedServer(player, model="tiny", lora_rank=lora_rank)
            await stack.enter_async_context(server)
            settings: dict[str, object] = {"engine": {"urls": [server.url]}}
            return replace(
                await stack.enter_async_context(gateway(["unused"], settings=settings)), player=player
            )

        yield world.call(both())
        world.call(stack.aclose())


@pytest.fixture(scope="module")
def running() -> Iterator[Any]:
    yield from started(lora_rank=16)


@pytest.fixture
def without_lora() -> Iterator[Any]:
    """It loads none while it runs."""
    yield from started(lora_rank=0)


class Made:
    """A training run, and the engine that it samples from."""

    def __init__(self, running: Any, folder: Path, rank: int = 4, **options: Any) -> None:
        self.player, self.job = running.player, f"lora-{next(JOBS)}"
        self.columns: list[dict[str, Any]] = []
        self.rollouts = Rollouts(
            fleet({"g": running.origin}, running.admin_key, job=self.job),
            TASKS,
            job=self.job,
            **{"agent": agent, **options},
        )
        tokenizer = AutoTokenizer.from_pretrained(tinymodel.write_tiny_model(folder / "model"))
        tokenizer.pad_token = "<|endoftext|>"
        self.trainer = GRPOTrainer(
            model=model(),
            args=GRPOConfig(
                output_dir=str(folder / "out"),
                max_steps=3,
                num_generations=SAMPLES,
                per_device_train_batch_size=BATCH,
                learning_rate=1e-2,
                save_strategy="no",
                gradient_checkpointing=False,
                use_cpu=True,
                bf16=False,
                report_to="none",
            ),
            processing_class=tokenizer,
            train_dataset=self.rollouts.dataset(),
            reward_funcs=[self.reward],
            rollout_func=self.rollouts,
            peft_config=LoraConfig(**{**SOME, "r": rank}),
        )

    def reward(self, prompts: Any, **columns: Any) -> list[float | None]:
        self.columns.append(columns)
        return env_reward(prompts, **columns)

    @property
    def versions(self) -> list[set[int]]:
        """Of each step."""
        return [
            {version for row in one["sandgate_versions"] for version in row if version >= 0}
            for one in self.columns
        ]


def test_each_update_is_an_adapter_of_its_own_name_and_the_last_is_unloaded(
    running: Any, tmp_path: Path
) -> None:
    made = Made(running, tmp_path)
    made.player.sampled_by.clear()
    with made.rollouts:
        made.rollouts.attach(made.trainer, FolderWeights(tmp_path / "weights"), adapters="served")
        assert not made.player.adapters, "the one that was tried is gone"
        made.trainer.train()
    start = min(made.versions[0])
    assert made.versions == [{start}, {start + 1}, {start + 2}]
    names = list(dict.fromkeys(made.player.sampled_by))
    assert [name.rpartition("-")[0] for name in names] == [
        f"sandgate-{made.job}-v{start + one}" for one in range(3)
    ]
    assert list(made.player.adapters) == names[-1:]
    kept = sorted(path.name for path in (tmp_path / "weights").iterdir())
    assert kept == [name.removeprefix(f"sandgate-{made.job}-") for name in names[-2:]]


def test_an_engine_that_is_started_anew_within_a_round_is_given_the_adapter_again(
    running: Any, tmp_path: Path
) -> None:
    restarts = iter([False, True])

    async def restarts_it(*, session: SessionHandle, raw_prompt: Any, sample_index: int, **_: Any) -> float:
        async with AsyncOpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=20) as client:
            if sample_index == 0 and next(restarts, False):
                running.player.restart()
            await client.chat.completions.create(model="tiny", messages=list(raw_prompt))
        return 1.0 - sample_index

    made = Made(running, tmp_path, agent=restarts_it)
    made.player.sampled_by.clear()
    with made.rollouts:
        made.rollouts.attach(made.trainer, FolderWeights(tmp_path / "weights"), adapters="served")
        made.trainer.train()
    start = min(made.versions[0])
    assert made.versions == [{start}, {start + 1}, {start + 2}]
    assert next(restarts, None) is None, "it was started anew"
    assert len(set(made.player.sampled_by)) == 3
    assert "" not in made.player.sampled_by, "the weights below sampled nothing"


# -- what engines refuse -------------------------------------------------------------------------------------------


def test_what_an_engine_refuses_is_told_at_attach_in_its_words(running: Any, tmp_path: Path) -> None:
    made = Made(running, tmp_path, rank=32)
    before = dict(made.player.adapters)
    with made.rollouts, pytest.raises(EngineFailed, match="LoRA rank 32 is greater than max_lora_rank 16"):
        made.rollouts.attach(made.trainer, FolderWeights(tmp_path / "weights"), adapters="served")
    assert made.player.adapters == before
    assert list((tmp_path / "weights").iterdir()) == []


def test_an_engine_with_merged_weights_is_no_base_for_adapters(running: Any, tmp_path: Path) -> None:
    made = Made(running, tmp_path)
    made.player.label = "12"
    try:
        with (
            made.rollouts,
            pytest.raises(Unsupported, match=r"merged weights were published to it \(version 12\)"),
        ):
            made.rollouts.attach(made.trainer, FolderWeights(tmp_path / "weights"), adapters="served")
    finally:
        made.player.label = "default"


def test_weights_of_ones_own_are_not_made_adapters(running: Any, tmp_path: Path) -> None:
    made = Made(running, tmp_path)
    with made.rollouts, pytest.raises(InvalidBody, match="give FolderWeights"):
        made.rollouts.attach(made.trainer, None, adapters="served")


def test_an_engine_that_loads_none_while_it_runs_is_refused_at_attach(
    without_lora: Any, tmp_path: Path
) -> None:
    made = Made(without_lora, tmp_path)
    said = "/v1/load_lora_adapter: no such endpoint: adapters are served by vLLM only, started with --enable-lora"
    with made.rollouts, pytest.raises(EngineFailed, match=said):
        made.rollouts.attach(made.trainer, FolderWeights(tmp_path / "weights"), adapters="served")
