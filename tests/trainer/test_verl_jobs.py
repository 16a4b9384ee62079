"""A RolloutJob inside verl, as far as it needs no verl: prompts as tasks, groups by uid, rows of a batch, the wire."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from array import array
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import orjson
import pyarrow.parquet as pq
import pytest

from sandgate.contract.errors import BadManifest, Conflict, InvalidBody, Unavailable
from sandgate.contract.job import Task
from sandgate.gateway.engine.responses import read
from sandgate.gateway.engine.scripted.server import ScriptedServer
from sandgate.gateway.engine.wire import GenerateEndpoint
from sandgate.operator.local.job import load_job
from sandgate.trainer.client.local_job import RETIRE_S, fresh_folder
from sandgate.trainer.client.pushed_groups import PushedGroups
from sandgate.trainer.credit.batches import taught
from sandgate.trainer.credit.reasons import CreditRules
from sandgate.trainer.testing import tiny_player
from sandgate.trainer.verl.jobs.batches import aligned, scored
from sandgate.trainer.verl.jobs.manifest import job_of
from sandgate.trainer.verl.jobs.relay import _Params, answer_of, sampling_of
from sandgate.trainer.verl.jobs.running import verl_job
from sandgate.trainer.verl.jobs.settings import KEYS, JobSettings, Sampled
from sandgate.trainer.verl.jobs.tasks import task_of
from sandgate.trainer.verl.jobs.vocabulary import Vocabulary
from sandgate.trainer.verl.rows import Lengths
from sandgate.trainer.verl.sessions import BatchSample
from tests.trainer.verl.jobs import write_job
from tests.trainer.verl.rows import row, short

COLUMNS: dict[str, Any] = {
    "uid": "q1",
    "raw_prompt": [{"role": "user", "content": "buy 7"}],
    "data_source": "shop",
    "reward_model": {"ground_truth": np.int64(7)},
    "extra_info": {"answer": "7"},
    "tools_kwargs": {"calc": {"create_kwargs": {"ground_truth": "7"}}},
    "agent_name": "shop",
    "input_ids": object(),
}


def test_the_answer_is_the_verifiers_and_the_agent_sees_what_is_public() -> None:
    data = task_of(COLUMNS).data
    assert data["public"] == {"agent_name": "shop"}
    assert data["reward_model"] == {"ground_truth": 7}
    assert set(data) == {"data_source", "reward_model", "extra_info", "tools_kwargs", "public"}
    shown = task_of(COLUMNS, public=["tools_kwargs"]).data["public"]
    assert shown == {"agent_name": "shop", "tools_kwargs": COLUMNS["tools_kwargs"]}


PROMPTS: dict[str, tuple[Any, Any]] = {
    "one user message is its text": ([{"role": "user", "content": "hi"}], "hi"),
    "an array of messages, as verl's data sets have it": (
        np.array([{"role": "user", "content": "hi"}], dtype=object),
        "hi",
    ),
    "a system message keeps both messages": (
        [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}],
        [{"role": "system", "content": "s"}, {"role": "user", "content": "hi"}],
    ),
    "parts stay a message": (
        [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
        [{"role": "user", "content": [{"type": "text", "text": "hi"}]}],
    ),
    "a name stays a message": (
        [{"role": "user", "content": "hi", "name": "ann"}],
        [{"role": "user", "content": "hi", "name": "ann"}],
    ),
    "text is text": ("hi", "hi"),
}


@pytest.mark.parametrize("case", PROMPTS)
def test_prompts(case: str) -> None:
    given, wanted = PROMPTS[case]
    assert task_of(COLUMNS | {"raw_prompt": given}).prompt == wanted


BAD: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no prompt": ({"raw_prompt": None}, {}, "prompt q1: it has no raw_prompt"),
    "a public column that is not there": ({}, {"public": ["tool"]}, "its data set has no column tool"),
    "a further column that is not there": ({}, {"further": ["n"]}, "its data set has no column n"),
    "a picture": ({"extra_info": {"image": object()}}, {}, "column extra_info holds a object"),
}


@pytest.mark.parametrize("case", BAD)
def test_prompts_that_are_no_tasks_are_refused_by_name(case: str) -> None:
    change, options, why = BAD[case]
    with pytest.raises(InvalidBody, match=why):
        task_of(COLUMNS | change, **options)


# -- the manifest ----------------------------------------------------------------------------------------------------


def settings(folder: Path, **changes: Any) -> JobSettings:
    made = JobSettings(
        manifest=folder / "job.yaml",
        out=folder / "out",
        relays=1,
        public=(),
        columns=(),
        wait_s=60.0,
        lengths=Lengths(64, 192),
        max_model_len=256,
        train=Sampled(n=2, sampling={"temperature": 1.0}),
        validation=Sampled(n=1, sampling={"temperature": 0}),
        tokenizer=str(folder / "model"),
        logprobs_mode="processed_logprobs",
    )
    return replace(made, **changes)


def test_verl_decides_what_its_trainer_decides_and_the_manifest_the_rest(tmp_path: Path) -> None:
    job = load_job(write_job(tmp_path))
    made = job_of(job, settings(tmp_path), ["http://a/0", "http://a/1"], validate=False)
    assert made.metadata.name == "ask"
    assert made.spec.engine.endpoints == ("http://a/0", "http://a/1")
    assert (made.spec.group_size, made.spec.sampling.temperature, made.spec.sampling.override) == (
        2,
        1.0,
        True,
    )
    assert made.spec.model.max_model_len == 256
    assert (made.spec.limits.prompt_tokens, made.spec.limits.response_tokens) == (64, 192)
    assert made.spec.limits.session_seconds == job.spec.limits.session_seconds
    assert made.spec.agent == job.spec.agent
    assert made.spec.reward == job.spec.reward
    checked = job_of(job, settings(tmp_path), ["http://a"], validate=True)
    assert (checked.metadata.name, checked.spec.group_size) == ("ask-val", 1)
    assert checked.spec.sampling.temperature == 0


def test_a_job_with_tasks_of_its_own_is_refused(tmp_path: Path) -> None:
    job = load_job(write_job(tmp_path, **{"tasks: {queue: {}}": "tasks: {inline: [{uid: a, prompt: b}]}"}))
    with pytest.raises(BadManifest, match="tasks: verl pushes its prompts") as caught:
        job_of(job, settings(tmp_path), ["http://a"], validate=False)
    assert caught.value.field == "spec.tasks"


def test_each_start_has_a_folder_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "train" / "007").mkdir(parents=True)
    (tmp_path / "train" / "notes").mkdir()
    assert [fresh_folder(tmp_path / "train").name for _ in range(2)] == ["008", "009"]


# -- rows ------------------------------------------------------------------------------------------------------------


def sample(uid: str, index: int) -> BatchSample:
    return BatchSample(uid=uid, index=index, raw_prompt="hi")


def test_a_batch_has_a_row_for_each_sample_in_order() -> None:
    groups = {
        "a": [row(0, uid="a", session_id="a0"), row(1, uid="a", session_id="a1", failure_class="agent")],
        "b": [row(1, uid="b", session_id="b1", reward=None), row(0, uid="b", session_id="b0", reward=0.0)],
        "c": [],
    }
    samples = [sample(uid, index) for uid in groups for index in range(2)]
    found = aligned(samples, groups, Lengths(8, 8), n=2, pad=9)
    assert [(one.uid, one.sample_index, 1 in one.loss_mask) for one in found] == [
        ("a", 0, True), ("a", 1, False), ("b", 0, True), ("b", 1, False), ("c", 0, False), ("c", 1, False),
    ]  # fmt: skip
    assert all(one.masked and one.prompt_ids == array("i", [9]) for one in (found[1], found[3], found[5]))


def test_rows_with_which_verl_pads_a_batch_are_its_first_sessions_again() -> None:
    groups = {"a": [row(0, uid="a", session_id="a0"), row(1, uid="a", session_id="a1")]}
    found = aligned([sample("a", index) for index in range(5)], groups, Lengths(8, 8), n=2, pad=0)
    assert [one.session_id for one in found] == ["a0", "a1", "a0", "a1", "a0"]


def test_nothing_to_train_on_is_an_error_that_says_why() -> None:
    groups = {"a": [row(0, uid="a", failure_class="infra", failure_reason="EngineError")]}
    with pytest.raises(
        Unavailable, match=r"no session of 1 samples gave anything to train on \(EngineError: 1\)"
    ):
        aligned([sample("a", 0)], groups, Lengths(8, 8), n=1, pad=0)


async def test_the_reward_loop_is_asked_about_sessions_that_nobody_scored_and_no_others() -> None:
    asked: list[str] = []

    async def score(last: Any, columns: Any) -> tuple[float, dict[str, Any]]:
        asked.append(last.session_id)
        return 0.5, {"by": columns["name"]}

    rows = [
        row(0, session_id="scored"),
        row(1, session_id="open", reward=None),
        row(2, session_id="broke", reward=None, failure_class="agent"),
    ]
    found = {one.session_id: one for one in await scored(rows, {"name": "loop"}, score)}
    assert asked == ["open"]
    assert (found["open"].reward, found["open"].reward_info["by"]) == (0.5, "loop")
    assert (found["scored"].reward, found["broke"].reward) == (1.0, None)


@pytest.mark.parametrize("said", [float("nan"), float("inf")])
async def test_a_session_that_the_reward_loop_gives_no_number_is_left_out(said: float) -> None:
    """It would make NaN of the advantages of the whole group, and of the weights."""

    async def score(last: Any, columns: Any) -> tuple[float, dict[str, Any]]:
        return (said if last.session_id == "odd" else 0.5), {}

    rows = [row(0, session_id="odd", reward=None), row(1, session_id="well", reward=None)]
    found = await scored(rows, {}, score)
    assert [(one.session_id, one.reward) for one in found] == [("well", 0.5)]


TRUNCATED: dict[str, tuple[dict[str, Any], float | None]] = {
    "a limit ended it": ({"failure_class": "policy", "failure_reason": "ContextExceeded"}, -1.0),
    "it ended well, and nobody scored it": ({}, None),
    "it was scored": ({"failure_class": "policy", "failure_reason": "TurnLimit", "reward": 0.5}, 0.5),
    "its agent crashed": ({"failure_class": "agent", "failure_reason": "AgentExit"}, None),
}


@pytest.mark.parametrize("case", TRUNCATED)
async def test_without_a_reward_loop_an_episode_that_a_limit_ended_has_a_reward(case: str) -> None:
    changes, reward = TRUNCATED[case]
    (found,) = await scored([row(0, **{"reward": None, **changes})], {}, None, -1.0)
    assert found.reward == reward


def test_a_row_that_is_too_long_stays_for_the_batch_to_say_so() -> None:
    groups = {"a": [row(0, uid="a", session_id="a0"), short(1, uid="a", session_id="a1")]}
    samples = [sample("a", index) for index in range(2)]
    found = aligned(samples, groups, Lengths(3, 4), n=2, pad=0)
    assert [one.session_id for one in found] == ["a0", "a1"]
    with pytest.raises(Unavailable, match="no session of 2 samples gave anything to train on"):
        aligned(samples, groups, Lengths(3, 1), n=2, pad=0)


# -- the wire --------------------------------------------------------------------------------------------------------

ENDS: dict[str, tuple[list[int], str | None, str, int | None]] = {
    "the model ended its turn": ([5, 2], "completed", "stop", 2),
    "the limit was reached": ([5, 6, 7], "completed", "length", None),
    "an update cut it": ([5, 6], "aborted", "abort", None),
    "a stop string ended it": ([5, 6], "completed", "stop", None),
}


@pytest.mark.parametrize("case", ENDS)
def test_a_gateway_reads_ids_logprobs_version_and_end_from_a_doors_answer(case: str) -> None:
    ids, said, finish, stop = ENDS[case]
    output = SimpleNamespace(
        token_ids=ids, log_probs=[-0.25] * len(ids), stop_reason=said, extra_fields={"global_steps": 7}
    )
    params = _Params(max_tokens=3, stop_token_ids=[2])
    step = read(orjson.dumps(answer_of(output, params)), GenerateEndpoint.GENERATE)
    assert (step.ids.tolist(), step.logprobs.tolist()) == (ids, [-0.25] * len(ids))
    assert step.labels == ((7, 0, len(ids)),)
    assert (step.finish, step.stop_reason) == (finish, stop)


def test_verl_is_given_the_sampling_that_was_asked_for() -> None:
    params = _Params(max_tokens=3, temperature=0.5, top_k=-1, stop=["x"], logprobs=0)
    assert sampling_of(params) == {
        "temperature": 0.5, "top_k": -1, "stop": ["x"], "logprobs": True, "max_tokens": 3,
    }  # fmt: skip


# -- a job -----------------------------------------------------------------------------------------------------------


@asynccontextmanager
async def job(folder: Path, **changes: str) -> AsyncIterator[PushedGroups]:
    write_job(folder, **changes)
    player = tiny_player(lambda ids, number: "yes")
    async with (
        ScriptedServer(player, model="tiny") as engine,
        verl_job(settings(folder), [engine.url], validate=False) as made,
    ):
        yield made


def task(uid: str) -> Task:
    return Task(uid=uid, prompt=uid, data={"reward_model": {"ground_truth": "yes"}, "public": {}})


async def test_gateways_of_another_tokenizer_are_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In a cluster the manifest names it."""
    async with job(tmp_path) as running:
        (told,) = await running.push([task("well")])
        rows = await running.group("well", told, 60.0)
    same = tmp_path / "model"
    assert Vocabulary(str(same)).compare(rows)
    other = tmp_path / "other"
    other.mkdir()
    (other / "tokenizer.json").write_bytes((same / "tokenizer.json").read_bytes() + b"\n")
    vocabulary = Vocabulary(str(other))
    assert [vocabulary.compare(rows) for _ in range(2)] == [False, True]
    assert [one.message for one in caplog.records if "tokenizer.json" in one.message] == [
        f"the gateways' tokenizer.json (spec.model.tokenizer of the manifest) is not that of {other}, which verl has: "
        "are they of one model?"
    ]


async def test_a_batch_gets_its_own_groups_and_one_without_rows_is_told(tmp_path: Path) -> None:
    async with job(tmp_path) as running:
        names = ["well", "crash", "silent"]
        told = await running.push([task(name) for name in names])
        with pytest.raises(Conflict, match="prompt well is asked for twice at once"):
            await running.push([task("well")])
        found = [await running.group(name, future, 60.0) for name, future in zip(names, told, strict=True)]
        assert [[one.sample_index for one in rows] for rows in found] == [[0, 1], [1], []]
        assert {one.uid for rows in found for one in rows} == {"well", "crash"}
        assert not running.waiting


LONG: dict[str, tuple[str, str | None]] = {
    "an answer ends where verl's row is full": ("once", None),
    "an agent that goes on is refused, and its episode is truncated": ("twice", "ContextExceeded"),
}


@pytest.mark.parametrize(("prompt", "failure"), LONG.values(), ids=LONG)
async def test_verls_lengths_are_held_before_sampling(
    tmp_path: Path, prompt: str, failure: str | None
) -> None:
    """What came to be longer was left out, scored or not: only short answers were learned from."""
    write_job(tmp_path)
    lengths = Lengths(64, 16)
    player = tiny_player(lambda ids, number: "yes " * 40)
    async with (
        ScriptedServer(player, model="tiny") as engine,
        verl_job(settings(tmp_path, lengths=lengths), [engine.url], validate=False) as running,
    ):
        (told,) = await running.push([task(prompt)])
        found = await running.group(prompt, told, 60.0)
    assert [(len(one.response_ids), one.finish_reason) for one in found] == [(16, "length")] * 2
    assert [(one.failure_reason, one.reward) for one in found] == [(failure, float(failure is None))] * 2
    assert len(taught(found, CreditRules(lengths=lengths))[0]) == 2
    left_out = taught(found, CreditRules(lengths=lengths, truncated="mask"))
    assert left_out == ([], {"truncated": 2})


async def test_what_a_training_of_weeks_has_acknowledged_is_not_kept(tmp_path: Path) -> None:
    async with job(tmp_path):
        texts = await asyncio.to_thread(
            lambda: [one.read_bytes() for one in tmp_path.rglob("gateway-*.json")]
        )
    assert [orjson.loads(text)["limits"]["retire_s"] for text in texts] == [RETIRE_S]


async def test_a_group_that_does_not_come_is_given_up(tmp_path: Path) -> None:
    async with job(tmp_path) as running:
        (told,) = await running.push([task("hang")])
        assert await running.group("hang", told, 0.2) == ()


async def test_a_job_that_ended_says_why_to_whoever_waits_and_to_whoever_comes(tmp_path: Path) -> None:
    async with job(tmp_path) as running:
        (told,) = await running.push([task("hang")])
        waiting = asyncio.ensure_future(running.group("hang", told, 60.0))
        await asyncio.sleep(0)
        running.fail(Unavailable("the job is over: why"))
        with pytest.raises(Unavailable, match="the job is over: why"):
            await waiting
        with pytest.raises(Unavailable, match="the job is over: why"):
            await running.push([task("late")])


async def test_an_agent_that_cannot_run_is_a_group_without_rows_and_not_a_wait(tmp_path: Path) -> None:
    async with job(tmp_path) as running:
        (tmp_path / "agent.py").unlink()
        (told,) = await running.push([task("well")])
        assert await running.group("well", told, 60.0) == ()


# -- the page --------------------------------------------------------------------------------------------------------

ROOT = Path(__file__).parents[2]


def test_the_page_shows_what_the_recipe_says_and_every_key() -> None:
    page = (ROOT / "docs" / "trainers" / "verl.md").read_text("utf-8")
    recipe = (ROOT / "examples" / "verl" / "train.sh").read_text("utf-8")
    recipe = recipe.replace("$rollout", "actor_rollout_ref.rollout").replace(
        '"$here/job.yaml"', "examples/verl/job.yaml"
    )
    (shown,) = re.findall(r"```hydra\n(.*?)```", page, re.DOTALL)
    for line in shown.splitlines():
        assert f"  {line} \\\n" in recipe, line
    section = page.partition("## A RolloutJob inside verl")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == set(KEYS)


def test_the_recipes_data_is_its_verifiers(tmp_path: Path) -> None:
    subprocess.run([sys.executable, ROOT / "examples" / "verl" / "make_data.py", tmp_path], check=True)
    rows = pq.read_table(tmp_path / "train.parquet").to_pylist()
    assert len(rows) + pq.read_metadata(tmp_path / "test.parquet").num_rows == 64
    made = task_of(
        rows[0] | {"uid": "q", "raw_prompt": rows[0]["prompt"]}, further=["verb", "item", "n", "pay"]
    )
    assert made.prompt == rows[0]["reward_model"]["ground_truth"]
    assert {"verb", "item", "n", "pay"} <= set(made.data)
    assert made.data["public"] == {}
    job_of(load_job(ROOT / "examples" / "verl" / "job.yaml"), settings(tmp_path), ["http://a"], validate=True)


def test_a_sessions_row_has_all_that_was_sampled_on_its_path() -> None:
    """The turn that two branches share is trained in the first of them, which is not the main one."""
    response: dict[str, Any] = {"response_ids": array("i", [10, 11, 9, 30]), "turn_ends": (2, 4)}
    left = row(
        0,
        uid="a",
        session_id="a0",
        trajectory_id=0,
        turn_ids=("t1", "t2"),
        loss_mask=array("b", [1, 1, 0, 1]),
        **{**response, "response_ids": array("i", [10, 11, 9, 20])},
        **sampled([1, 1, 0, 1]),
    )
    main = row(
        0,
        uid="a",
        session_id="a0",
        trajectory_id=1,
        main=True,
        turn_ids=("t1", "t3"),
        loss_mask=array("b", [0, 0, 0, 1]),
        **response,
        **sampled([0, 0, 0, 1]),
    )
    (found,) = aligned([sample("a", 0)], {"a": [left, main]}, Lengths(8, 8), n=1, pad=0)
    assert list(found.response_ids) == [10, 11, 9, 30]
    assert list(found.loss_mask) == [1, 1, 0, 1]
    assert list(found.versions) == [3, 3, -1, 3]


def sampled(mask: list[int]) -> dict[str, Any]:
    return {
        "response_logprobs": array("f", [-0.5 * one for one in mask]),
        "versions": array("i", [3 if one else -1 for one in mask]),
    }
