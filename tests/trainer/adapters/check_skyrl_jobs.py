"""A RolloutJob inside SkyRL: its own inputs, checks and entry point, gateways and sandboxes as processes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from skyrl.backends.skyrl_train.inference_servers.engine_utils import (  # type: ignore[import-not-found]
    get_sampling_params_for_backend,
)
from skyrl.train.config import SamplingParams, SkyRLTrainConfig  # type: ignore[import-not-found]
from skyrl.train.generators.base import GeneratorInterface  # type: ignore[import-not-found]
from skyrl.train.generators.utils import prepare_generator_input  # type: ignore[import-not-found]
from skyrl.train.trainer import RayPPOTrainer  # type: ignore[import-not-found]

from sandgate.contract.errors import Conflict, InvalidBody, Unavailable, Unsupported
from sandgate.gateway.engine.scripted.engine import Player
from sandgate.gateway.engine.scripted.server import ScriptedServer
from sandgate.operator.local.job import load_job, run_local
from sandgate.trainer import tinymodel
from sandgate.trainer.client.attach import attach
from sandgate.trainer.client.loop_thread import LoopThread, entered
from sandgate.trainer.export.arrow import merge_parquet, samples_in_parquet, write_parquet
from sandgate.trainer.skyrl.generator import IN_A_ROW, RolloutJobGenerator
from sandgate.trainer.testing import tiny_player
from tests.trainer.adapters.check_docs import blocks
from tests.trainer.verl.jobs import processes, write_job

N = 2
"""Samples of a prompt."""
SAMPLED = 8
"""Tokens that one session samples: `yes` and its end, twice."""


@asynccontextmanager
async def scripted() -> AsyncIterator[tuple[Player, str]]:
    player = tiny_player(lambda ids, number: "yes")
    async with ScriptedServer(player, model="tiny") as engine:
        yield player, engine.url


@pytest.fixture(scope="module")
def engine() -> Iterator[tuple[Player, str]]:
    """In a loop of its own: SkyRL's trainer blocks the one that it runs in."""
    loop = LoopThread()
    with entered(scripted(), loop) as found:
        yield found
    loop.close()


def batch(*prompts: str, phase: str = "train", step: int = 1, n: int = N, temperature: float = 1.0) -> Any:
    """As SkyRL's trainer makes it of its data loader's rows."""
    rows = [
        {
            "prompt": [{"role": "user", "content": text}],
            "env_class": None,
            "env_extras": {"reward_model": {"ground_truth": "yes"}, "level": 3},
            "uid": str(number),
        }
        for number, text in enumerate(prompts)
    ]
    sampling = SamplingParams(temperature=temperature, max_generate_length=32)
    params = get_sampling_params_for_backend("vllm", sampling)
    return prepare_generator_input(rows, n, params, "none", phase, step)[0]


def trained(generator: Any, asked: Any, *, step_wise: bool = False) -> Any:
    """By the method of SkyRL's trainer, which checks the output."""
    config = SimpleNamespace(generator=SimpleNamespace(step_wise_trajectories=step_wise))
    trainer = SimpleNamespace(generator=generator, cfg=config, all_metrics={})
    made = asyncio.run(RayPPOTrainer.generate(trainer, asked))
    return made | {"metrics": trainer.all_metrics}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("job")
    write_job(found)
    return found


@pytest.fixture(scope="module")
def generator(engine: tuple[Player, str], folder: Path) -> Iterator[Any]:
    made = RolloutJobGenerator.local(
        folder / "job.yaml", folder / "out", engines=[engine[1]], public=["level"], pad_token_id=7
    )
    yield made
    made.close()


def test_it_is_a_generator_of_skyrls(generator: Any) -> None:
    assert isinstance(generator, GeneratorInterface)


@pytest.mark.parametrize("step", [1, 2])
def test_two_batches_of_the_same_prompts_are_rows_in_order(generator: Any, step: int) -> None:
    """Under the same names, as in two epochs."""
    asked = batch("one", "two", step=step)
    made = trained(generator, asked)
    assert made["trajectory_ids"] == asked["trajectory_ids"]
    assert [sum(mask) for mask in made["loss_masks"]] == [SAMPLED] * 4
    assert made["rewards"] == [1.0] * 4
    assert all(one < 0 for mask, row in zip(made["loss_masks"], made["rollout_logprobs"], strict=True)
               for on, one in zip(mask, row, strict=True) if on)  # fmt: skip
    heads = [tinymodel.decode(ids) for ids in made["prompt_token_ids"]]
    assert ["one" in head for head in heads] == [True, True, False, False]
    assert made["metrics"]["sandgate/rows/taught"] == 4.0


def test_an_agent_that_crashes_and_a_group_without_anything_are_masked(generator: Any) -> None:
    made = trained(generator, batch("crash", "silent", "well"))
    assert [any(mask) for mask in made["loss_masks"]] == [False, True, False, False, True, True]
    assert made["metrics"]["sandgate/rows/left_out/failure"] == 3.0
    assert made["prompt_token_ids"][2] == [7]


def test_the_same_step_wise_says_where_a_session_ends(
    generator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generator, "step_wise", True)
    made = trained(generator, batch("crash", "well"), step_wise=True)
    assert sum(made["is_last_step"]) == 4


def test_a_batch_without_anything_to_train_on_is_an_error_that_says_why(generator: Any) -> None:
    with pytest.raises(Unavailable, match=r"no session of 2 prompts gave anything to train on"):
        trained(generator, batch("silent", "silent"))


def test_a_lone_prompt_without_anything_is_masked_until_too_many_came_in_a_row(
    generator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As SkyRL's fully asynchronous trainer asks: a group at a time."""
    assert not any(map(any, trained(generator, batch("silent"))["loss_masks"]))
    monkeypatch.setattr(generator, "_nothing", IN_A_ROW - 1)
    with pytest.raises(Unavailable, match=f"no session of {IN_A_ROW} prompts"):
        trained(generator, batch("silent"))
    trained(generator, batch("well"))
    assert generator._nothing == 0


def test_evaluation_is_a_job_of_its_own(generator: Any, folder: Path) -> None:
    made = trained(generator, batch("one", "two", "three", phase="eval", n=1, temperature=0.0))
    assert made["rewards"] == [1.0] * 3
    assert sorted(one.name for one in (folder / "out").iterdir()) == ["evaluation", "train"]


def test_groups_are_asked_for_at_once_by_many(generator: Any) -> None:
    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*(generator.generate(batch(f"number {one}")) for one in range(4)))

    made = asyncio.run(all_of_them())
    heads = [tinymodel.decode(one["prompt_token_ids"][0]) for one in made]
    assert all(f"number {number}" in head for number, head in enumerate(heads))


REFUSED: dict[str, tuple[Any, type[Exception], str]] = {
    "another number of samples": (lambda: batch("one", n=3), Unsupported, "has 3 samples of each prompt"),
    "another temperature": (lambda: batch("one", temperature=0.5), Unsupported, "all its sessions are sampled alike"),
    "no trajectory ids": (lambda: batch("one") | {"trajectory_ids": None}, InvalidBody, "needs trajectory_ids"),
    "prompts of several sizes": (
        lambda: batch("one", "two") | {"trajectory_ids": batch("one", "two")["trajectory_ids"][:3]},
        Unsupported,
        "prompts of this batch have 1 to 2 samples",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_batches_that_the_job_cannot_run_are_refused(generator: Any, case: str) -> None:
    make, kind, why = REFUSED[case]
    with pytest.raises(kind, match=why):
        trained(generator, make())


def test_the_end_leaves_nothing_behind_and_says_so(generator: Any, folder: Path) -> None:
    """The last one of this generator's tests."""
    assert processes(str(folder))
    generator.close()
    generator.close()
    assert not processes(str(folder))
    with pytest.raises(Unavailable, match="the generator was closed"):
        trained(generator, batch("one"))


# -- a job that runs elsewhere ---------------------------------------------------------------------------------------


@asynccontextmanager
async def elsewhere(folder: Path, engine: str) -> AsyncIterator[Path]:
    """A run of which nobody here hears but by its gateways, as of an operator's job. Yields its folder."""
    write_job(folder, **{"http://127.0.0.1:9": engine, "parallelism: 4": f"parallelism: 4\n  groupSize: {N}"})
    abort = asyncio.Event()
    running = asyncio.ensure_future(
        run_local(
            load_job(folder / "job.yaml"),
            manifest_dir=folder,
            out=folder / "out",
            write_groups=write_parquet,
            merge=merge_parquet,
            samples_in=samples_in_parquet,
            abort=abort,
        )
    )
    try:
        yield folder / "out"
    finally:
        abort.set()
        await asyncio.gather(running, return_exceptions=True)


def test_a_fleet_that_is_handed_in_takes_prompts_and_gives_their_groups(
    engine: tuple[Player, str], tmp_path: Path
) -> None:
    loop = LoopThread()
    with entered(elsewhere(tmp_path, engine[1]), loop) as out:
        generator = RolloutJobGenerator.of_fleet(attach(out, wait_s=60.0))
        made = trained(generator, batch("crash", "silent", "well", step=5))
        assert [any(mask) for mask in made["loss_masks"]] == [False, True, False, False, True, True]
        with pytest.raises(Conflict, match=r"make the job's groupSize and n_samples_per_prompt the same"):
            trained(generator, batch("well", phase="eval", n=1))
        generator.close()
        assert processes(str(tmp_path)), "it is not the generator's to end"
    loop.close()


def test_a_fleet_that_cannot_be_reached_says_so(engine: tuple[Player, str], tmp_path: Path) -> None:
    generator = RolloutJobGenerator.of_fleet(attach(tmp_path / "gone", wait_s=0.0))
    with pytest.raises(Unavailable, match="no run in"):
        trained(generator, batch("one"))
    generator.close()


# -- SkyRL's entry point ---------------------------------------------------------------------------------------------


def test_the_page_s_entry_point_runs_a_job_and_ends_it(
    engine: tuple[Player, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SkyRL's own `run`, with a trainer that asks for two batches, and needs no GPU."""
    write_job(tmp_path)
    monkeypatch.chdir(tmp_path)
    shown: dict[str, Any] = {}
    exec(blocks("skyrl.md", "python")[1], shown)
    seen: list[list[float]] = []

    class Trainer:
        tracker = None

        def __init__(self, generator: Any) -> None:
            self.generator = generator

        async def train(self) -> None:
            first = await self.generator.generate(batch("one", step=1))
            second = await self.generator.generate(batch("one", step=2))
            seen.extend([first["rewards"], second["rewards"]])
            assert processes(str(tmp_path))

    exp: Any = shown["Exp"]

    class Here(exp):  # type: ignore[misc]
        def __init__(self) -> None:
            self.cfg, self.tokenizer = SkyRLTrainConfig(), SimpleNamespace(pad_token_id=0)
            self.cfg.generator.sampling_params.max_generate_length = 32

        def _setup_trainer(self) -> Any:
            servers = SimpleNamespace(server_urls=[engine[1]])
            return Trainer(self.get_generator(self.cfg, self.tokenizer, servers))

    Here().run()
    assert seen == [[1.0, 1.0]] * 2
    (manifest,) = tmp_path.glob("out/rollouts/train/000/manifests/*.json")
    spec = json.loads(manifest.read_bytes())["manifest"]["spec"]
    assert (spec["limits"]["promptTokens"], spec["model"]["maxModelLen"]) == (512, 512 + 32)
    assert not processes(str(tmp_path))
