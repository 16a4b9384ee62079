"""TRL's own GRPOTrainer on trajectories captured by a real gateway."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch  # type: ignore[import-not-found]
from openai import AsyncOpenAI
from peft import LoraConfig, get_peft_model  # type: ignore[import-not-found]
from transformers import (  # type: ignore[import-not-found]
    AutoTokenizer,
    ProcessorMixin,
    Qwen3ForSequenceClassification,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer  # type: ignore[import-not-found]

from sandgate.contract.errors import Conflict, InvalidBody, Unavailable
from sandgate.contract.job import Task
from sandgate.contract.session import SessionHandle
from sandgate.trainer import tinymodel
from sandgate.trainer.client.fleet import fleet
from sandgate.trainer.trl import FolderWeights, Rollouts, env_reward
from tests.trainer.trl.tiny import TASKS, agent, model

JOBS = itertools.count()
SAMPLES, BATCH = 2, 4


class Trainer(GRPOTrainer):  # type: ignore[misc]
    """Keeps what it computes losses of."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.seen: list[dict[str, Any]] = []

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        self.seen.append(inputs)
        return super()._compute_loss(model, inputs)


class Made:
    """A training run: trainer, rollouts, what reward functions were told."""

    def __init__(self, running: Any, folder: Path, job: str, told: dict[str, Any], **options: Any) -> None:
        self.running, self.job = running, job
        groups: int | None = options.pop("groups", None)
        beside: list[Any] = options.pop("beside", [])
        self.columns: list[dict[str, Any]] = []
        self.rollouts = Rollouts(
            fleet({"g": running.origin}, running.admin_key, job=job),
            TASKS,
            job=job,
            **{"agent": agent, **options},
        )
        settings: dict[str, Any] = {
            "output_dir": str(folder / "out"),
            "max_steps": 2,
            "num_generations": SAMPLES,
            "per_device_train_batch_size": BATCH,
            "learning_rate": 1e-2,
            "save_strategy": "no",
            "gradient_checkpointing": False,
            "use_cpu": True,
            "bf16": False,
            "report_to": "none",
            "logging_steps": 1,
            "vllm_importance_sampling_mode": "token_truncate",
        }
        tokenizer = AutoTokenizer.from_pretrained(tinymodel.write_tiny_model(folder / "model"))
        tokenizer.pad_token = "<|endoftext|>"
        torch.manual_seed(0)
        self.trainer = Trainer(
            model=model(),
            args=GRPOConfig(**settings | told),
            processing_class=tokenizer,
            train_dataset=self.rollouts.dataset(groups),
            reward_funcs=[self.reward, *beside],
            reward_processing_classes=[None, *(tokenizer for _ in beside)],
            rollout_func=self.rollouts,
        )

    def reward(self, prompts: Any, **columns: Any) -> list[float | None]:
        self.columns.append(columns)
        return env_reward(prompts, **columns)

    def train(self, weights: Any = None, **given: Any) -> None:
        with self.rollouts:
            self.rollouts.attach(self.trainer, weights)
            self.trainer.train(**given)

    @property
    def uids(self) -> list[str]:
        """Of the groups, in the order in which they were trained on."""
        return [uid for one in self.columns for uid in one["uid"][::SAMPLES]]


@pytest.fixture
def make(running: Any, tmp_path: Path) -> Any:
    job = f"job-{next(JOBS)}"

    def made(told: dict[str, Any] | None = None, **options: Any) -> Made:
        return Made(running, tmp_path, job, told or {}, **options)

    return made


def rows(batch: dict[str, Any], session: int) -> dict[str, list[Any]]:
    kept = batch["completion_mask"][session].bool()
    names = ("completion_ids", "tool_mask", "sampling_per_token_logps")
    return {name: batch[name][session][kept].tolist() for name in names}


def test_two_steps_train_on_what_was_captured(make: Any) -> None:
    made = make()
    before = [one.detach().clone() for one in made.trainer.model.parameters()]
    made.train()
    assert [len(one["uid"]) for one in made.columns] == [BATCH, BATCH]
    assert len(made.trainer.seen) == 2
    for batch, told in zip(made.trainer.seen, made.columns, strict=True):
        # TRL shuffles a batch after scoring it: rows are told apart by their tokens' logprobs and ids
        found = [rows(batch, at) for at in range(BATCH)]
        for at in range(BATCH):
            versions = told["sandgate_versions"][at]
            mask = [int(version >= 0) for version in versions]
            assert sum(mask) not in (0, len(mask)), "sampled tokens, and the environment's between them"
            like = [one for one in found if one["completion_ids"] == told["completion_ids"][at]]
            assert like
            assert all(one["tool_mask"] == mask for one in like)
            assert all((one["sampling_per_token_logps"][0] < 0) == bool(mask[0]) for one in like)
        assert sorted(batch["advantages"].tolist()) == pytest.approx(
            [-0.7070, -0.7070, 0.7070, 0.7070], abs=1e-3
        )
    assert any(not torch.equal(a, b) for a, b in zip(before, made.trainer.model.parameters(), strict=True))
    assert all(torch.isfinite(one).all() for one in made.trainer.model.parameters())


class Processor(ProcessorMixin):  # type: ignore[misc]
    """Of a model that takes images, too: its tokenizer is within it."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.chat_template = tokenizer.chat_template


def test_with_a_processor_the_tokenizer_is_the_one_in_it(make: Any) -> None:
    made = make({"max_steps": 1})
    made.trainer.processing_class = Processor(made.trainer.processing_class)
    made.train()
    assert len(made.trainer.seen) == 1


def test_the_off_policy_correction_is_of_captured_logprobs(make: Any) -> None:
    made = make({"vllm_importance_sampling_clip_max": 2.0})
    made.train()
    for batch in made.trainer.seen:
        mask = (batch["completion_mask"] * batch["tool_mask"]).bool()
        ratio = torch.exp(batch["old_per_token_logps"] - batch["sampling_per_token_logps"]).clamp(max=2.0)
        assert torch.equal(batch["importance_sampling_ratio"][mask], ratio[mask])
        assert ratio[mask].std() > 0.01, "a scripted engine is no policy of this model"


def test_a_session_without_a_reward_moves_nothing(make: Any) -> None:
    async def unpaid(*, sample_index: int, **told: Any) -> float | None:
        await agent(sample_index=sample_index, **told)
        if sample_index:
            raise ValueError("lost")
        return 1.0

    made = make(agent=unpaid)
    made.train()
    for batch, told in zip(made.trainer.seen, made.columns, strict=True):
        assert told["env_reward"] == [1.0, None] * (BATCH // SAMPLES)
        assert told["sandgate_failure"] == [None, "AgentExit"] * (BATCH // SAMPLES)
        assert batch["advantages"].tolist() == [0.0] * BATCH, "of two, one counts: it is its group's mean"
        masked = (batch["completion_mask"] * batch["tool_mask"]).sum(-1)
        assert sorted(masked.bool().tolist()) == [False, False, True, True]


def polite(prompts: Any, **_: Any) -> list[float]:
    return [1.0] * len(prompts)


async def polite_later(prompts: Any, **_: Any) -> list[float]:
    return [1.0] * len(prompts)


def reward_model() -> Any:
    config = model().config
    config.num_labels, config.pad_token_id = 1, 0
    return Qwen3ForSequenceClassification(config)


BESIDE: dict[str, Any] = {
    "a function": lambda: polite,
    "an async function": lambda: polite_later,
    "a reward model": reward_model,
}


async def lost_last(*, sample_index: int, **told: Any) -> float:
    """The last of a group's four is lost; of the others the last is wrong."""
    await agent(sample_index=sample_index, **told)
    if sample_index == BATCH - 1:
        raise ValueError("lost")
    return float(sample_index < 2)


@pytest.mark.parametrize("attached", [True, False], ids=["attached", "alone"])
@pytest.mark.parametrize("kind", BESIDE)
def test_a_masked_sample_is_no_part_of_its_groups_mean_beside(make: Any, kind: str, attached: bool) -> None:
    """TRL takes a missing reward for 0 where another function has one."""
    told = {"max_steps": 1, "num_generations": BATCH, "reward_weights": [1.0, 0.0]}
    made = make(told, agent=lost_last, beside=[BESIDE[kind]()])
    with made.rollouts:
        if attached:
            made.rollouts.attach(made.trainer)
        made.trainer.train()
    ((batch,), (columns,)) = made.trainer.seen, made.columns
    assert columns["env_reward"] == [1.0, 1.0, 0.0, None]
    assert sorted(batch["advantages"].tolist()) == pytest.approx([-1.1545, 0.0, 0.5772, 0.5772], abs=1e-3)


def test_a_trl_that_cannot_leave_out_masked_samples_is_refused(make: Any) -> None:
    made = make()
    made.trainer._calculate_rewards = None
    with made.rollouts, pytest.raises(Conflict, match="has no _calculate_rewards"):
        made.rollouts.attach(made.trainer)


def test_a_rollout_func_that_drops_who_is_masked_is_refused(make: Any) -> None:
    made = make({"max_steps": 1})
    plain = made.trainer.rollout_func

    def bare(prompts: Any, trainer: Any) -> dict[str, Any]:
        return {name: one for name, one in plain(prompts, trainer).items() if name != "sandgate_masked"}

    made.trainer.rollout_func = bare
    with pytest.raises(InvalidBody, match="rows without sandgate_masked"):
        made.train()


def test_a_group_without_any_turn_is_passed_over(make: Any) -> None:
    async def mute(**_: Any) -> float:
        raise Unavailable("away")

    made = make(agent=mute)
    made.train()
    assert [one["env_reward"] for one in made.columns] == [[None] * BATCH] * 2
    assert all((one["tool_mask"] == 0).all() for one in made.trainer.seen)


@pytest.mark.parametrize("shuffle", [True, False])
def test_ahead_starts_what_the_trainer_will_ask_for(make: Any, shuffle: bool) -> None:
    made = make({"max_steps": 5, "shuffle_dataset": shuffle, "seed": 3}, ahead=2)
    made.train()
    assert len(made.uids) == len(set(made.uids)) == 5 * BATCH // SAMPLES
    steps = [uid.split(".")[1] for uid in made.uids]
    assert steps == [f"t{step}" for step in range(5) for _ in range(BATCH // SAMPLES)]
    assert len(made.trainer.train_dataset) == len(TASKS), "so five steps are two and a half epochs"


def test_with_truncated_completions_masked_an_answer_that_a_stop_string_ended_trains(make: Any) -> None:
    """It has no end token, by which TRL alone tells a truncated one."""

    async def stopped(*, session: SessionHandle, raw_prompt: Any, sample_index: int, **_: Any) -> float:
        asked: dict[str, Any] = {"max_tokens": 1} if sample_index == 2 else {"stop": ["k"]}
        async with AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as client:
            await client.chat.completions.create(model="tiny", messages=list(raw_prompt), **asked)
        return 1.0 - sample_index

    told = {"max_steps": 1, "num_generations": BATCH, "mask_truncated_completions": True}
    made = make(told, agent=stopped)
    made.train()
    ((batch,), (columns,)) = made.trainer.seen, made.columns
    assert columns["sandgate_masked"] == [None, None, "truncated", None]
    assert columns["env_reward"] == [1.0, 0.0, None, -2.0]
    trained = (batch["completion_mask"] * batch["tool_mask"]).sum(-1).bool().tolist()
    assert sorted(trained) == [False, True, True, True]
    assert [bool(one) for one in batch["advantages"]] == trained


class Killed(TrainerCallback):  # type: ignore[misc]
    """Ends training as a kill does, as far as a test in the same process can."""

    def __init__(self, step: int, event: str) -> None:
        self.step, self.event = step, event

    def _hit(self, event: str, state: Any) -> None:
        if event == self.event and state.global_step == self.step:
            raise KeyboardInterrupt

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._hit("step_end", state)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._hit("save", state)


def sampled(player: Any) -> int:
    """Generations, without the rest of those that a weight update had cut."""
    return int(player.counts["generations"] - player.counts["resumed"])


KILLS = {"before the checkpoint is written": "step_end", "before it is acknowledged": "save"}


@pytest.mark.parametrize("event", KILLS.values(), ids=KILLS)
@pytest.mark.parametrize("ahead", [0, 1])
def test_a_trainer_that_is_stopped_trains_nothing_twice_and_loses_nothing(
    make: Any, tmp_path: Path, event: str, ahead: int
) -> None:
    told = {"max_steps": 4, "save_strategy": "steps", "save_steps": 1}
    player = make().running.player
    before = sampled(player)
    first = make(told, ahead=ahead, groups=4 * BATCH // SAMPLES)
    first.trainer.add_callback(Killed(2, event))
    with pytest.raises(KeyboardInterrupt):
        first.train(FolderWeights(tmp_path / "weights"))
    second = make(told, ahead=ahead, groups=4 * BATCH // SAMPLES)
    second.train(FolderWeights(tmp_path / "weights"), resume_from_checkpoint=True)
    safe = 2 if event == "save" else 1
    kept = [uid for uid in first.uids if int(uid.split(".")[1][1:]) < safe]
    assert Counter(kept + second.uids).most_common(1)[0][1] == 1, "each group is in the weights once"
    assert len(kept + second.uids) == 4 * BATCH // SAMPLES
    again = sampled(player) - before - 4 * BATCH * 2  # two turns each
    assert 0 <= again <= ahead * BATCH * 2, "only what was cut short is sampled again"
    assert second.trainer.state.global_step == 4
    versions = [
        {version for one in it.columns for version in one["sandgate_version"]} for it in (first, second)
    ]
    assert max(versions[0]) < min(versions[1]), "no version means two weights"


def test_over_several_epochs_too_each_group_is_trained_on_once(make: Any) -> None:
    told = {"max_steps": 6, "save_strategy": "steps", "save_steps": 1, "seed": 3}
    first = make(told, ahead=1)
    first.trainer.add_callback(Killed(3, "save"))
    with pytest.raises(KeyboardInterrupt):
        first.train()
    second = make(told, ahead=1)
    second.train(resume_from_checkpoint=True)
    uids = first.uids + second.uids
    assert len(set(uids)) == len(uids) == 6 * BATCH // SAMPLES
    assert not second.rollouts._rounds._ready, "what was sampled for another order is acknowledged too"


def test_weights_reach_the_engine_before_each_round_as_its_version(make: Any, tmp_path: Path) -> None:
    made = make({"max_steps": 3})
    made.train(FolderWeights(tmp_path / "weights", kept=9))
    versions = [
        {version for row in one["sandgate_versions"] for version in row if version >= 0}
        for one in made.columns
    ]
    start = min(versions[0])
    assert versions == [{start}, {start + 1}, {start + 2}]
    folders = sorted(path.name for path in (tmp_path / "weights").iterdir())
    assert folders == [f"v{start + one}" for one in range(3)]
    assert (tmp_path / "weights" / f"v{start}" / "model.safetensors").stat().st_size > 0


def test_an_engine_that_is_started_anew_within_a_round_is_given_the_weights_again(
    make: Any, running: Any, tmp_path: Path
) -> None:
    """Nobody else would ever bring them: no group comes before."""
    restarts = iter(
        [False, False, True]
    )  # in the second round: at first engines have the weights of version 0

    async def restarts_it(*, session: SessionHandle, raw_prompt: Any, sample_index: int, **_: Any) -> float:
        async with AsyncOpenAI(base_url=session.base_url, api_key=session.api_key, max_retries=20) as client:
            if sample_index == 0 and next(restarts, False):
                running.player.restart()
            await client.chat.completions.create(model="tiny", messages=list(raw_prompt))
        return 1.0 - sample_index

    made = make(agent=restarts_it)
    made.train(FolderWeights(tmp_path / "weights"))
    versions = [
        {version for row in one["sandgate_versions"] for version in row if version >= 0}
        for one in made.columns
    ]
    start = min(versions[0])
    assert versions == [{start}, {start + 1}]
    assert [len(one["uid"]) for one in made.columns] == [BATCH, BATCH], "no session was lost by it"
    assert running.player.label == str(start + 1)
    assert next(restarts, None) is None, "it was started anew"


REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], type[Exception], str]] = {
    "ahead where one step is two calls": ({"num_iterations": 2}, {"ahead": 1}, InvalidBody, "ahead: needs"),
    "a temperature that is not the job's": ({"temperature": 0.5}, {}, Conflict, "spec.sampling.temperature"),
}


@pytest.mark.parametrize(("told", "options", "error", "match"), REFUSED.values(), ids=REFUSED)
def test_it_is_refused(
    make: Any, told: dict[str, Any], options: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        make(told, **options).train()


def test_adapters_that_cannot_be_published_are_refused_before_the_first_round(
    make: Any, tmp_path: Path
) -> None:
    made = make()
    made.trainer.model = get_peft_model(made.trainer.model, LoraConfig(target_modules=["q_proj"]))
    made.trainer.model.get_base_model().is_quantized = True
    with made.rollouts, pytest.raises(InvalidBody, match="QLoRA"):
        made.rollouts.attach(made.trainer, FolderWeights(tmp_path / "weights"))


def test_a_second_training_with_the_same_rollouts_is_refused_before_it_publishes(
    make: Any, tmp_path: Path
) -> None:
    """Its groups and versions would have the names of the first one's."""
    made = make({"max_steps": 2})
    with made.rollouts:
        made.rollouts.attach(made.trainer, FolderWeights(tmp_path / "weights"))
        made.trainer.train()
        before = sorted(path.name for path in (tmp_path / "weights").iterdir())
        with pytest.raises(Conflict, match="step 0 after step 1: a second training"):
            made.trainer.train()
    assert sorted(path.name for path in (tmp_path / "weights").iterdir()) == before


def test_prompts_that_are_no_tasks_are_named(make: Any) -> None:
    made = make()
    with made.rollouts, pytest.raises(InvalidBody, match="prompt 0 is of no task"):
        made.rollouts(["what?"] * SAMPLES, made.trainer)
    with pytest.raises(InvalidBody, match="same prompt"):
        make(agent=None).rollouts.__class__(fleet({"g": "http://g"}, "k"), [*TASKS, TASKS[0]], job="j")


def test_a_split_is_datasets_of_some_of_the_tasks(make: Any) -> None:
    rollouts = make().rollouts
    assert rollouts.dataset(3, tasks=TASKS[1:3])["prompt"] == [TASKS[at].prompt for at in (1, 2, 1)]
    with pytest.raises(InvalidBody, match="task 'q0' is not of these rollouts"):
        rollouts.dataset(tasks=[Task(uid="q0", prompt="another")])


def test_without_an_agent_the_jobs_operator_is_given_the_tasks_and_told_the_end(make: Any) -> None:
    made = make({"max_steps": 1}, agent=None, wait_s=0.3)
    with made.rollouts:
        made.rollouts.attach(made.trainer)
        with pytest.raises(Unavailable, match="2 of 2 groups are not there"):
            made.trainer.train()
        made.rollouts.end_job()
        with pytest.raises(Conflict, match="last"):
            made.trainer.train()


def test_evaluation_is_neither_trained_on_nor_offered_again(make: Any) -> None:
    made = make({"per_device_eval_batch_size": BATCH, "num_generations_eval": SAMPLES})
    made.trainer.eval_dataset = made.rollouts.dataset().select(range(2))
    with made.rollouts:
        made.rollouts.attach(made.trainer)
        said = made.trainer.evaluate()
        made.trainer.train()
    assert said["eval_reward"] == 0.5
    assert [uid.split(".")[1][0] for uid in made.uids] == ["e"] * 2 + ["t"] * 4


def test_in_an_evaluation_truncated_episodes_count_whatever_becomes_of_them_in_training(make: Any) -> None:
    async def cut(*, session: SessionHandle, raw_prompt: Any, sample_index: int, **_: Any) -> float:
        asked: dict[str, Any] = {"max_tokens": 1} if sample_index else {}
        async with AsyncOpenAI(base_url=session.base_url, api_key=session.api_key) as client:
            await client.chat.completions.create(model="tiny", messages=list(raw_prompt), **asked)
        return 1.0 - sample_index

    told = {"per_device_eval_batch_size": BATCH, "mask_truncated_completions": True, "max_steps": 1}
    made = make(told, agent=cut)
    made.trainer.eval_dataset = made.rollouts.dataset().select(range(2))
    with made.rollouts:
        made.rollouts.attach(made.trainer)
        said = made.trainer.evaluate()
        made.trainer.train()
    assert said["eval_reward"] == 0.5
    assert [one["env_reward"] for one in made.columns] == [[1.0, 0.0] * 2, [1.0, None] * 2]
