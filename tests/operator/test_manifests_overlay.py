"""gateway.template and engine.managed.template: what they add, and what they may not touch."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.contract.errors import BadManifest
from sandgate.operator.manifests import Json, check_cluster
from tests.operator.manifest_jobs import job, manifest, objects, one
from tests.support.podsecurity import violations


def gateway(template: Json) -> Json:
    """The gateways' PodTemplateSpec."""
    made = job(manifest(("spec.gateway.template", template)))
    check_cluster(made)
    found: Json = one(objects(made), "StatefulSet")["spec"]["template"]
    return found


def engine(template: Json, **managed: Any) -> Json:
    made = job(manifest(("spec.engine", {"managed": {**managed, "template": template}})))
    check_cluster(made)
    found: Json = one(objects(made), "Deployment")["spec"]["template"]
    return found


def of_gateway(**fields: Any) -> Json:
    return {"spec": {"containers": [{"name": "gateway", **fields}]}}


def of_engine(**fields: Any) -> Json:
    return {"spec": {"containers": [{"name": "engine", **fields}]}}


PLAIN = gateway({})
PLAIN_SPEC, PLAIN_CONTAINER = PLAIN["spec"], PLAIN["spec"]["containers"][0]
MODELS = {"name": "models", "persistentVolumeClaim": {"claimName": "m"}}
MOUNT = {"name": "models", "mountPath": "/models"}
OTHER = {"name": "other", "image": "proxy:1"}


def spec(**fields: Any) -> Json:
    return PLAIN | {"spec": PLAIN_SPEC | fields}


def only(**fields: Any) -> Json:
    return spec(containers=[PLAIN_CONTAINER | fields])


LAID: dict[str, tuple[Json, Json]] = {
    "nothing changes nothing": ({}, PLAIN),
    "labels are added": (
        {"metadata": {"labels": {"team": "rl"}}},
        PLAIN | {"metadata": PLAIN["metadata"] | {"labels": PLAIN["metadata"]["labels"] | {"team": "rl"}}},
    ),
    "a map is merged": (
        of_gateway(resources={"limits": {"cpu": "2"}}),
        only(resources={"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "4Gi", "cpu": "2"}}),
    ),
    "null takes away": (
        of_gateway(resources={"limits": None}),
        only(resources={"requests": {"cpu": "1", "memory": "1Gi"}}),
    ),
    "env is added by name": (
        of_gateway(env=[{"name": "A", "value": "1"}]),
        only(env=[*PLAIN_CONTAINER["env"], {"name": "A", "value": "1"}]),
    ),
    "a variable of the same name is replaced": (
        of_gateway(env=[{"name": "HOME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}]),
        only(
            env=[
                {"name": "HOME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
                if one["name"] == "HOME"
                else one
                for one in PLAIN_CONTAINER["env"]
            ]
        ),
    ),
    "volumes and mounts are added": (
        {"spec": {"volumes": [MODELS], **of_gateway(volumeMounts=[MOUNT])["spec"]}},
        spec(
            volumes=[*PLAIN_SPEC["volumes"], MODELS],
            containers=[PLAIN_CONTAINER | {"volumeMounts": [*PLAIN_CONTAINER["volumeMounts"], MOUNT]}],
        ),
    ),
    "a further container stands beside ours": (
        {"spec": {"containers": [OTHER]}},
        spec(containers=[PLAIN_CONTAINER, OTHER]),
    ),
    "tolerations are appended": (
        {"spec": {"tolerations": [{"key": "a", "operator": "Exists"}]}},
        spec(tolerations=[{"key": "a", "operator": "Exists"}]),
    ),
    "a user of the cluster's choice": (
        {"spec": {"securityContext": {"runAsUser": 1_000_680_000}}},
        spec(securityContext=PLAIN_SPEC["securityContext"] | {"runAsUser": 1_000_680_000}),
    ),
    "a longer grace": (
        {"spec": {"terminationGracePeriodSeconds": 600}},
        spec(terminationGracePeriodSeconds=600),
    ),
    "what we say nothing of": (
        {"spec": {"priorityClassName": "high", "nodeSelector": {"a": "b"}, "serviceAccountName": "sa"}},
        spec(priorityClassName="high", nodeSelector={"a": "b"}, serviceAccountName="sa"),
    ),
    "an image pull secret": (
        {"spec": {"imagePullSecrets": [{"name": "a"}]}},
        spec(imagePullSecrets=[{"name": "a"}]),
    ),
}


@pytest.mark.parametrize(("template", "wanted"), LAID.values(), ids=LAID)
def test_a_template_is_laid_over_ours(template: Json, wanted: Json) -> None:
    assert gateway(template) == wanted


def test_terms_are_added_to_those_that_place_gateways_beside_engines() -> None:
    mine = {"weight": 1, "podAffinityTerm": {"topologyKey": "zone"}}
    how = "preferredDuringSchedulingIgnoredDuringExecution"
    template = {"spec": {"affinity": {"podAffinity": {how: [mine]}}}}
    made = job(manifest(("spec.engine", {"managed": {}}), ("spec.gateway.template", template)))
    spec = one(objects(made), "StatefulSet")["spec"]["template"]["spec"]
    ours, theirs = spec["affinity"]["podAffinity"][how]
    assert (ours["weight"], theirs) == (100, mine)


def test_an_engine_s_cache_may_be_a_volume_that_stays_and_its_user_root() -> None:
    cache = {"name": "cache", "persistentVolumeClaim": {"claimName": "hub"}}
    made = engine({"spec": {"volumes": [cache], "securityContext": {"runAsUser": 0, "runAsNonRoot": None}}})
    assert [one for one in made["spec"]["volumes"] if one["name"] == "cache"] == [cache]
    assert made["spec"]["securityContext"]["runAsUser"] == 0
    assert "runAsNonRoot" not in made["spec"]["securityContext"]


def test_an_engine_s_resources_are_merged() -> None:
    limits = engine(of_engine(resources={"limits": {"memory": "80Gi"}}), gpus=2)["spec"]["containers"][0]
    assert limits["resources"]["limits"] == {"nvidia.com/gpu": "2", "memory": "80Gi"}


CONTAINER = "spec.containers[0]"
REFUSED: dict[str, tuple[Json, str]] = {
    "a field that templates do not have": ({"replicas": 3}, "replicas"),
    "a name": ({"metadata": {"name": "x"}}, "metadata.name"),
    "our labels": (
        {"metadata": {"labels": {"sandgate.dev/role": "agent"}}},
        "metadata.labels.sandgate.dev/role",
    ),
    "our manager": (
        {"metadata": {"labels": {"app.kubernetes.io/managed-by": "me"}}},
        "metadata.labels.app.kubernetes.io/managed-by",
    ),
    "our annotation": (
        {"metadata": {"annotations": {"sandgate.dev/config": ""}}},
        "metadata.annotations.sandgate.dev/config",
    ),
    "the node's network": ({"spec": {"hostNetwork": True}}, "spec.hostNetwork"),
    "a token": ({"spec": {"automountServiceAccountToken": True}}, "spec.automountServiceAccountToken"),
    "another host name": ({"spec": {"hostname": "x"}}, "spec.hostname"),
    "a shorter grace": (
        {"spec": {"terminationGracePeriodSeconds": 10}},
        "spec.terminationGracePeriodSeconds",
    ),
    "a grace that is none": (
        {"spec": {"terminationGracePeriodSeconds": None}},
        "spec.terminationGracePeriodSeconds",
    ),
    "our volumes": ({"spec": {"volumes": [{"name": "journal", "emptyDir": {}}]}}, "spec.volumes[0].name"),
    "no volumes": ({"spec": {"volumes": None}}, "spec.volumes"),
    "no containers": ({"spec": {"containers": None}}, "spec.containers"),
    "containers that are no list": ({"spec": {"containers": {}}}, "spec.containers"),
    "a container without a name": ({"spec": {"containers": [{"image": "x"}]}}, f"{CONTAINER}.name"),
    "a container that is no object": ({"spec": {"containers": ["x"]}}, CONTAINER),
    "no spec": ({"spec": None}, "spec"),
    "a map that is text": (of_gateway(resources="much"), f"{CONTAINER}.resources"),
    "another command": (of_gateway(command=["sh"]), f"{CONTAINER}.command"),
    "further arguments": (of_gateway(args=["-v"]), f"{CONTAINER}.args"),
    "other ports": (of_gateway(ports=[]), f"{CONTAINER}.ports"),
    "our variables": (of_gateway(env=[{"name": "POD_NAME"}]), f"{CONTAINER}.env[0].name"),
    "no variables": (of_gateway(env=None), f"{CONTAINER}.env"),
    "our mounts": (
        of_gateway(volumeMounts=[{"name": "x", "mountPath": "/journal"}]),
        f"{CONTAINER}.volumeMounts[0].mountPath",
    ),
    "root": ({"spec": {"securityContext": {"runAsUser": 0}}}, "spec.securityContext.runAsUser"),
    "no user": ({"spec": {"securityContext": None}}, "spec.securityContext"),
    "more rights": (
        of_gateway(securityContext={"privileged": True}),
        f"{CONTAINER}.securityContext.privileged",
    ),
}


@pytest.mark.parametrize(("template", "field"), REFUSED.values(), ids=REFUSED)
def test_what_would_break_a_gateway_is_refused_naming_the_field(template: Json, field: str) -> None:
    with pytest.raises(BadManifest) as refused:
        gateway(template)
    assert refused.value.field == f"spec.gateway.template.{field}"


@pytest.mark.parametrize("field", ["command", "args", "ports"])
def test_an_engine_s_command_line_is_said_in_its_own_fields(field: str) -> None:
    with pytest.raises(BadManifest) as refused:
        engine(of_engine(**{field: ["x"]}))
    assert refused.value.field == f"spec.engine.managed.template.spec.containers[0].{field}"


WORDS = st.sampled_from(
    "spec metadata labels containers name gateway env volumes tmp securityContext runAsUser privileged resources"
    " volumeMounts mountPath initContainers capabilities tolerations affinity seccompProfile value image".split()
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-1, 2) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=12,
)
TEMPLATES = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.dictionaries(WORDS, JSON, max_size=2),
        "spec": st.fixed_dictionaries(
            {},
            optional={
                "containers": st.lists(
                    st.dictionaries(WORDS, JSON, max_size=4).map(lambda one: {**one, "name": "gateway"}),
                    max_size=2,
                ),
                "volumes": JSON,
                "securityContext": JSON,
                "tolerations": JSON,
            },
        ),
    },
)


@given(TEMPLATES)
def test_any_template_is_refused_or_leaves_our_container_restricted_and_as_it_is_called(
    template: Json,
) -> None:
    """Whatever is written: BadManifest, or a gateway that starts as ours does and may no more than ours."""
    try:
        made = gateway(template)
    except BadManifest as error:
        made, field = None, error.field
    else:
        field = None
    if made is None:
        assert field is not None
        assert field.startswith("spec.gateway.template")
        return
    ours = made["spec"]["containers"][0]
    assert ours["command"] == PLAIN_CONTAINER["command"]
    assert ours["ports"] == PLAIN_CONTAINER["ports"]
    assert made["metadata"]["labels"].items() >= PLAIN["metadata"]["labels"].items()
    mine = {key: made["spec"][key] for key in ("securityContext",)} | {"containers": [ours]}
    assert violations(mine) == []
