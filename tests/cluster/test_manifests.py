"""The objects of a job, before a real API server: it knows every field, and applying them again changes nothing."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Iterator

import pytest

from sandgate.operator.kinds import Ref
from sandgate.operator.manifests import Json
from sandgate.operator.manifests.example import session_objects
from tests.cluster.harness.api import Api
from tests.cluster.harness.rest import APPLY, Refused
from tests.contract.manifests import Manifest, put
from tests.operator.broken_pods import BROKEN, GOOD_POD
from tests.operator.manifest_jobs import (
    ENDPOINTS,
    JOBS,
    MANAGED,
    SELECTED,
    SETTINGS,
    job,
    objects,
    one,
    pod_specs,
)

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


def test_keys_are_accepted(apiserver: Api, namespace: str) -> None:
    made = session_objects(job(placed(ENDPOINTS, namespace)), SETTINGS)
    secret = one(made, "Secret")
    assert apply(apiserver, secret) == apply(apiserver, secret)


CHANGES: dict[str, tuple[str, object]] = {
    "another sampling": ("spec.sampling.temperature", 0.5),
    "more gateways": ("spec.gateway.replicas", 5),
    "another image": ("spec.gateway.image", "sandgate-gateway:2"),
    "another placement": ("spec.gateway.beside", "Anywhere"),
    "more engines": ("spec.engine.managed.replicas", 3),
    "further arguments of the engine": ("spec.engine.managed.args", ["--seed=2"]),
    "another way out for agents": ("spec.agent.egress", [{"to": [{"ipBlock": {"cidr": "198.51.100.0/24"}}]}]),
    "no isolation": ("spec.agent.isolation", "Off"),
}


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


def test_a_template_s_misspelt_field_is_refused_by_name(apiserver: Api, namespace: str) -> None:
    """Templates are the API server's to check: what the overlay lets through, it does not."""
    made = placed(SELECTED, namespace)
    put(made, "spec.gateway.template", {"spec": {"priorityClasName": "high"}})
    wrong = one(objects(job(made)), "StatefulSet")
    with pytest.raises(Refused, match="priorityClasName"):
        apply(apiserver, wrong)
