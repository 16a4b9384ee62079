"""Engines of a job that names no image: whoever upgrades the operator starts none anew that serves."""

from __future__ import annotations

from typing import Any

import pytest

from sandgate.contract.names import engines_name
from sandgate.operator.cluster.provision import provide
from sandgate.operator.manifests import Settings, engine_objects, keep_image
from sandgate.operator.plan.actions import Provided
from tests.operator.fake_kube import FakeKube
from tests.operator.manifest_jobs import MANAGED, job, manifest, one

OLD, NEW = Settings(engine_image="vllm:1"), Settings(engine_image="vllm:2")
Json = dict[str, Any]


def engines(settings: Settings, *, running: bool = True, **fields: Any) -> Json:
    made = job(manifest(("spec.engine", {"managed": fields})))
    return one(engine_objects(made, settings, running=running), "Deployment")


def serving(deployment: Json, ready: int = 1) -> Json:
    return {**deployment, "status": {"readyReplicas": ready}}


def image(deployment: Json) -> str:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return str(container["image"])


OWN: Json = {"template": {"spec": {"containers": [{"name": "engine", "image": "own:1"}]}}}
UNNOTED = engines(OLD)
UNNOTED["metadata"].pop("annotations")

CASES: dict[str, tuple[Json, Json, str]] = {
    "one that serves keeps the image it was made with": (engines(NEW), serving(engines(OLD)), "vllm:1"),
    "the same default is the same image": (engines(OLD), serving(engines(OLD)), "vllm:1"),
    "one that is down takes the new default": (engines(NEW), engines(OLD), "vllm:2"),
    "one of which none is ready takes the new default": (engines(NEW), serving(engines(OLD), 0), "vllm:2"),
    "one that is let go of takes it": (engines(NEW, running=False), serving(engines(OLD)), "vllm:2"),
    "an image that the job names is the job's": (engines(NEW, image="own:2"), serving(engines(OLD)), "own:2"),
    "one that the job names no more is not kept": (
        engines(NEW),
        serving(engines(OLD, image="own:1")),
        "vllm:2",
    ),
    "a template's image is the job's": (engines(NEW, **OWN), serving(engines(OLD, **OWN)), "own:1"),
    "whose default is not known takes the new one": (engines(NEW), serving(UNNOTED), "vllm:2"),
}


@pytest.mark.parametrize(("wanted", "found", "expected"), CASES.values(), ids=CASES)
def test_of_engines(wanted: Json, found: Json, expected: str) -> None:
    kept = keep_image(wanted, found)
    assert image(kept) == expected
    assert keep_image(wanted, kept | {"status": found.get("status")}) == kept, "asked again, it says the same"


async def test_an_operator_of_another_default_leaves_them_alone() -> None:
    kube, made = FakeKube(lambda: 0.0), job(MANAGED)
    await provide(kube, made, OLD, Provided.RUNNING, {})
    ref = "Deployment", made.metadata.namespace, engines_name(made.metadata.name)
    await kube.apply(serving(await kube.get(*ref)))
    before = (await kube.get(*ref))["spec"]["template"]
    await provide(kube, made, NEW, Provided.RUNNING, {})
    assert (await kube.get(*ref))["spec"]["template"] == before
    await provide(kube, made, NEW, Provided.IDLE, {})
    assert image(await kube.get(*ref)) == "vllm:2"
