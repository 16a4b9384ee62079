"""What only works on one machine is refused in a cluster, naming the field."""

from __future__ import annotations

from typing import Any

import pytest

from sandgate.contract.errors import BadManifest, Unsupported
from sandgate.operator.manifests import check_cluster
from tests.contract.manifests import GONE
from tests.operator.manifest_jobs import ENDPOINTS, MANAGED, job, manifest

AGENT = "spec.agent.template.spec.containers[0]"
JUDGE = "spec.reward.verifier.container"
BAD: dict[str, tuple[type[Exception], str, list[tuple[str, Any]]]] = {
    "a file of tasks is on nobody's disk": (
        Unsupported,
        "spec.tasks.file",
        [("spec.tasks", {"file": "tasks.jsonl"})],
    ),
    "an agent that is a local process": (
        Unsupported,
        "spec.agent.backend",
        [("spec.agent.backend", "Process")],
    ),
    "files beside nothing": (
        BadManifest,
        "spec.output.parquet.url",
        [("spec.output", {"parquet": {"url": "out/files"}})],
    ),
    "beside engines that are anywhere": (
        Unsupported,
        "spec.gateway.beside",
        [("spec.gateway.beside", "Required")],
    ),
    "a tokenizer beside the manifest's folder": (
        BadManifest,
        "spec.model.tokenizer",
        [("spec.model.tokenizer", "../shop/model")],
    ),
    "weights beside it": (
        BadManifest,
        "spec.engine.managed.model",
        [("spec.engine", {"managed": {"model": "../../m"}})],
    ),
    "weights in the folder above": (
        BadManifest,
        "spec.engine.managed.model",
        [("spec.engine", {"managed": {"model": "../m"}})],
    ),
    "another port of the engine": (
        BadManifest,
        "spec.engine.managed.args[1]",
        [("spec.engine", {"managed": {"args": ["-v", "--port=9"]}})],
    ),
    "an engine on this machine": (
        BadManifest,
        "spec.engine.endpoints[1]",
        [("spec.engine.endpoints", ["http://10.0.0.5:8000", "http://127.0.0.1:8000"])],
    ),
    "an engine at localhost": (
        BadManifest,
        "spec.engine.endpoints[0]",
        [("spec.engine.endpoints", ["http://localhost:8000/v1"])],
    ),
    "an agent without an image": (BadManifest, f"{AGENT}.image", [(f"{AGENT}.image", GONE)]),
    "an agent beside the manifest": (BadManifest, f"{AGENT}.workingDir", [(f"{AGENT}.workingDir", "src")]),
    "a verifier in another folder": (
        BadManifest,
        f"{JUDGE}.workingDir",
        [(f"{JUDGE}.workingDir", "../shop")],
    ),
    "a verifier without an image": (
        BadManifest,
        f"{JUDGE}.image",
        [(JUDGE, {"command": ["judge"]})],
    ),
}


@pytest.mark.parametrize(("error", "field", "changes"), BAD.values(), ids=BAD)
def test_what_cannot_run_in_a_cluster(
    error: type[Exception], field: str, changes: list[tuple[str, Any]]
) -> None:
    with pytest.raises((BadManifest, Unsupported)) as refused:
        check_cluster(job(manifest(*changes)))
    assert type(refused.value) is error
    assert refused.value.field == field
    assert str(refused.value).startswith(f"{field}: ")


GOOD: dict[str, list[tuple[str, Any]]] = {
    "every field of the manifest's reference": [],
    "the image's own folder": [(f"{AGENT}.workingDir", "."), (f"{JUDGE}.workingDir", "./")],
    "an absolute folder": [(f"{AGENT}.workingDir", "/app")],
    "tasks from a ConfigMap": [("spec.tasks", {"configMap": {"name": "tasks"}})],
    "a relative tokenizer": [("spec.model.tokenizer", "tiny/v1")],
    "a database as journal": [("spec.gateway.journal", {"postgres": {"secretRef": {"name": "db"}}})],
    "weights from a hub": [("spec.engine", {"managed": {"model": "Qwen/Qwen3-0.6B"}})],
    "its own command may have a port": [
        ("spec.engine", {"managed": {"command": ["serve"], "args": ["--port=8000"]}})
    ],
}


@pytest.mark.parametrize("changes", GOOD.values(), ids=GOOD)
def test_what_can(changes: list[tuple[str, Any]]) -> None:
    check_cluster(job(manifest(*changes)))


@pytest.mark.parametrize("made", [MANAGED, ENDPOINTS], ids=["managed", "endpoints"])
def test_the_reviewed_jobs_can(made: dict[str, Any]) -> None:
    check_cluster(job(made))
