"""The framework over a real gateway: each test is named for the behaviour that uni-agent's own test gates."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch  # type: ignore[import-not-found]
import transfer_queue as tq  # type: ignore[import-not-found]
from verl import DataProto  # type: ignore[import-not-found]
from verl.experimental.agent_loop.agent_loop import AgentLoopManager  # type: ignore[import-not-found]
from verl.experimental.reward_loop.reward_loop import RewardLoopWorker  # type: ignore[import-not-found]

from sandgate.contract.errors import BadManifest, InvalidBody
from sandgate.contract.trajectory import Trajectory
from sandgate.trainer.client.gateway_manager import GatewayManager, HttpGateway
from sandgate.trainer.testing import RunningGateway, gateway
from sandgate.trainer.tinymodel import write_tiny_model
from sandgate.trainer.verl import (
    CliAgentFramework,
    CliRunner,
    Lengths,
    NoReward,
    NotCompleted,
    NotStarted,
    NoTurns,
    OpenAICompatibleAgentFramework,
    per_trajectory,
    reward_loop_score,
    runner_configs,
)
from sandgate.trainer.verl.dataproto import objects
from sandgate.trainer.verl.rewards import returned
from sandgate.trainer.verl.timing import timed
from tests.trainer.verl import agents
from tests.trainer.verl.recipe import composed
from tests.trainer.verl.rows import row

pytestmark = pytest.mark.asyncio(loop_scope="module")

LENGTHS = Lengths(64, 64)
CHAT = "tests.trainer.verl.agents.chat"


def configs(**runners: dict[str, Any]) -> Any:
    return runner_configs({"agent_runners": runners or {"chat": {"runner_fqn": CHAT}}})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def one() -> AsyncIterator[RunningGateway]:
    """A gateway process over a scripted engine."""
    async with gateway(["hello"]) as found:
        yield found


def running(one: RunningGateway, runners: Any = None, **options: Any) -> OpenAICompatibleAgentFramework:
    """A framework over it."""
    manager = GatewayManager([HttpGateway(one.client)])
    return OpenAICompatibleAgentFramework(manager, runners or configs(), LENGTHS, **options)


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


async def test_a_batch_of_prompts_becomes_a_batch_of_rows(one: RunningGateway) -> None:
    framework = running(one)
    out = await framework.generate_sequences(batch(group(2) + group(1, "q2")))
    assert out.non_tensor_batch["uid"].tolist() == ["q1", "q1", "q2"]
    assert out.non_tensor_batch["data_source"].tolist() == ["shop"] * 3
    assert out.batch["rm_scores"].sum(-1).tolist() == [1.0, 1.0, 1.0]
    assert out.batch["response_mask"].sum(-1).tolist() == [6, 6, 6]  # hello and the end of the turn


@pytest.mark.parametrize("how", ["raise", "base", "cancel", "exit"])
async def test_a_failed_session_is_aborted_and_its_siblings_are_kept(one: RunningGateway, how: str) -> None:
    framework = running(one)
    before = {session["session_id"] async for session in one.client.sessions()}
    out = await framework.generate_sequences(batch(group(3, s1=how)))
    after = [session async for session in one.client.sessions()]
    states = sorted(session["state"] for session in after if session["session_id"] not in before)
    assert out.non_tensor_batch["sandgate_session"].shape == (2,)
    assert states == ["aborted", "finalized", "finalized"]
    assert framework.sessions.gateways.load == [0]


async def test_a_batch_that_must_align_has_a_masked_row_for_a_failed_session(one: RunningGateway) -> None:
    framework = running(one)
    out = await framework.generate_aligned(batch(group(2, s1="raise")))
    assert len(out) == 2
    assert out.batch["response_mask"].sum(-1).tolist() == [6, 0]
    assert out.batch["rm_scores"].sum(-1).tolist() == [1.0, 1.0]  # the group's mean


LIMITS: dict[str, tuple[dict[str, Any], str]] = {
    "the window": ({}, "ContextExceeded"),
    "its time": ({"time": True}, "SessionTimeout"),
}


@pytest.mark.parametrize("truncated", ["score", "mask"])
@pytest.mark.parametrize(("asked", "reason"), LIMITS.values(), ids=LIMITS)
async def test_a_truncated_episode_is_a_row_that_says_so_and_is_scored_or_masked(
    one: RunningGateway, asked: dict[str, Any], reason: str, truncated: Any
) -> None:
    """The agent goes on until it is refused, and fails of that; the gateway is told verl's lengths."""
    runner = {"runner_fqn": "tests.trainer.verl.agents.endless", "runner_kwargs": asked}
    framework = running(one, configs(on=runner), truncated=truncated)
    out = await framework.generate_sequences(batch(group(2)))
    assert out.non_tensor_batch["sandgate_failure"].tolist() == [reason] * 2
    assert all((out.non_tensor_batch["__num_turns__"] >= 4).tolist())
    assert out.batch["response_mask"].any(-1).tolist() == [truncated == "score"] * 2
    if truncated == "score":
        assert out.batch["rm_scores"].sum(-1).tolist() == [0.0, 0.0]
    left = {"rows/left_out/truncated": 0.0 if truncated == "score" else 2.0}
    assert left.items() <= framework.counters.metrics().items()


async def test_in_validation_a_truncated_episode_counts_though_training_masks_it(
    one: RunningGateway,
) -> None:
    runner = {"runner_fqn": "tests.trainer.verl.agents.endless"}
    framework = running(one, configs(on=runner), truncated="mask", truncated_reward=-1.0)
    asked = batch(group(2))
    asked.meta_info["validate"] = True
    out = await framework.generate_aligned(asked)
    assert out.batch["rm_scores"].sum(-1).tolist() == [-1.0, -1.0]
    assert out.non_tensor_batch["sandgate_left_out"].tolist() == ["", ""]


@pytest.mark.parametrize(("validate", "rows"), [(False, ["q7_0_0", "q7_1_0"]), (True, ["q7_0_0"])])
async def test_a_lone_survivor_has_a_masked_row_beside_it_in_training_alone(
    one: RunningGateway, queue: None, validate: bool, rows: list[str]
) -> None:
    (prompt,) = group(1, "q7", s1="raise", s2="raise")
    prompt |= {"raw_prompt": [{"role": "user", "content": "hi"}], "global_steps": 3}
    await running(one, n=3, validation_n=3).run_prompt(prompt, validate=validate)
    partition = "val" if validate else "train"
    tags = tq.kv_list(partition_id=partition)[partition]
    assert sorted(tags) == ["q7", *rows]
    assert tags["q7"]["status"] == "finished"
    # verl's v1 trainer: its metrics of every step
    assert np.array([tags[key]["min_global_steps"] for key in rows], dtype=int).tolist() == [0] * len(rows)


async def test_a_truncated_episode_that_the_agent_scored_keeps_that_score(one: RunningGateway) -> None:
    runner = {"runner_fqn": "tests.trainer.verl.agents.endless", "runner_kwargs": {"score": 0.25}}
    framework = running(one, configs(on=runner), truncated_reward=-1.0)
    out = await framework.generate_sequences(batch(group(1)))
    assert out.batch["rm_scores"].sum(-1).tolist() == [0.25]


async def test_a_prompt_over_verls_length_is_refused_before_it_is_sampled(one: RunningGateway) -> None:
    framework = OpenAICompatibleAgentFramework(
        GatewayManager([HttpGateway(one.client)]), configs(), Lengths(2, 64)
    )
    with pytest.raises(NoTurns, match="sampled nothing; prompts may have 2 tokens"):
        await framework.generate_sequences(batch(group(1)))


async def test_a_batch_of_failures_raises_the_first(one: RunningGateway) -> None:
    framework = running(one)
    with pytest.raises(RuntimeError, match="the agent broke"):
        await framework.generate_sequences(batch(group(1, s0="raise")))


async def test_agent_name_selects_the_runner(one: RunningGateway) -> None:
    both = configs(
        bad={"runner_fqn": CHAT, "runner_kwargs": {"reward": 0.0}},
        good={"runner_fqn": "tests.trainer.verl.agents.Chatter", "runner_kwargs": {"reward": 0.5}},
    )
    framework = running(one, both)
    rows = [{"uid": "a", "agent_name": "good"}, {"uid": "b", "agent_name": "bad"}]
    out = await framework.generate_sequences(batch(rows))
    assert out.batch["rm_scores"].sum(-1).tolist() == [0.5, 0.0]
    with pytest.raises(InvalidBody, match="no runner 'nobody'; there are bad, good"):
        framework.sessions.runner_of("nobody")
    with pytest.raises(InvalidBody, match="agent_name: must be a string, not None"):
        framework.sessions.runner_of(None)


async def test_the_cap_of_a_runner_is_its_own(one: RunningGateway) -> None:
    agents.PEAK.clear()
    both = configs(
        capped={
            "runner_fqn": CHAT,
            "runner_kwargs": {"name": "capped", "meet": 2},
            "max_concurrent_sessions": 2,
        },
        free={"runner_fqn": CHAT, "runner_kwargs": {"name": "free", "meet": 6}},
    )
    framework = running(one, both)
    rows = [{"uid": f"{name}-{at}", "agent_name": name} for name in ("capped", "free") for at in range(6)]
    assert len(await framework.generate_sequences(batch(rows))) == 12
    assert agents.PEAK == {"capped": 2, "free": 6}


async def test_the_final_trajectory_is_scored_and_the_others_get_the_same(one: RunningGateway) -> None:
    asked: list[Trajectory] = []

    async def score(row: Trajectory, columns: Any) -> tuple[float, dict[str, Any]]:
        asked.append(row)
        return 0.125, {"acc": 1.0}

    fork = {"runner_fqn": "tests.trainer.verl.agents.forked"}
    framework = running(one, configs(fork=fork), score=score)
    out = await framework.generate_sequences(batch(group(1)))
    assert [row.trajectory_id for row in asked] == [1]
    assert out.non_tensor_batch["sandgate_trajectory"].tolist() == [0, 1]
    assert out.batch["rm_scores"].sum(-1).tolist() == [0.125, 0.125]
    assert out.non_tensor_batch["acc"].tolist() == [1.0, 1.0]


SCORER = """
async def compute_score(data_source, solution_str, ground_truth, extra_info, **_):
    said = {"source": data_source, "truth": ground_truth, "session": extra_info["sandgate_session"]}
    return said | {"score": float(solution_str == "hello"), "turns": int(extra_info["num_turns"])}
"""


async def test_verls_own_reward_loop_scores_what_nobody_else_did(one: RunningGateway, tmp_path: Path) -> None:
    """Its worker, with a reward function of the user's; without the Ray actor around it."""
    (tmp_path / "scorer.py").write_text(SCORER)
    config = composed(
        write_tiny_model(tmp_path),
        f"reward.custom_reward_function.path={tmp_path / 'scorer.py'}",
        "reward.custom_reward_function.name=compute_score",
    )
    worker = RewardLoopWorker(config)
    handle = SimpleNamespace(compute_score=SimpleNamespace(remote=worker.compute_score))
    fork = {"runner_fqn": "tests.trainer.verl.agents.forked"}
    framework = running(one, configs(fork=fork), score=reward_loop_score([handle]))
    rows = [row | {"reward_model": {"ground_truth": "7"}, "extra_info": {}} for row in group(1)]
    out = await framework.generate_sequences(batch(rows))
    assert out.batch["rm_scores"].sum(-1).tolist() == [1.0, 1.0]
    assert out.meta_info["reward_extra_keys"] == ["source", "truth", "session", "score", "turns"]
    asked = out.non_tensor_batch["session"].tolist()
    assert asked == out.non_tensor_batch["sandgate_session"].tolist()
    assert out.non_tensor_batch["truth"].tolist() == ["7", "7"]
    assert out.non_tensor_batch["turns"].tolist() == [2, 2]


async def test_an_agent_may_upload_its_reward(one: RunningGateway) -> None:
    framework = running(one)
    out = await framework.generate_sequences(batch(group(1, s0="upload")))
    assert out.batch["rm_scores"].sum(-1).tolist() == [0.25]
    assert out.non_tensor_batch["why"].tolist() == ["half"]


async def test_a_session_that_nobody_scored_is_a_failure(one: RunningGateway) -> None:
    framework = running(one)
    with pytest.raises(NoReward, match="neither runner nor agent gave a reward"):
        await framework.generate_sequences(batch(group(1, s0="none")))


async def test_a_session_whose_score_is_no_number_fails_alone(one: RunningGateway) -> None:
    """With NaN in its scores a whole group has NaN for advantages."""

    async def score(row: Trajectory, columns: Any) -> tuple[float, dict[str, Any]]:
        return (float("nan") if row.sample_index else 0.5), {}

    framework = running(one, score=score)
    out = await framework.generate_aligned(batch(group(2, s0="none", s1="none")))
    assert out.batch["rm_scores"].sum(-1).tolist() == [0.5, 0.5]
    assert out.batch["response_mask"].any(-1).tolist() == [True, False]


SERVICE = """
import http.server, json, threading, urllib.request
def post(url, body, key):
    headers = {"content-type": "application/json", "authorization": "Bearer " + key}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    return urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request).read()
def agent(order):
    body = {"model": "tiny", "messages": order["raw_prompt"]}
    post(order["base_url"] + "/chat/completions", body, order["api_key"])
    done = {"reward_info": {"score": order["sample_index"] + 0.75}}
    if order["tools_kwargs"]["do"] != "nothing":
        post(order["complete_url"], done, order["api_key"])
class Service(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        order = json.loads(self.rfile.read(int(self.headers["content-length"])))
        threading.Thread(target=agent, args=[order]).start()
        self.send_response(503 if order["tools_kwargs"]["do"] == "refuse" else 202)
        self.end_headers()
    def log_message(self, *_): pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service)
print(server.server_port, flush=True)
server.serve_forever()
"""


@pytest.fixture(scope="module")
def service() -> Iterator[str]:
    """Somebody else's process that runs agents; its URL."""
    with subprocess.Popen([sys.executable, "-c", SERVICE], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}/agents"
        process.kill()


def elsewhere(url: str, timeout_s: float = 20.0) -> Any:
    entry = {"runner_fqn": "sandgate.trainer.verl.RemoteRunner", "runner_kwargs": {"url": url}}
    return configs(remote=entry | {"completion_timeout_s": timeout_s})


def order(do: str, size: int = 1) -> Any:
    return batch([{"uid": "q1", "tools_kwargs": {"do": do, "n": np.int64(7)}} for _ in range(size)])


async def test_an_agent_elsewhere_is_waited_for(one: RunningGateway, service: str) -> None:
    out = await running(one, elsewhere(service)).generate_sequences(order("buy", 3))
    assert out.batch["rm_scores"].sum(-1).tolist() == [0.75, 1.75, 2.75]
    assert out.batch["response_mask"].sum(-1).tolist() == [6, 6, 6]


async def test_an_agent_elsewhere_that_never_completes_is_a_failure(
    one: RunningGateway, service: str
) -> None:
    framework = running(one, elsewhere(service, 0.3))
    with pytest.raises(NotCompleted, match=r"no /complete after 0\.3 s"):
        await framework.generate_sequences(order("nothing"))
    assert framework.sessions.gateways.load == [0]


async def test_an_order_that_is_refused_is_a_failure(one: RunningGateway, service: str) -> None:
    with pytest.raises(NotStarted, match=r"/agents answered 503"):
        await running(one, elsewhere(service)).generate_sequences(order("refuse"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(NotStarted, match="ConnectError"):
        await running(one, elsewhere(f"http://127.0.0.1:{port}")).generate_sequences(order("buy"))


def test_a_remote_runner_without_a_time_to_wait_is_refused(one: RunningGateway) -> None:
    with pytest.raises(BadManifest, match=r"agent_runners\.remote\.completion_timeout_s: say how long"):
        running(one, elsewhere("http://127.0.0.1:1", 0.0))


async def test_verls_greedy_rows_are_sampled_without_chance(
    one: RunningGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    framework = running(one, sampling={"temperature": 0.5})
    seen: dict[int, Any] = {}
    run = framework.sessions.run

    async def spy(sample: Any, sampling: Any, *how: Any) -> list[Trajectory]:
        rows = await run(sample, sampling, *how)
        seen[sample.index] = rows[0].sampling["temperature"]
        return rows

    monkeypatch.setattr(framework.sessions, "run", spy)
    rows = [row | {"__do_sample__": at != 1} for at, row in enumerate(group(3))]
    out = await framework.generate_sequences(batch(rows))
    assert seen == {0: 0.5, 1: 0.0, 2: 0.5}
    assert "__do_sample__" not in out.non_tensor_batch


async def test_verls_own_manager_would_say_the_same_of_the_time_it_took(one: RunningGateway) -> None:
    out = await running(one).generate_sequences(batch(group(2) + group(1, "q2")))
    metrics = out.meta_info["metrics"]
    assert all(0 < row["generate_sequences"] < 60 for row in metrics)
    theirs = AgentLoopManager._performance_metrics(None, [metrics], out)
    ours = timed(out).meta_info
    assert "metrics" not in ours
    told = {name: value for name, value in ours["timing"].items() if not name.startswith("agent_loop/rows/")}
    assert {name: float(value) for name, value in theirs.items()} == pytest.approx(told)
    assert ours["timing"]["agent_loop/rows/taught"] == 3


RETURNED: dict[str, tuple[Any, float | None]] = {
    "a float": (0.5, 0.5),
    "an int": (2, 2.0),
    "numpy's": (np.float32(0.5), 0.5),
    "torch's": (torch.tensor(0.5), 0.5),
    "solved": (True, 1.0),
    "not solved": (np.bool_(False), 0.0),
    "nothing": (None, None),
    "an answer": ("kiwi", None),
    "several numbers": (np.zeros(2), None),
}


@pytest.mark.parametrize("case", RETURNED)
def test_what_a_runner_returns_is_a_reward_if_it_is_a_number(case: str) -> None:
    said, reward = RETURNED[case]
    assert returned(said) == reward


@pytest.mark.parametrize("said", [float("nan"), np.float32("inf"), 10**400], ids=["nan", "inf", "huge"])
def test_a_number_that_is_no_reward_is_refused(said: Any) -> None:
    with pytest.raises(InvalidBody, match="a reward is a finite number"):
        returned(said)


def test_rewards_may_be_given_to_each_trajectory() -> None:
    rows = [row(0, 1), row(0, 0)]
    found = per_trajectory(rows, [0.25, 1], {"why": "judged"})
    assert [(one.trajectory_id, one.reward) for one in found] == [(1, 1.0), (0, 0.25)]
    assert found[0].reward_info == {"score": 1.0, "why": "judged"}
    with pytest.raises(InvalidBody, match="1 rewards for 2 trajectories"):
        per_trajectory(rows, [1.0])
    with pytest.raises(InvalidBody, match=r"rewards\[1\] must be a finite number, not nan"):
        per_trajectory(rows, [1.0, float("nan")])


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


async def test_a_program_is_an_agent_and_its_exit_the_end(one: RunningGateway) -> None:
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


async def test_a_runner_that_cannot_be_imported_is_refused_at_the_start(one: RunningGateway) -> None:
    with pytest.raises(BadManifest, match=r"'no.such.runner' cannot be imported"):
        running(one, configs(a={"runner_fqn": "no.such.runner"}))


def test_numpy_makes_no_matrix_of_lists() -> None:
    assert objects([[1, 2], [3, 4]]).shape == (2,)
    assert np.array([[1, 2], [3, 4]]).shape == (2, 2)
