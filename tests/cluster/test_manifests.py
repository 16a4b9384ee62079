"""The objects of a job, before a real API server: it knows every field, and applying them again changes nothing."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from sandgate.operator.kubernetes.kinds import Ref
from sandgate.operator.manifests import Json, engine_objects, gateway_objects
from sandgate.operator.manifests.example_session import session_objects
from tests.cluster.harness.api import Api
from tests.cluster.harness.rest import APPLY, Refused
from tests.contract.manifests import GONE, Manifest, put
from tests.operator.broken_pods import BROKEN, GOOD_POD
from tests.operator.manifest_jobs import (
    ENDPOINTS,
    JOBS,
    MANAGED,
    SECRET,
    SELECTED,
    SETTINGS,
    container,
    job,
    objects,
    one,
    pod_specs,
)
from tests.support.waiting import until_now

CRDS = Path(__file__).parents[2] / "crds"
FORCE = "fieldManager=sandgate&force=true&fieldValidation=Strict"
DRY = "dryRun=All&fieldValidation=Strict"


@pytest.fixture
def namespace(apiserver: Api, request: pytest.FixtureRequest) -> Iterator[str]:
    """Of this test alone; it enforces the Pod Security profile `restricted`."""
    with apiserver.namespace(f"manifests-{zlib.crc32(request.node.name.encode())}") as made:
        yield made


def placed(manifest: Manifest, namespace: str) -> Manifest:
    """A copy, to be spoilt."""
    made = copy.deepcopy(manifest)
    put(made, "metadata.namespace", namespace)
    return made


def apply(api: Api, made: Json) -> str:
    """Its resourceVersion."""
    path = f"{Ref.of(made).path}?{FORCE}"
    done = api.rest().call("PATCH", path, made, content_type=APPLY)
    return str(done["metadata"]["resourceVersion"])


def admit(api: Api, namespace: str, spec: Json) -> None:
    """Would a pod of this spec be let in? Raises Refused."""
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "asked"}, "spec": spec}
    api.rest().create(f"/api/v1/namespaces/{namespace}/pods?{DRY}", pod)


@pytest.mark.parametrize("manifest", JOBS.values(), ids=JOBS)
def test_all_objects_are_accepted_and_a_second_apply_changes_nothing(
    apiserver: Api, namespace: str, manifest: Manifest
) -> None:
    found = objects(job(placed(manifest, namespace)))
    first = [apply(apiserver, each) for each in found]
    assert [apply(apiserver, each) for each in found] == first


@pytest.mark.parametrize("manifest", JOBS.values(), ids=JOBS)
def test_all_pods_are_let_into_a_restricted_namespace(
    apiserver: Api, namespace: str, manifest: Manifest
) -> None:
    """Admission only warns about a StatefulSet's template; it is the pods that would be refused."""
    made = job(placed(manifest, namespace))
    specs = pod_specs(objects(made) + session_objects(made, SETTINGS))
    for spec in specs:
        volumes = [each for each in spec.get("volumes", []) if each["name"] != "journal"]
        if any(each["name"] == "journal" for each in spec["containers"][0].get("volumeMounts", [])):
            volumes.append({"name": "journal", "emptyDir": {}})  # what the StatefulSet would put there
        admit(apiserver, namespace, spec | {"volumes": volumes})
    assert len(specs) == (4 if manifest is MANAGED else 3)  # gateway, agent, verifier; and the engine


@pytest.mark.parametrize(("said", "spec"), BROKEN.items(), ids=BROKEN)
def test_admission_refuses_what_the_checker_refuses(
    apiserver: Api, namespace: str, said: str, spec: Json
) -> None:
    # An API server without --allow-privileged refuses such a pod before any profile does.
    with pytest.raises(Refused, match=r"violates PodSecurity|disallowed by cluster policy"):
        admit(apiserver, namespace, spec)


def test_admission_lets_in_what_the_checker_lets_in(apiserver: Api, namespace: str) -> None:
    admit(apiserver, namespace, GOOD_POD)


@pytest.fixture(scope="module")
def kinds(apiserver: Api) -> None:
    """RolloutJob and AgentSession are there."""
    for file in sorted(CRDS.glob("*.yaml")):
        apiserver.apply(yaml.safe_load(file.read_text("utf-8")))
    group, rest = "/apis/sandgate.dev/v1alpha1", apiserver.rest()
    until_now(lambda: rest.answers(f"{group}/rolloutjobs"), what="RolloutJobs are served")
    until_now(lambda: rest.answers(f"{group}/agentsessions"), what="AgentSessions are served")


@pytest.mark.usefixtures("kinds")
@pytest.mark.parametrize("kind", ["AgentSession", "Secret"])
def test_a_session_and_its_keys_are_accepted(apiserver: Api, namespace: str, kind: str) -> None:
    made = one(session_objects(job(placed(ENDPOINTS, namespace)), SETTINGS), kind)
    assert apply(apiserver, made) == apply(apiserver, made)


@pytest.mark.usefixtures("kinds")
@pytest.mark.parametrize("manifest", JOBS.values(), ids=JOBS)
def test_the_jobs_themselves_are_accepted(apiserver: Api, namespace: str, manifest: Manifest) -> None:
    made = placed(manifest, namespace)
    put(made, "metadata.uid", GONE)  # the API server's own
    assert apply(apiserver, made) == apply(apiserver, made)


CHANGES: dict[str, tuple[str, object]] = {
    "more gateways": ("spec.gateway.replicas", 5),
    "more engines": ("spec.engine.managed.replicas", 3),
    "another shard": ("metadata.labels", {"sandgate.dev/shard": "green"}),
    "no shard": ("metadata.labels", {}),
}
NEWER = replace(
    SETTINGS,
    gateway_image="sandgate-gateway:2",
    engine_image="vllm:2",
    pull_policy="Always",
    pull_secrets=("registry",),
    models_dir="/srv/models",
    dns_namespace="dns",
    operator_namespace="elsewhere",
    gateway_resources={"requests": {"cpu": "2"}},
)
"""As another release of the chart may have them."""


@pytest.mark.parametrize(("path", "value"), CHANGES.values(), ids=CHANGES)
def test_a_job_may_change_while_its_objects_are_there(
    apiserver: Api, namespace: str, path: str, value: object
) -> None:
    made = placed(MANAGED, namespace)
    for each in objects(job(made)):
        apply(apiserver, each)
    put(made, path, value)
    for each in objects(job(made)):
        apply(apiserver, each)


def test_a_newer_installation_takes_over_the_objects_of_an_older_one(apiserver: Api, namespace: str) -> None:
    """Also what it no longer says: with server-side apply that goes."""
    made = job(placed(MANAGED, namespace))
    for settings in (SETTINGS, NEWER):
        urls = ("http://10.0.0.9:8000",) if settings is NEWER else ()
        found = gateway_objects(made, settings, engine_urls=urls, secret_hex=SECRET)
        found += engine_objects(made, settings)
        for each in found:
            apply(apiserver, each)
    pods = apiserver.rest().get(Ref("StatefulSet", namespace, "shop-gateway").path)
    assert container(pods)["resources"] == {"requests": {"cpu": "2"}}
    assert container(pods)["image"] == "sandgate-gateway:2"


def test_a_template_s_misspelt_field_is_refused_by_name(apiserver: Api, namespace: str) -> None:
    """Templates are the API server's to check: what the overlay lets through, it does not."""
    made = placed(SELECTED, namespace)
    put(made, "spec.gateway.template", {"spec": {"priorityClasName": "high"}})
    wrong = one(objects(job(made)), "StatefulSet")
    with pytest.raises(Refused, match="priorityClasName"):
        apply(apiserver, wrong)
