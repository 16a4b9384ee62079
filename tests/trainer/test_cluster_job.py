"""A trainer's job in a cluster, as far as it needs none: where it stands, its name, and what is applied."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.errors import (
    BadManifest,
    Forbidden,
    InvalidBody,
    NotFound,
    SandgateError,
    Unavailable,
)
from sandgate.contract.job import RolloutJob, TrainerSpec
from sandgate.contract.names import JOB_NAME_MAX
from sandgate.contract.schema import decode
from sandgate.operator.local.job import load_job
from sandgate.trainer.areal.own_job import over
from sandgate.trainer.client import cluster_job
from sandgate.trainer.client.cluster import ClusterPlace, place_of
from sandgate.trainer.client.cluster_job import TTL_S, Standing, manifest, own, standing
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
    "a trainer that dies ends its job": ("", TrainerSpec(), TTL_S),
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
    with pytest.raises(BadManifest, match="AReaL's episodes are its tasks") as caught:
        over(load_job(path), ["http://a"])
    assert caught.value.field == "spec.tasks"


# -- while it runs ----------------------------------------------------------------------------------------------------

RUNS = {"status": STANDINGS["it is ready"][0]}
HELD = {"status": STANDINGS["a queue holds it"][0]}
FAILED = {"status": STANDINGS["it failed"][0]}
LOOKS: dict[str, tuple[list[Any], str, int]] = {
    "it fails": ([RUNS, RUNS, FAILED], "job shop-1 failed: ProgramMissing: agent: no such file", 0),
    "it is deleted": ([RUNS, NotFound("404")], "job shop-1 was deleted", 0),
    "an API server that is away ends no job": (
        [Unavailable("503"), RUNS, Unavailable("503"), FAILED],
        "job shop-1 failed: ProgramMissing: agent: no such file",
        0,
    ),
    "nor does a right that is taken away for a while": (
        [Forbidden("403"), RUNS, NotFound("404")],
        "job shop-1 was deleted",
        0,
    ),
    "a queue that holds it is told of": ([HELD, RUNS, HELD, NotFound("404")], "job shop-1 was deleted", 2),
}


@pytest.mark.parametrize(("found", "wanted", "held"), LOOKS.values(), ids=LOOKS)
async def test_what_ends_a_job_is_told(
    monkeypatch: pytest.MonkeyPatch, found: list[Any], wanted: str, held: int
) -> None:
    answers, ended, holds = iter(found), list[SandgateError](), []

    def rollout_job(name: str, place: ClusterPlace) -> Any:
        answer = next(answers)
        if isinstance(answer, SandgateError):
            raise answer
        return answer

    monkeypatch.setattr(cluster_job, "rollout_job", rollout_job)
    monkeypatch.setattr(cluster_job, "LOOK_S", 0.0)
    await cluster_job._look("shop-1", ClusterPlace("lab"), ended.append, lambda: holds.append(1))
    assert [str(one) for one in ended] == [wanted]
    assert len(holds) == held
    assert not list(answers)
