"""Adapters of peft that a real vLLM serves as such, under a real GRPOTrainer: whose every token is, and with which
logprob."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch  # type: ignore[import-not-found]
from openai import AsyncOpenAI
from peft import LoraConfig, PeftModel, get_peft_model  # type: ignore[import-not-found]
from transformers import AutoModelForCausalLM, AutoTokenizer  # type: ignore[import-not-found]
from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]

from sandgate.contract.errors import EngineFailed
from sandgate.contract.job import Task
from sandgate.contract.session import SessionHandle
from sandgate.trainer.client.fleet import AsyncFleet, fleet
from sandgate.trainer.testing import RunningGateway, gateway
from sandgate.trainer.trl import FolderWeights, Rollouts, env_reward
from sandgate.trainer.trl.background import Background
from tests.support.vllm import FLAGS, MODEL, Vllm, another
from tests.support.waiting import until

LORA_ENV = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
LAYERS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
TASKS = [Task(uid=f"q{one}", prompt=f"buy {one} kiwi") for one in range(1, 7)]
EXACT = 1e-4
"""Logprobs of one policy differ by less, of two by more."""
SAMPLES, BATCH, STEPS = 4, 8, 3
LONG, SEED = 1500, 0
"""Half of all seeds end the nonsense of random adapters at once; this one goes on to the end, for ten seconds."""


class Engine:
    """vLLM that can be ended, and started again at the same address."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._thread = ThreadPoolExecutor(1)
        """It dies with the thread that started it."""
        self.at: Vllm | None = None

    def start(self, slots: int) -> None:
        self._thread.submit(self._start, slots).result()

    def _start(self, slots: int) -> None:
        port = 0 if self.at is None else int(self.at.url.rpartition(":")[2])
        flags = [*FLAGS, "--enable-lora", "--max-loras", str(slots)]
        self.at = self._stack.enter_context(another(flags, env=LORA_ENV, port=port))

    def stop(self) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        assert self.at is not None
        return self.at.url

    def adapters(self) -> set[str]:
        """That it serves by name."""
        listed = httpx.get(f"{self.url}/v1/models").json()["data"]
        return {one["id"] for one in listed if one["parent"] is not None}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    one = Engine()
    one.start(slots=2)
    yield one
    one.stop()


@asynccontextmanager
async def before(engine: Engine, folder: Path, job: str) -> AsyncIterator[RunningGateway]:
    settings: dict[str, object] = {
        "engine": {"urls": [engine.url]},
        "model": {"name": "shop", "tokenizer": str(MODEL)},
    }
    async with gateway(["unused"], folder=folder, job=job, settings=settings) as running:
        yield running


def adapted(seed: int, **more: Any) -> Any:
    torch.manual_seed(seed)
    base = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    told = {"r": 8, "lora_alpha": 16, "target_modules": LAYERS, "init_lora_weights": False, **more}
    return get_peft_model(base, LoraConfig(**told))


def logprobs(model: Any, prompt: list[int], response: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits = model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1]
    found: torch.Tensor = logits.log_softmax(-1)[range(len(response)), response]
    return found


class Served:
    """What was saved of each version, as peft itself loads it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._models: dict[int, Any] = {}

    def of(self, version: int) -> Any:
        if version not in self._models:
            (saved,) = self._folder.glob(f"v{version}-*")
            assert {"adapter_model.safetensors", "adapter_config.json"} <= {
                one.name for one in saved.iterdir()
            }
            base = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
            self._models[version] = PeftModel.from_pretrained(base, saved).eval()
        return self._models[version]

    def off(self, row: dict[str, Any], version: int) -> float:
        """The largest difference of what was captured from what this version computes."""
        found = logprobs(self.of(version), row["prompt_ids"], row["completion_ids"])
        mask = torch.tensor(row["env_mask"]).bool()
        return float((found - torch.tensor(row["logprobs"]))[mask].abs().max())


# -- one turn in flight ------------------------------------------------------------------------------------------------


async def in_flight(engine: Engine, folder: Path, job: str) -> None:
    """A turn that begins under version 1 ends under it, two updates later; then nothing has version 1 any more."""
    weights = FolderWeights(folder / "weights").served(job)
    served = Served(folder / "weights")
    async with before(engine, folder / "gateway", job) as running:
        gateways = AsyncFleet({"g": running.client}, job=job)

        async def publish(version: int) -> None:
            await asyncio.to_thread(lambda: weights.save(adapted(version), version))
            await weights.publish(gateways, version)

        async def sampling() -> bool:
            return bool((await running.client.status())["adapters"])

        await publish(1)
        session = await running.client.create_session(uid="q1", job=job)
        async with AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as client:
            said: dict[str, Any] = {"model": "shop", "messages": [{"role": "user", "content": "buy 1 kiwi"}]}
            long = await client.chat.completions.create(**said, max_tokens=LONG, seed=SEED, stream=True)
            await until(sampling, what="the engine has begun")
            await publish(2)
            next_turn = asyncio.create_task(client.chat.completions.create(**said, max_tokens=20))
            await publish(3)
            (status,) = (await gateways.status()).values()
            first = {name for name in engine.adapters() if f"-{job}-v1-" in name}
            assert len(first) == 1, "the turn is in flight still, so it is neither unloaded"
            assert set(status["adapters"]) >= first
            served.of(1)  # nor is its folder removed
            async for _ in long:
                pass
            await next_turn
            await client.chat.completions.create(**said, max_tokens=20)
        await publish(4)
        left = [name for name in engine.adapters() if name.startswith(f"sandgate-{job}-")]
        assert [name.rpartition("-")[0] for name in left] == [f"sandgate-{job}-v4"]
        rows = await running.client.finalize(session.session_id, reward=1.0)
        seen: dict[int, int] = {}
        for row in rows:
            response, versions = row.response_ids.tolist(), set(row.versions.tolist()) - {-1}
            (version,) = versions
            seen[version] = max(seen.get(version, 0), len(response))
            mine = {
                "prompt_ids": row.prompt_ids.tolist(),
                "completion_ids": response,
                "logprobs": row.response_logprobs.tolist(),
                "env_mask": row.loss_mask.tolist(),
            }
            if version != 2:  # the folder of 2 is gone, with nothing in flight
                assert served.off(mine, version) < EXACT
        assert seen[1] > 200, "long enough to be in flight for two updates"
        assert seen[3] > 0
        assert sorted(one.name.partition("-")[0] for one in (folder / "weights").iterdir()) == ["v3", "v4"]


async def test_a_turn_in_flight_ends_by_its_own_adapter(engine: Engine, tmp_path: Path) -> None:
    await in_flight(engine, tmp_path, "flight")


# -- a whole training run ----------------------------------------------------------------------------------------------


class Run:
    """Three steps; in the second one the engine is ended and started anew."""

    def __init__(self, engine: Engine, running: RunningGateway, folder: Path) -> None:
        self.engine, self.folder = engine, folder
        self.rows: list[dict[str, Any]] = []
        self.calls = self.restarts = 0
        self.rollouts = Rollouts(
            fleet({"g": running.origin}, running.admin_key, job="served"),
            TASKS,
            job="served",
            agent=self.agent,
        )
        self.trainer = self.trainer_of(adapted(0))

    def trainer_of(self, model: Any) -> Any:
        return GRPOTrainer(
            model=model,
            args=GRPOConfig(
                output_dir=str(self.folder / "out"),
                max_steps=STEPS,
                num_generations=SAMPLES,
                per_device_train_batch_size=BATCH,
                max_completion_length=48,
                learning_rate=2e-2,
                save_strategy="no",
                gradient_checkpointing=False,
                use_cpu=True,
                bf16=False,
                report_to="none",
                logging_steps=1,
                vllm_importance_sampling_mode="token_truncate",
            ),
            processing_class=AutoTokenizer.from_pretrained(MODEL),
            train_dataset=self.rollouts.dataset(STEPS * BATCH // SAMPLES),
            reward_funcs=[env_reward],
            rollout_func=self.sampled,
        )

    def sampled(self, prompts: list[Any], trainer: Any) -> dict[str, Any]:
        out = self.rollouts(prompts, trainer)
        self.rows += [
            {name: out[name][at] for name in out if name != "sandgate_version"} for at in range(len(prompts))
        ]
        return out

    async def agent(self, *, session: SessionHandle, raw_prompt: Any, sample_index: int, **_: Any) -> float:
        self.calls += 1
        if self.calls == BATCH + 2:
            await asyncio.to_thread(self.restart)
        async with AsyncOpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=60) as client:
            await client.chat.completions.create(
                model="shop", messages=[{"role": "user", "content": raw_prompt}]
            )
        return float(sample_index % 2)

    def restart(self) -> None:
        self.engine.stop()
        self.engine.start(slots=1)
        assert self.engine.adapters() == set()
        self.restarts += 1


@pytest.mark.timeout(600)
def test_three_steps_and_a_restart_every_token_by_the_adapter_of_its_version(
    engine: Engine, tmp_path: Path
) -> None:
    with Background("gateway") as world:
        stack = contextlib.AsyncExitStack()
        running = world.call(stack.enter_async_context(before(engine, tmp_path / "gateway", "served")))
        try:
            run = Run(engine, running, tmp_path)
            with run.rollouts:
                run.rollouts.attach(
                    run.trainer, FolderWeights(tmp_path / "weights", kept=9), adapters="served"
                )
                run.trainer.train()
                last = run.rollouts.version(run.trainer) - 1
        finally:
            world.call(stack.aclose())
    assert run.restarts == 1
    versions = [{one for one in row["sandgate_versions"] if one >= 0} for row in run.rows]
    assert versions == [{last - STEPS + 1 + at // BATCH} for at in range(STEPS * BATCH)]
    served = Served(tmp_path / "weights")
    own = [served.off(row, version) for row, (version,) in zip(run.rows, versions, strict=True)]
    assert max(own) < EXACT
    before_last = [served.off(row, last - 1) for row in run.rows[-BATCH:]]
    assert max(before_last) > max(EXACT, 10 * max(own)), "another version would be seen"
    logged = [one["sampling/sampling_logp_difference/max"] for one in run.trainer.state.log_history[:STEPS]]
    assert max(logged) < EXACT
    assert {name.rpartition("-")[0] for name in engine.adapters()} == {f"sandgate-served-v{last}"}
    print(
        f"captured against peft's own: {max(own):.1e}; of another version: {max(before_last):.1e}; TRL's: {logged}"
    )


async def test_with_one_slot_an_adapter_in_flight_is_read_anew_and_new_turns_wait(
    engine: Engine, tmp_path: Path
) -> None:
    await in_flight(engine, tmp_path, "slot")


# -- what an engine refuses --------------------------------------------------------------------------------------------


def test_what_the_engine_does_not_load_is_told_in_its_words_and_nothing_is_lost(
    engine: Engine, tmp_path: Path
) -> None:
    names = engine.adapters()
    with Background("gateway") as world:
        stack = contextlib.AsyncExitStack()
        running = world.call(stack.enter_async_context(before(engine, tmp_path / "gateway", "served")))
        try:
            run = Run(engine, running, tmp_path)
            trainer = run.trainer_of(adapted(0, r=32))
            with (
                run.rollouts,
                pytest.raises(EngineFailed, match="LoRA rank 32 is greater than max_lora_rank 16"),
            ):
                run.rollouts.attach(trainer, FolderWeights(tmp_path / "weights"), adapters="served")
        finally:
            world.call(stack.aclose())
    assert engine.adapters() == names
    assert list((tmp_path / "weights").iterdir()) == []
