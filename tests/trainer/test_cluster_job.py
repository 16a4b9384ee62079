"""A trainer's job in a cluster, as far as it needs none: where it stands, its name, and what is applied."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

from sandgate.contract.errors import (
    BadManifest,
    BadRequest,
    Forbidden,
    InvalidBody,
    NotFound,
    SandgateError,
    Unavailable,
)
from sandgate.contract.job import RolloutJob, Task, TrainerSpec
from sandgate.contract.manifest_decoder import decode
from sandgate.contract.names import JOB_NAME_MAX
from sandgate.operator.local.job import load_job
from sandgate.trainer.areal.own_job import over
from sandgate.trainer.client import cluster_job, pushed_groups
from sandgate.trainer.client.cluster import ClusterPlace, place_of
from sandgate.trainer.client.cluster_job import (
    COLLECT_S,
    HEARTBEAT_S,
    TTL_S,
    Standing,
    manifest,
    own,
    standing,
)
from sandgate.trainer.client.pushed_groups import PushedGroups
from sandgate.trainer.verl.jobs.manifest import job_of
from tests.trainer.test_verl_jobs import settings
from tests.trainer.verl.jobs import write_job


def condition(kind: str, status: str, reason: str, message: str = "") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


READY = condition("Ready", "True", "GatewaysAndEnginesReady")
STANDINGS: dict[str, tuple[dict[str, Any], Standing]] = {
    "nobody has seen it": (
        {},
        Standing(ready=False, failed=False, held=False, words="no operator has seen it yet"),
    ),
    "an engine is waited for": (
        {"reason": "NoEngine", "conditions": [condition("Ready", "False", "NoEngine", "http://a: refused")]},
        Standing(ready=False, failed=False, held=False, words="NoEngine: http://a: refused"),
    ),
    "it is ready": (
        {"reason": "Waiting", "conditions": [READY, condition("Suspended", "False", "NotSuspended")]},
        Standing(ready=True, failed=False, held=False, words="Waiting"),
    ),
    "a queue holds it": (
        {
            "reason": "QueuedByKueue",
            "conditions": [READY, condition("Suspended", "True", "QueuedByKueue", "no quota")],
        },
        Standing(ready=False, failed=False, held=True, words="QueuedByKueue: no quota"),
    ),
    "it failed": (
        {
            "reason": "ProgramMissing",
            "conditions": [READY, condition("Failed", "True", "ProgramMissing", "agent: no such file")],
        },
        Standing(ready=True, failed=True, held=False, words="ProgramMissing: agent: no such file"),
    ),
}


@pytest.mark.parametrize(("status", "wanted"), STANDINGS.values(), ids=STANDINGS)
def test_where_a_job_stands(status: dict[str, Any], wanted: Standing) -> None:
    assert standing({"status": status} if status else {}) == wanted


@pytest.mark.parametrize("name", ["ask", "a" * JOB_NAME_MAX, "a" * (JOB_NAME_MAX - 8) + "-bcdefgh"])
def test_each_start_has_a_job_of_its_own(tmp_path: Path, name: str) -> None:
    job = load_job(write_job(tmp_path, **{"{name: ask}": f"{{name: {name}}}"}))
    names = {own(job).metadata.name for _ in range(3)}
    assert len(names) == 3
    for one in names:
        assert len(one) <= JOB_NAME_MAX
        assert re.fullmatch(r"[a-z]+-[0-9a-f]{6}", one)


GIVEN: dict[str, tuple[str, TrainerSpec, int]] = {
    "a trainer that dies ends its job": (
        "",
        TrainerSpec(heartbeat_seconds=HEARTBEAT_S, collect_seconds=COLLECT_S),
        TTL_S,
    ),
    "as the manifest says": (
        "  trainer: {heartbeatSeconds: 90, collectSeconds: 300}\n  ttlSecondsAfterFinished: 0\n",
        TrainerSpec(heartbeat_seconds=90, collect_seconds=300),
        0,
    ),
}


@pytest.mark.parametrize(("more", "trainer", "ttl"), GIVEN.values(), ids=GIVEN)
def test_what_is_applied_is_the_manifest_and_its_end(
    tmp_path: Path, more: str, trainer: TrainerSpec, ttl: int
) -> None:
    path = write_job(tmp_path, **{"  parallelism: 4\n": f"  parallelism: 4\n{more}"})
    asked = settings(tmp_path, cluster=ClusterPlace("lab"))
    job = own(job_of(load_job(path), asked, ["http://10.0.0.7:4000/0"], validate=False))
    body = manifest(job)
    again = decode(RolloutJob, body)
    assert again.spec == job.spec
    assert again.metadata.name == job.metadata.name
    assert (again.spec.trainer, again.spec.ttl_seconds_after_finished) == (trainer, ttl)
    assert again.spec.engine.endpoints == ("http://10.0.0.7:4000/0",)
    assert again.spec.model.tokenizer == "model", "verl's folder is not in the pods"
    assert again.spec.model.max_model_len == 256
    assert "status" not in body
    assert body["metadata"].keys() == {"name", "labels", "annotations"}


PLACES: dict[str, tuple[Any, ClusterPlace]] = {
    "the pod's own, or the kubeconfig's": (True, ClusterPlace()),
    "a namespace": ({"namespace": "rl"}, ClusterPlace("rl")),
    "all of it": (
        {"namespace": "rl", "context": "lab", "kubeconfig": "/k"},
        ClusterPlace("rl", "lab", "/k"),
    ),
}


@pytest.mark.parametrize(("said", "place"), PLACES.values(), ids=PLACES)
def test_places(said: Any, place: ClusterPlace) -> None:
    assert place_of(said) == place


@pytest.mark.parametrize("said", ["rl", 1, {"namespaces": "rl"}, {"namespace": 3}, ["rl"], None])
def test_no_place(said: Any) -> None:
    with pytest.raises(
        InvalidBody, match="cluster must be true, or have texts for any of namespace, context"
    ):
        place_of(said)


def test_areals_job_is_the_manifests_over_its_own_servers(tmp_path: Path) -> None:
    job = load_job(write_job(tmp_path, **{"  parallelism: 4\n": "  parallelism: 4\n  groupSize: 3\n"}))
    made = over(job, ["http://10.0.0.7:1", "http://10.0.0.8:1"])
    assert made.spec.engine.endpoints == ("http://10.0.0.7:1", "http://10.0.0.8:1")
    assert made.spec.group_size == 3
    assert made.spec.model == job.spec.model


def test_areals_job_has_its_episodes_as_tasks(tmp_path: Path) -> None:
    path = write_job(tmp_path, **{"tasks: {queue: {}}": "tasks: {inline: [{uid: a, prompt: b}]}"})
    with pytest.raises(BadManifest, match="AReaL pushes its prompts") as caught:
        over(load_job(path), ["http://a"])
    assert caught.value.field == "spec.tasks"


# -- while it runs ----------------------------------------------------------------------------------------------------

RUNS = {"status": STANDINGS["it is ready"][0]}
HELD = {"status": STANDINGS["a queue holds it"][0]}
FAILED = {"status": STANDINGS["it failed"][0]}
LOOKS: dict[str, tuple[list[Any], str, int]] = {
    "it fails": ([RUNS, RUNS, FAILED], "job shop-1 failed: ProgramMissing: agent: no such file", 0),
    "it is deleted": ([RUNS, NotFound("404")], "job shop-1 failed: it was deleted", 0),
    "an API server that is away ends no job": (
        [Unavailable("503"), RUNS, Unavailable("503"), FAILED],
        "job shop-1 failed: ProgramMissing: agent: no such file",
        0,
    ),
    "nor does a right that is taken away for a while": (
        [Forbidden("403"), RUNS, NotFound("404")],
        "job shop-1 failed: it was deleted",
        0,
    ),
    "nor does a kubeconfig that is being written": (
        [BadRequest("no cluster"), RUNS, NotFound("404")],
        "job shop-1 failed: it was deleted",
        0,
    ),
    "a queue that holds it is told of": (
        [HELD, RUNS, HELD, NotFound("404")],
        "job shop-1 failed: it was deleted",
        2,
    ),
}


@pytest.mark.parametrize(("found", "wanted", "held"), LOOKS.values(), ids=LOOKS)
async def test_what_ends_a_job_is_told(
    monkeypatch: pytest.MonkeyPatch, found: list[Any], wanted: str, held: int
) -> None:
    answers, ended, stood = iter(found), list[SandgateError](), list[Standing]()

    def rollout_job(name: str, place: ClusterPlace) -> Any:
        answer = next(answers)
        if isinstance(answer, SandgateError):
            raise answer
        return answer

    monkeypatch.setattr(cluster_job, "rollout_job", rollout_job)
    monkeypatch.setattr(cluster_job, "LOOK_S", 0.0)
    await cluster_job._look("shop-1", ClusterPlace("lab"), ended.append, stood.append)
    assert [str(one) for one in ended] == [wanted]
    assert sum(one.held for one in stood) == held
    assert not list(answers)


# -- while its gateways are away --------------------------------------------------------------------------------------


class Fleet:
    """Gateways that come and go. `rounds`: what a stream of groups ends with, None: nothing more comes."""

    def __init__(self, *rounds: Exception | None) -> None:
        self.rounds = list(rounds)
        self.pushes: list[Exception | None] = []
        self.streams = 0

    def groups(self, **_: Any) -> Any:
        self.streams += 1
        return Stream(self.rounds.pop(0))

    async def push_tasks(self, tasks: Any) -> None:
        error = self.pushes.pop(0) if self.pushes else None
        if error is not None:
            raise error


class Stream:
    def __init__(self, end: Exception | None) -> None:
        self.end = end

    async def __aenter__(self) -> Stream:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing is held."""

    def __aiter__(self) -> Stream:
        return self

    async def __anext__(self) -> Any:
        if self.end is not None:
            raise self.end
        raise StopAsyncIteration


AWAY = Unavailable("no gateway answers")
ROUNDS: dict[str, tuple[bool, list[Exception | None], int, str]] = {
    "of a job that is held they are asked again": (True, [AWAY, AWAY, None], 3, "the job is over"),
    "of one that is ready they are lost": (False, [AWAY], 1, "no gateway answers"),
    "another error is none of theirs": (True, [Forbidden("a key")], 1, "a key"),
}


@pytest.mark.parametrize(("away", "rounds", "streams", "why"), ROUNDS.values(), ids=ROUNDS)
async def test_gateways_that_are_away(
    monkeypatch: pytest.MonkeyPatch, away: bool, rounds: list[Any], streams: int, why: str
) -> None:
    monkeypatch.setattr(pushed_groups, "AGAIN_S", 0.0)
    fleet = Fleet(*rounds)
    made = PushedGroups(cast("Any", fleet), lambda: 0.0)
    made.away = away
    await made.collect()
    assert why in str(made.failed)
    assert fleet.streams == streams


async def test_prompts_are_pushed_when_the_gateways_are_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pushed_groups, "AGAIN_S", 0.0)
    fleet = Fleet()
    made = PushedGroups(cast("Any", fleet), lambda: 0.0)
    fleet.pushes = [AWAY]
    with pytest.raises(Unavailable, match="no gateway answers"):
        await made.push([Task(uid="a", prompt="x")])
    made.away, fleet.pushes = True, [AWAY, AWAY, None]
    assert len(await made.push([Task(uid="a", prompt="x")])) == 1


LAST_WORDS = """
import asyncio, atexit, sys
from sandgate.trainer.client import cluster_job, pushed_groups
from sandgate.trainer.client.cluster import ClusterPlace
from sandgate.trainer.client.loop_thread import LoopThread

cluster_job.rollout_job = lambda name, place: {"status": {}}
cluster_job.delete_job = lambda name, place: print("deleted", name, flush=True)
loop = LoopThread()
if sys.argv[1] == "used":
    loop.run(asyncio.to_thread(int))
atexit.register(lambda: loop.run(cluster_job._delete("shop-1", ClusterPlace(), failed_too=False)))
"""


@pytest.mark.parametrize("executor", ["used", "unused"])
def test_a_process_that_ends_takes_its_job_with_it(executor: str) -> None:
    """At its exit an interpreter begins no threads."""
    said = subprocess.run(
        [sys.executable, "-c", LAST_WORDS, executor], capture_output=True, text=True, timeout=60, check=True
    )
    assert (said.stdout, said.stderr) == ("deleted shop-1\n", "")
