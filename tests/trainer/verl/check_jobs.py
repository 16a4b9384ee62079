"""A RolloutJob inside verl: real Ray, verl's own client and balancer, gateways and sandboxes as processes."""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray  # type: ignore[import-not-found]
import transfer_queue as tq  # type: ignore[import-not-found]
from omegaconf import OmegaConf  # type: ignore[import-not-found]
from verl import DataProto  # type: ignore[import-not-found]
from verl.protocol import pad_dataproto_to_divisor, unpad_dataproto  # type: ignore[import-not-found]
from verl.trainer.ppo.core_algos import AdvantageEstimator  # type: ignore[import-not-found]
from verl.trainer.ppo.ray_trainer import RayPPOTrainer, compute_advantage  # type: ignore[import-not-found]
from verl.trainer.ppo.reward import extract_reward  # type: ignore[import-not-found]
from verl.utils.import_utils import load_class_from_fqn  # type: ignore[import-not-found]
from verl.utils.tensordict_utils import (  # type: ignore[import-not-found]
    assign_non_tensor_data,
    get_tensordict,
)
from verl.workers.rollout.llm_server import LLMServerClient  # type: ignore[import-not-found]
from verl.workers.rollout.router import GlobalRequestLoadBalancer  # type: ignore[import-not-found]

from sandgate.trainer.verl.dataproto import objects
from tests.support.waiting import until

jobs: Any = importlib.import_module("jobs")
"""Under the name by which workers import it."""

N = 2
"""Sessions for each prompt."""
SAMPLED = 12
"""Tokens that one session samples: `yes 7` and its end, twice."""


def config(folder: Path, **section: Any) -> Any:
    rollout = {
        "name": "vllm",
        "prompt_length": 64,
        "response_length": 192,
        "n": N,
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "val_kwargs": {"n": 1, "temperature": 0, "top_p": 1.0, "top_k": -1},
        "agent": {"agent_loop_manager_class": "sandgate.trainer.verl.RolloutJobManager"},
        "custom": {
            "rollout_job": {"manifest": str(folder / "job.yaml"), "out": str(folder / "out")} | section
        },
    }
    return OmegaConf.create(
        {"actor_rollout_ref": {"rollout": rollout, "model": {"path": str(folder / "model")}}}
    )


class Running:
    """A manager over one server."""

    def __init__(self, folder: Path, **section: Any) -> None:
        self.config, self.folder = config(folder, **section), folder
        self.server = ray.remote(jobs.Server).options(num_cpus=0).remote()
        balancer = ray.remote(GlobalRequestLoadBalancer).options(num_cpus=0)
        self.balancer = balancer.remote(servers={"server-0": self.server})
        name = self.config.actor_rollout_ref.rollout.agent.agent_loop_manager_class
        self.manager = load_class_from_fqn(name, "AgentLoopManager").create(
            config=self.config,
            llm_client=LLMServerClient(self.config, self.balancer),
            teacher_client=None,
            reward_loop_worker_handles=None,
        )

    def version(self, number: int) -> None:
        """As a weight update ends."""
        ray.get(self.server.set_global_steps.remote(number))


@pytest.fixture(scope="module")
def running(queue_running: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("job")
    jobs.write_job(folder)
    made = Running(folder, public=["tools_kwargs"])
    yield made
    for one in (made.manager.worker, *made.manager.relays, made.server, made.balancer):
        ray.kill(one)


def dataset(*prompts: str, truth: str = "yes") -> Any:
    """A batch as verl's dataloader gives it to the v0 trainer, with its uids."""
    import torch  # type: ignore[import-not-found]

    rows = range(len(prompts))
    columns: dict[str, Any] = {
        "uid": [f"{prompts[at]}-{at}-{os.urandom(4).hex()}" for at in rows],
        "raw_prompt": [np.array([{"role": "user", "content": text}]) for text in prompts],
        "data_source": ["ask"] * len(prompts),
        "reward_model": [{"style": "rule", "ground_truth": truth}] * len(prompts),
        "extra_info": [{"index": at, "answer": truth} for at in rows],
        "tools_kwargs": [{"at": np.int64(at)} for at in rows],
        "agent_name": ["ask"] * len(prompts),
    }
    found = {name: objects(values) for name, values in columns.items()}
    return DataProto.from_single_dict({"dummy_tensor": torch.zeros(len(prompts), 1)} | found)


def asked(batch: Any, **meta: Any) -> Any:
    """What RayPPOTrainer.fit hands to its agent loop manager."""
    prompts = RayPPOTrainer._get_gen_batch(None, batch).repeat(repeat_times=N, interleave=True)
    prompts.meta_info |= {"global_steps": 1, **meta}
    return prompts


def test_two_batches_are_rows_of_sandboxes_each_of_its_own_weights(running: Running) -> None:
    """The steps of RayPPOTrainer.fit between its dataloader and its advantages, with an update between."""
    for version in (7, 8):
        running.version(version)
        batch = dataset("one", "two")
        out = running.manager.generate_sequences(asked(batch))
        assert out.meta_info.pop("timing")["agent_loop/generate_sequences/max"] > 0
        whole = batch.repeat(repeat_times=N, interleave=True).union(out)
        assert whole.batch["response_mask"].sum(-1).tolist() == [SAMPLED] * 4
        assert whole.batch["rollout_log_probs"][0][:6].tolist() == [-0.5] * 6
        assert whole.non_tensor_batch["min_global_steps"].tolist() == [version] * 4
        assert whole.non_tensor_batch["max_global_steps"].tolist() == [version] * 4
        scores, info = extract_reward(whole)
        assert scores.sum(-1).tolist() == [1.0] * 4
        assert not np.any(info["leaked"]), "the answer reached an agent"
        whole.batch["token_level_rewards"] = scores
        found = compute_advantage(whole, adv_estimator=AdvantageEstimator.GRPO, num_repeat=N)
        assert not found.batch["advantages"].any()  # all solved it


def test_failures_are_masked_rows_and_move_no_baseline(running: Running) -> None:
    """An agent that crashes for one of its samples, one that never asks, and one that is well."""
    batch = dataset("crash", "silent", "well")
    out = running.manager.generate_sequences(asked(batch))
    assert [bool(row.any()) for row in out.batch["response_mask"]] == [False, True, False, False, True, True]
    assert out.batch["rm_scores"].sum(-1).tolist() == [1.0, 1.0, 0.0, 0.0, 1.0, 1.0]


def test_a_batch_without_anything_to_train_on_is_an_error_that_says_why(running: Running) -> None:
    with pytest.raises(Exception, match="no session of 2 samples gave anything to train on"):
        running.manager.generate_sequences(asked(dataset("silent")))


async def test_validation_is_a_job_of_its_own_that_is_greedy(running: Running) -> None:
    """Padded as verl pads it, awaited as its one-step off-policy trainer does."""
    before = len(ray.get(running.server.seen.remote()))
    prompts, padding = pad_dataproto_to_divisor(dataset("one", "two", "three"), 4)
    prompts.meta_info["validate"] = True
    out = unpad_dataproto(await running.manager.generate_sequences(prompts), pad_size=padding)
    assert out.batch["rm_scores"].sum(-1).tolist() == [1.0] * 3
    seen = ray.get(running.server.seen.remote())
    assert {one["temperature"] for one in seen[:before]} == {1.0}
    assert {one["temperature"] for one in seen[before:]} == {0.0}
    assert len(seen) - before == 6, "three prompts of two turns; the padding is not rolled out"


def submitted(batch: Any, **columns: Any) -> Any:
    """The batch as the v1 trainer makes it, its prompts registered in the queue."""
    made = get_tensordict(dict(batch.non_tensor_batch) | columns)
    assign_non_tensor_data(made, "global_steps", 3)
    tags = [{"is_prompt": True, "status": "pending", "global_steps": 3} for _ in made["uid"]]
    tq.kv_batch_put(keys=list(made["uid"]), partition_id="train", tags=tags)
    return made


async def statuses(keys: list[str]) -> dict[str, str]:
    """As soon as all are terminal."""
    tags: dict[str, Any] = {}

    async def terminal() -> bool:
        tags.update({key: tag for key, tag in tq.kv_list("train")["train"].items() if key in keys})
        return all(tags[key]["status"] in ("finished", "failure") for key in keys)

    await until(terminal, what="the groups are terminal", within_s=60.0)
    return {key.split("-")[0]: tags[key]["status"] for key in keys}


async def test_v1_returns_at_once_and_the_rows_come_by_the_queue(running: Running, queue: None) -> None:
    running.version(9)
    before = running.manager.metrics()["rows/left_out/failure"]
    batch = submitted(dataset("good", "silent"))
    assert running.manager.generate_sequences(batch) is None
    keys = list(batch["uid"])
    assert await statuses(keys) == {"good": "finished", "silent": "failure"}
    rows = sorted(key for key in tq.kv_list("train")["train"] if "_" in key)
    assert rows == [f"{keys[0]}_0_0", f"{keys[0]}_1_0"]
    data = tq.kv_batch_get(keys=rows, partition_id="train")
    assert [one.sum().item() for one in data["response_mask"]] == [SAMPLED] * N
    assert list(data["data_source"]) == ["ask", "ask"]
    tag = tq.kv_list("train")["train"][rows[0]]
    assert (tag["min_global_steps"], tag["max_global_steps"]) == (9, 9)
    assert running.manager.metrics()["rows/left_out/failure"] == before + N, "the two that asked nothing"


async def test_v1_a_lone_survivor_whose_sibling_left_no_row_has_a_masked_row_beside_it(
    running: Running, queue: None
) -> None:
    batch = submitted(dataset("crash"))
    running.manager.generate_sequences(batch)
    (key,) = batch["uid"]
    assert await statuses([key]) == {"crash": "finished"}
    rows = [f"{key}_0_0", f"{key}_1_0"]
    data = tq.kv_batch_get(keys=rows, partition_id="train")
    assert [one.sum().item() for one in data["response_mask"].unbind()] == [SAMPLED, 0]
    assert [one.sum().item() for one in data["rm_scores"].unbind()] == [1.0, 1.0]


async def test_v1_prompts_that_cannot_be_tasks_fail_and_are_not_waited_for(
    running: Running, queue: None
) -> None:
    batch = submitted(dataset("one"), __rollout_n__=objects([3]))
    with pytest.raises(Exception, match="__rollout_n__ is 3, and every group of the job has 2"):
        running.manager.generate_sequences(batch)
    assert await statuses(list(batch["uid"])) == {"one": "failure"}


@pytest.mark.parametrize("victim", ["gateway", "agent"])
async def test_one_that_is_killed_in_the_middle_hangs_no_batch(running: Running, victim: str) -> None:
    """A gateway starts again and goes on with its sessions; an agent that was killed is masked."""
    marks = {"gateway": f"{running.folder}/out/train", "agent": f"{running.folder}/agent.py"}
    ray.get(running.server.hold.remote(True))
    before = len(ray.get(running.server.seen.remote()))
    work = asyncio.ensure_future(asyncio.to_thread(running.manager.generate_sequences, asked(dataset("mid"))))

    async def both_ask() -> bool:
        return len(await running.server.seen.remote()) >= before + N

    await until(both_ask, what="both agents ask", within_s=60.0)
    os.kill(jobs.processes(marks[victim])[0], signal.SIGKILL)
    ray.get(running.server.hold.remote(False))
    out = await asyncio.wait_for(work, 90)
    solved = out.batch["response_mask"].any(-1).sum().item()
    assert solved == (2 if victim == "gateway" else 1)


def test_the_end_leaves_nothing_behind(running: Running) -> None:
    """The last one of this manager's tests."""
    assert jobs.processes(str(running.folder))
    running.manager.close()
    assert not jobs.processes(str(running.folder))


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "no manifest": ({"manifest": None}, "rollout_job.manifest is required"),
    "a manifest that is not there": (
        {"manifest": "gone.yaml"},
        "rollout_job.manifest: .*gone.yaml is no file",
    ),
    "a key is misspelt": ({"manifets": "x"}, "rollout_job.manifets: no such key"),
    "the cluster is a name": (
        {"cluster": "lab"},
        "rollout_job.cluster must be true, or have texts for any of",
    ),
    "the cluster's place is misspelt": (
        {"cluster": {"namespaces": "lab"}},
        "rollout_job.cluster must be true, or have texts for any of namespace",
    ),
    "relays are no count": ({"relays": 0}, "rollout_job.relays must be a whole number of at least 1, not 0"),
    "no time to wait": ({"wait_s": 0}, "rollout_job.wait_s must be seconds above 0, not 0"),
    "the answer would be public": (
        {"public": ["reward_model"]},
        "rollout_job.public: reward_model holds the answer",
    ),
    "truncated is neither": ({"truncated": "cut"}, "rollout_job.truncated must be score or mask, not 'cut'"),
    "no number": ({"truncated_reward": "x"}, "rollout_job.truncated_reward must be a finite number, not 'x'"),
    "names are no list": ({"columns": "x"}, "rollout_job.columns must be a list of column names"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_config_is_refused_before_anything_starts(case: str, tmp_path: Path) -> None:
    change, why = WRONG[case]
    jobs.write_job(tmp_path)
    manager = load_class_from_fqn("sandgate.trainer.verl.RolloutJobManager", "AgentLoopManager")
    with pytest.raises(ValueError, match=why):
        manager.create(config(tmp_path, **change), None)


def test_a_job_whose_tasks_are_not_pushed_is_refused(tmp_path: Path) -> None:
    jobs.write_job(tmp_path, **{"tasks: {queue: {}}": "tasks: {inline: [{uid: a, prompt: b}]}"})
    manager = load_class_from_fqn("sandgate.trainer.verl.RolloutJobManager", "AgentLoopManager")
    with pytest.raises(Exception, match="tasks: verl pushes its prompts"):
        manager.create(config(tmp_path), None)


def test_remax_is_refused_as_all_sessions_are_sampled_alike(tmp_path: Path) -> None:
    jobs.write_job(tmp_path)
    conf = OmegaConf.merge(config(tmp_path), {"algorithm": {"adv_estimator": "remax"}})
    manager = load_class_from_fqn("sandgate.trainer.verl.RolloutJobManager", "AgentLoopManager")
    with pytest.raises(ValueError, match="remax needs a greedy sample"):
        manager.create(conf, None)
