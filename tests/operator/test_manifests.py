"""What the objects of a job promise, whatever the job: ownership, names, safety, who reaches whom."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandgate.contract.agent_session import AgentSession
from sandgate.contract.choices import TurnRole
from sandgate.contract.keys import Key, Scope, verify
from sandgate.contract.labels import AGENT, ENGINE, GATEWAY, JOB, MANAGED_BY, ROLE, SHARD, VERIFIER
from sandgate.contract.manifest_decoder import decode
from sandgate.contract.names import KEYS_PER_SECRET, LABEL_MAX, LABEL_PATTERN, group_name
from sandgate.contract.serving import RoleRule
from sandgate.gateway.config import Config, MediaConfig, load
from sandgate.operator.manifests import (
    Json,
    Settings,
    engine_objects,
    engine_pods,
    example_objects,
    gateway_objects,
    gateway_origin,
    keys_secret,
    owner,
    sandbox_policy,
    session_object,
)
from sandgate.operator.manifests.example_session import session_objects
from sandgate.operator.manifests.policies import LINK_LOCAL, PRIVATE, closed_policy, gateway_policy
from sandgate.operator.plan.actions import Ref
from tests.contract.manifests import Manifest, spoilt
from tests.operator.manifest_jobs import (
    ENDPOINTS,
    JOBS,
    MANAGED,
    SECRET,
    SELECTED,
    SETTINGS,
    UID,
    container,
    job,
    manifest,
    objects,
    one,
    pod_specs,
)
from tests.support.podsecurity import violations

NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,42}[a-z0-9])?", fullmatch=True)
ENGINES = st.sampled_from(
    [
        {"endpoints": ["http://10.0.0.5:8000"]},
        {"selector": {"matchLabels": {"app": "vllm"}}},
        {"managed": {"gpus": 0}},
        {"managed": {"gpus": 4, "replicas": 3, "command": ["serve", "$(MODEL)"]}},
    ]
)
JOURNALS = st.sampled_from([{"sqlite": {}}, {"postgres": {"secretRef": {"name": "db"}}}])
SHARDS = st.sampled_from([{}, {SHARD: "blue"}])
ISOLATION = st.sampled_from(["Probed", "Policy", "Off"])
BESIDE = st.sampled_from(["Preferred", "Anywhere"])


@given(NAMES, ENGINES, JOURNALS, SHARDS, ISOLATION, BESIDE, st.integers(1, 100))
def test_every_object_is_owned_labelled_named_once_and_restricted(
    name: str,
    engine: Json,
    journal: Json,
    shard: dict[str, str],
    isolation: str,
    beside: str,
    replicas: int,
) -> None:
    made = job(
        manifest(
            ("metadata.name", name),
            ("metadata.labels", shard),
            ("spec.engine", engine),
            ("spec.gateway", {"replicas": replicas, "journal": journal, "beside": beside}),
            ("spec.agent.isolation", isolation),
        )
    )
    found = objects(made)
    sessions = session_objects(made, SETTINGS)
    for each in found + sessions:
        meta = each["metadata"]
        assert re.fullmatch(LABEL_PATTERN, meta["name"])
        assert len(meta["name"]) <= LABEL_MAX
        assert meta["namespace"] == "rl"
        assert (meta["labels"][MANAGED_BY], meta["labels"][JOB]) == ("sandgate", name)
        assert meta["labels"].get(SHARD) == shard.get(SHARD)
        assert all(len(value) <= LABEL_MAX for value in meta["labels"].values())
        (owned,) = meta["ownerReferences"]
        assert owned["controller"]
        assert owned["blockOwnerDeletion"]
        assert owned["kind"] == ("AgentSession" if each["kind"] == "Pod" else "RolloutJob")
    named = [(each["kind"], each["metadata"]["name"]) for each in found + sessions]
    assert len(set(named)) == len(named)
    for spec in pod_specs(found + sessions):
        assert violations(spec) == []
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False


@given(NAMES, st.integers(0, 99))
def test_a_gateway_s_origin_is_the_name_that_its_pod_and_service_give_it(name: str, index: int) -> None:
    found = gateway_objects(
        job(manifest(("metadata.name", name))), SETTINGS, engine_urls=["http://e:1"], secret_hex=SECRET
    )
    service, pods = one(found, "Service"), one(found, "StatefulSet")
    pod = f"{pods['metadata']['name']}-{index}"
    host = f"{pod}.{service['metadata']['name']}.rl.svc.cluster.local"
    assert pods["spec"]["serviceName"] == service["metadata"]["name"]
    assert gateway_origin(name, index, "rl", SETTINGS) == f"http://{host}:8000"
    assert config(found)["origin"].replace("$(POD_NAME)", pod) == gateway_origin(name, index, "rl", SETTINGS)


def config(found: list[Json]) -> Json:
    said: Json = json.loads(one(found, "ConfigMap")["data"]["gateway.json"])
    return said


def plain(secret: Json) -> dict[str, str]:
    return {name: base64.b64decode(value).decode() for name, value in secret["data"].items()}


# -- gateways ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("url", ["s3://bucket/folder", "/data/rollouts"])
def test_gateways_are_told_where_files_go(url: str) -> None:
    made = manifest(("spec.engine", SELECTOR), ("spec.output", {"parquet": {"url": url}}))
    assert config(objects(job(made)))["output"] == {"parquet": url}
    assert "output" not in config(objects(job(SELECTED))), "a trainer leases them"


@pytest.mark.parametrize("manifest", JOBS.values(), ids=JOBS)
def test_a_gateway_understands_its_configuration(manifest: Manifest, tmp_path: Path) -> None:
    file = tmp_path / "gateway.json"
    file.write_text(one(objects(job(manifest)), "ConfigMap")["data"]["gateway.json"])
    said: Config = load(
        file, {"POD_NAME": "shop-gateway-1", "NODE_NAME": "n", "SANDGATE_JOURNAL_DSN": "postgres://db"}
    )
    assert said.origin == "http://shop-gateway-1.shop-gateway.rl.svc.cluster.local:8000"
    assert said.journal == ("postgres://db" if manifest is SELECTED else "/journal/shop-gateway-1.sqlite")
    assert (said.listen.host, said.listen.port, said.job) == ("0.0.0.0", 8000, "shop")
    assert said.engine.wait
    assert said.node == "n"
    assert said.limits.tasks == (500 if manifest is ENDPOINTS else 0)
    rows = (said.session_limits.prompt_tokens, said.session_limits.response_tokens)
    assert rows == ((2048, 6144) if manifest is SELECTED else (0, 0))
    pod = one(objects(job(manifest)), "StatefulSet")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > said.limits.drain_s
    (node,) = [var for var in pod["containers"][0]["env"] if var["name"] == "NODE_NAME"]
    assert node["valueFrom"]["fieldRef"]["fieldPath"] == "spec.nodeName"


FAMILIES: dict[str, tuple[str, str]] = {
    "IPv4": ("10.1.2.3", "0.0.0.0"),
    "IPv6, alone or first": ("fd00:10:244::5", "::"),
    "unknown, out of a cluster": ("", "0.0.0.0"),
}


@pytest.mark.parametrize(("address", "host"), FAMILIES.values(), ids=FAMILIES)
def test_gateways_and_engines_listen_on_the_family_that_the_operators_pod_has(
    address: str, host: str
) -> None:
    settings = SETTINGS.like_pod(address)
    made = gateway_objects(job(MANAGED), settings, engine_urls=(), secret_hex=SECRET)
    assert config(made)["listen"] == {"host": host, "port": 8000}
    words = container(one(engine_objects(job(MANAGED), settings), "Deployment"))["command"]
    assert words[words.index("--host") + 1] == host
    own = job(manifest(("spec.engine", {"managed": {"command": ["serve", "$(HOST)"]}})))
    env = container(one(engine_objects(own, settings), "Deployment"))["env"]
    assert {"name": "HOST", "value": host} in env


def test_a_gateway_has_the_jobs_rules_for_roles(tmp_path: Path) -> None:
    rules = [{"role": "side", "systemContains": "you judge"}, {"role": "subagent", "header": "x-worker"}]
    file = tmp_path / "gateway.json"
    made = objects(job(spoilt(("spec.gateway.roles", rules))))
    file.write_text(one(made, "ConfigMap")["data"]["gateway.json"])
    said = load(file, {"POD_NAME": "shop-gateway-0", "NODE_NAME": "n"}).roles
    assert said == (
        RoleRule(role=TurnRole.SIDE, system_contains="you judge"),
        RoleRule(role=TurnRole.SUBAGENT, header="x-worker"),
    )


def test_a_gateway_has_the_jobs_hosts_of_images(tmp_path: Path) -> None:
    hosts = ["images.example.com", "http://10.0.0.7:9000"]
    file = tmp_path / "gateway.json"
    made = objects(job(spoilt(("spec.gateway.media", {"allowedHosts": hosts, "privateAddresses": True}))))
    file.write_text(one(made, "ConfigMap")["data"]["gateway.json"])
    said = load(file, {"POD_NAME": "shop-gateway-0", "NODE_NAME": "n"}).media
    assert said == MediaConfig(allowed_hosts=tuple(hosts), private_addresses=True)
    assert "media" not in one(objects(job(SELECTED)), "ConfigMap")["data"]["gateway.json"]


IMAGE_HOSTS: dict[str, tuple[dict[str, Any], list[dict[str, Any]]]] = {
    "a name is any public address at its port": (
        {"allowedHosts": ["images.example.com", "https://other.example.com:8443"]},
        [{
            "to": [{"ipBlock": {"cidr": cidr, "except": list(less)}} for cidr, less in PRIVATE.items()],
            "ports": [{"protocol": "TCP", "port": port} for port in (443, 8443)],
        }],
    ),
    "a name may be a Service, with any port behind it": (
        {"allowedHosts": ["http://images.rl.svc.cluster.local"], "privateAddresses": True},
        [{"to": [{"ipBlock": {"cidr": cidr, "except": list(less)}} for cidr, less in LINK_LOCAL.items()]}],
    ),
    "an address is itself": (
        {"allowedHosts": ["http://10.0.0.7:9000", "[2606:2800:220:1::1]"]},
        [
            {"to": [{"ipBlock": {"cidr": "10.0.0.7/32"}}], "ports": [{"protocol": "TCP", "port": 9000}]},
            {"to": [{"ipBlock": {"cidr": "2606:2800:220:1::1/128"}}], "ports": [{"protocol": "TCP", "port": 443}]},
        ],
    ),
    "none is nothing": ({}, []),
}  # fmt: skip


@pytest.mark.parametrize("which", IMAGE_HOSTS)
def test_gateways_reach_the_hosts_of_images(which: str) -> None:
    media, rules = IMAGE_HOSTS[which]
    engine = ("spec.engine", MANAGED["spec"]["engine"])
    plain = gateway_policy(job(spoilt(engine)), SETTINGS)["spec"]["egress"]
    made = gateway_policy(job(spoilt(engine, ("spec.gateway.media", media))), SETTINGS)["spec"]["egress"]
    assert made == [*plain, *rules]


ROLLS: dict[str, tuple[tuple[str, Any], bool]] = {
    "other sampling rolls the gateways": (("spec.sampling.temperature", 0.5), True),
    "another tokenizer rolls the gateways": (("spec.model.tokenizer", "other"), True),
    "another engine does not: they are told": (("spec.engine.endpoints", ["http://10.0.0.6:8000"]), False),
    "more parallelism does not concern them": (("spec.parallelism", 9), False),
    "more gateways do not roll those there are": (("spec.gateway.replicas", 3), False),
}


@pytest.mark.parametrize(("change", "rolls"), ROLLS.values(), ids=ROLLS)
def test_what_rolls_the_gateways(change: tuple[str, Any], rolls: bool) -> None:
    before = one(objects(job(manifest())), "StatefulSet")["spec"]["template"]
    after = one(objects(job(manifest(change))), "StatefulSet")["spec"]["template"]
    assert (before != after) == rolls


def term(labels: dict[str, str]) -> Json:
    return {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": labels}}


OWN = {"sandgate.dev/job": "shop", "sandgate.dev/role": "engine"}
PREFERRED, REQUIRED = (f"{how}DuringSchedulingIgnoredDuringExecution" for how in ("preferred", "required"))
PLACES: dict[str, tuple[Json, str, Json | None]] = {
    "beside its own engine, if there is room": (
        {"managed": {}},
        "Preferred",
        {PREFERRED: [{"weight": 100, "podAffinityTerm": term(OWN)}]},
    ),
    "beside the pods that the user names, or nowhere": (
        {"selector": {"matchLabels": {"app": "vllm"}}},
        "Required",
        {REQUIRED: [term({"app": "vllm"})]},
    ),
    "anywhere is not on GPU nodes": ({"managed": {}}, "Anywhere", None),
    "nobody knows where URLs lead": ({"endpoints": ["http://e:1"]}, "Preferred", None),
}


@pytest.mark.parametrize(("engine", "beside", "affinity"), PLACES.values(), ids=PLACES)
def test_where_gateways_go(engine: Json, beside: str, affinity: Json | None) -> None:
    made = job(manifest(("spec.engine", engine), ("spec.gateway.beside", beside)))
    spec = one(objects(made), "StatefulSet")["spec"]["template"]["spec"]
    assert spec.get("affinity", {}).get("podAffinity") == affinity
    tolerated = [{"key": "nvidia.com/gpu", "operator": "Exists"}]
    assert spec.get("tolerations") == (tolerated if affinity else None)
    assert "nvidia.com/gpu" not in json.dumps(spec["containers"])


def test_a_journal_outlives_scaling_and_goes_with_its_job() -> None:
    spec = one(objects(job(MANAGED)), "StatefulSet")["spec"]
    (claim,) = spec["volumeClaimTemplates"]
    assert (claim["spec"]["resources"], claim["spec"]["storageClassName"]) == (
        {"requests": {"storage": "2Gi"}},
        "fast",
    )
    assert spec["persistentVolumeClaimRetentionPolicy"] == {"whenDeleted": "Delete", "whenScaled": "Retain"}


def test_with_postgres_there_is_no_volume_and_the_connection_string_is_not_in_the_open() -> None:
    found = objects(job(SELECTED))
    assert "volumeClaimTemplates" not in one(found, "StatefulSet")["spec"]
    env = {each["name"]: each for each in container(one(found, "StatefulSet"))["env"]}
    ref = {"secretKeyRef": {"name": "database", "key": "dsn"}}
    assert env["SANDGATE_JOURNAL_DSN"]["valueFrom"] == ref
    assert config(found)["journal"] == "$(SANDGATE_JOURNAL_DSN)"


def test_in_a_shared_database_a_journal_is_of_one_gateway_of_one_job() -> None:
    """A job of the same name that is made later does not go on with what the first one left."""
    again = SELECTED | {"metadata": SELECTED["metadata"] | {"uid": "another"}}
    names = [config(objects(job(made)))["name"] for made in (SELECTED, again)]
    assert names == [f"rl/$(POD_NAME)/{UID}", "rl/$(POD_NAME)/another"]
    assert "name" not in config(objects(job(MANAGED))), "a file is its own name"


def test_a_trainer_s_secret_opens_its_job_s_control_api_and_says_where_it_is() -> None:
    said = plain(one(objects(job(MANAGED)), "Secret", "shop-trainer"))
    assert verify(bytes.fromhex(SECRET), said["api_key"], 4e9) == Key(Scope.TRAINER, job="shop")
    assert said["origins"].split(",") == [gateway_origin("shop", index, "rl", SETTINGS) for index in (0, 1)]


def test_the_signing_secret_cannot_be_changed_and_is_in_no_other_object() -> None:
    found = objects(job(MANAGED))
    signing = one(found, "Secret", "shop-signing")
    assert signing["immutable"] is True
    assert plain(signing) == {"secret": SECRET}
    assert SECRET not in json.dumps([each for each in found if each is not signing])


@pytest.mark.parametrize("manifest", JOBS.values(), ids=JOBS)
def test_render_shows_no_secret(manifest: Manifest) -> None:
    for each in example_objects(job(manifest), SETTINGS):
        assert each["kind"] != "Secret" or set(each["data"].values()) == {"(not shown)"}
        assert "sk-sg-" not in json.dumps(each)


# -- engines ----------------------------------------------------------------------------------------------------------


def engine(**managed: Any) -> Json:
    made = job(manifest(("spec.engine", {"managed": managed})))
    return one(engine_objects(made, SETTINGS), "Deployment")


def test_an_engine_that_is_not_ours_has_no_objects() -> None:
    assert engine_objects(job(ENDPOINTS), SETTINGS) == []
    assert engine_objects(job(SELECTED), SETTINGS) == []


def test_a_suspended_job_has_no_engine_pods() -> None:
    assert one(objects(job(MANAGED), running=False), "Deployment")["spec"]["replicas"] == 0
    assert one(objects(job(MANAGED)), "Deployment")["spec"]["replicas"] == 2


@pytest.mark.parametrize(("gpus", "limits"), [(0, None), (2, {"nvidia.com/gpu": "2"})])
def test_an_engine_asks_for_the_gpus_that_it_uses(gpus: int, limits: Json | None) -> None:
    made = engine(gpus=gpus)
    assert container(made)["resources"].get("limits") == limits
    assert bool(made["spec"]["template"]["spec"].get("tolerations")) == bool(gpus)
    assert ("--tensor-parallel-size" in container(made)["command"]) == (gpus > 1)


@pytest.mark.parametrize(
    ("resource", "limits", "tolerations"),
    [
        ("amd.com/gpu", {"amd.com/gpu": "2"}, [{"key": "amd.com/gpu", "operator": "Exists"}]),
        (
            "nvidia.com/mig-3g.40gb",
            {"nvidia.com/mig-3g.40gb": "2"},
            [
                {"key": "nvidia.com/mig-3g.40gb", "operator": "Exists"},
                {"key": "nvidia.com/gpu", "operator": "Exists"},
            ],
        ),
        ("", None, []),
    ],
    ids=["of another maker", "in parts, on nodes tainted for whole ones", "that the template claims"],
)
def test_an_engine_asks_for_gpus(resource: str, limits: Json | None, tolerations: list[Json]) -> None:
    template = {
        "spec": {
            "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "two-gpus"}],
            "containers": [{"name": "engine", "resources": {"claims": [{"name": "gpus"}]}}],
        }
    }
    made = engine(gpus=2, gpuResource=resource, template=template)
    spec = made["spec"]["template"]["spec"]
    assert container(made)["resources"].get("limits") == limits
    assert container(made)["resources"]["claims"] == [{"name": "gpus"}]
    assert spec["resourceClaims"][0]["resourceClaimTemplateName"] == "two-gpus"
    assert spec["tolerations"] == tolerations
    assert "--tensor-parallel-size" in container(made)["command"]
    assert not any(one["name"] == "OMP_NUM_THREADS" for one in container(made)["env"])


def test_an_update_of_engines_needs_no_spare_gpu() -> None:
    rolling = engine(replicas=3)["spec"]["strategy"]["rollingUpdate"]
    assert rolling == {"maxSurge": 0, "maxUnavailable": 1}


def test_an_engine_has_as_long_to_start_as_the_job_says() -> None:
    started = container(engine(startSeconds=602))["startupProbe"]
    assert started["periodSeconds"] * started["failureThreshold"] == 605


MODELS: dict[str, tuple[Json, str, bool]] = {
    "weights are the tokenizer's folder": ({}, "/models/tiny", True),
    "a hub's name stays one": ({"model": "Qwen/Qwen3-0.6B"}, "Qwen/Qwen3-0.6B", False),
    "an absolute path stays one": ({"model": "/data/m"}, "/data/m", True),
    "a relative one begins at the models": ({"model": "./a/b"}, "/srv/a/b", True),
    "one word is a folder": ({"model": "tiny"}, "/srv/tiny", True),
}


@pytest.mark.parametrize(("managed", "model", "offline"), MODELS.values(), ids=MODELS)
def test_where_weights_are(managed: Json, model: str, offline: bool) -> None:
    made = job(manifest(("spec.engine", {"managed": managed})))
    only = container(one(engine_objects(made, Settings(models_dir="/srv")), "Deployment"))
    assert only["command"][only["command"].index("--model") + 1] == model
    assert ("HF_HUB_OFFLINE" in [each["name"] for each in only["env"]]) == offline


def test_a_relative_tokenizer_begins_at_the_models() -> None:
    assert config(objects(job(MANAGED)))["model"]["tokenizer"] == "/models/tiny"


def test_a_command_of_the_manifest_finds_its_names_and_the_user_s_variables() -> None:
    made = container(
        engine(command=["serve", "$(MODEL):$(PORT)"], args=["-v"], env={"PORT": "1", "A": "$(PORT)"})
    )
    env = {each["name"]: each.get("value") for each in made["env"]}
    assert made["command"] == ["serve", "$(MODEL):$(PORT)", "-v"]  # the kubelet expands them
    assert (env["MODEL"], env["HOST"], env["PORT"], env["A"]) == (
        "/models/tiny",
        "0.0.0.0",
        "8000",
        "$(PORT)",
    )


def test_threads_of_a_cpu_engine_are_as_many_as_were_asked_for() -> None:
    env = {each["name"]: each for each in container(engine(gpus=0))["env"]}
    asked = env["OMP_NUM_THREADS"]["valueFrom"]["resourceFieldRef"]
    assert asked == {"containerName": "engine", "resource": "requests.cpu"}
    env = {each["name"]: each for each in container(engine(gpus=0, env={"OMP_NUM_THREADS": "3"}))["env"]}
    assert env["OMP_NUM_THREADS"] == {"name": "OMP_NUM_THREADS", "value": "3"}


# -- who reaches whom -------------------------------------------------------------------------------------------------


def policies(manifest: Manifest) -> dict[str, Json]:
    """Role -> spec of its policy."""
    found = [each for each in objects(job(manifest)) if each["kind"] == "NetworkPolicy"]
    return {each["spec"]["podSelector"]["matchLabels"][ROLE]: each["spec"] for each in found}


def peers(rule: Json) -> list[str]:
    """Roles, for our own pods; else the labels."""
    sides = rule.get("to") or rule.get("from")
    assert sides
    return [
        (labels := side["podSelector"]["matchLabels"]).get(ROLE) or "=".join(next(iter(labels.items())))
        for side in sides
    ]


def test_agents_and_verifiers_reach_their_gateways_and_dns_and_nobody_reaches_them() -> None:
    for role in ("agent", "verifier"):
        spec = policies(MANAGED)[role]
        assert sorted(spec["policyTypes"]) == ["Egress", "Ingress"]
        assert "ingress" not in spec
        assert [peers(rule) for rule in spec["egress"]] == [["gateway"], ["k8s-app=kube-dns"]]
        # Within the namespace: a peer without namespaceSelector is in the policy's own.
        assert spec["egress"][0]["to"][0]["podSelector"]["matchLabels"][JOB] == "shop"
        assert spec["egress"][0]["ports"] == [{"protocol": "TCP", "port": 8000}]
        assert {port["port"] for port in spec["egress"][1]["ports"]} == {53, 5353}


def test_dns_of_the_node_is_asked_besides_where_an_administrator_says_so() -> None:
    """NodeLocal DNSCache: it listens on the node, so no peer that is a pod means it."""
    settings = replace(SETTINGS, dns_cidrs=("169.254.20.10/32", "10.96.0.10/32"))
    asking = [made["spec"] for made in sandbox_policy(job(MANAGED), settings) if "egress" in made["spec"]]
    assert len(asking) == 3
    for spec in asking:
        (dns,) = (rule for rule in spec["egress"] if any(p["port"] == 53 for p in rule["ports"]))
        assert [peer.get("ipBlock", {}).get("cidr") for peer in dns["to"]] == [None, *settings.dns_cidrs]


def test_what_an_agent_may_reach_besides_is_added() -> None:
    assert policies(SELECTED)["agent"]["egress"][2:] == [{"to": [{"ipBlock": {"cidr": "203.0.113.0/24"}}]}]
    assert len(policies(SELECTED)["verifier"]["egress"]) == 2


def test_without_isolation_agents_have_no_policy_and_verifiers_keep_theirs() -> None:
    assert sorted(policies(ENDPOINTS)) == ["gateway", "verifier"]


def test_gateways_are_reached_by_agents_verifiers_the_operator_and_trainers() -> None:
    (rule,) = policies(MANAGED)["gateway"]["ingress"]
    assert peers(rule) == [
        "agent", "verifier", "app.kubernetes.io/name=sandgate-operator", "sandgate.dev/trainer=true",
    ]  # fmt: skip
    assert rule["ports"] == [{"protocol": "TCP", "port": 8000}]
    operator, trainers = rule["from"][2:]
    assert operator["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "sandgate-system"}
    assert "namespaceSelector" not in trainers, (
        "of the job's own namespace: anybody sets a label on pods of his"
    )


def test_managed_engines_are_reached_by_gateways_and_trainers_alone_and_those_of_others_are_let_be() -> None:
    gateways, trainers = policies(MANAGED)["engine"]["ingress"]
    assert (peers(gateways), gateways["ports"]) == (["gateway"], [{"protocol": "TCP", "port": 8000}])
    assert peers(trainers) == ["sandgate.dev/trainer=true"]
    assert "namespaceSelector" not in trainers["from"][0], "of the job's own namespace"
    assert "ports" not in trainers, "NCCL picks its own"
    assert policies(MANAGED)["engine"]["policyTypes"] == ["Ingress"]  # it may fetch its weights
    assert "engine" not in policies(SELECTED)
    assert "engine" not in policies(ENDPOINTS)


def test_sandboxes_are_closed_also_when_their_job_and_its_policies_are_gone() -> None:
    found = closed_policy(job(MANAGED))
    assert "ownerReferences" not in found["metadata"], "it does not go with a job"
    assert found["metadata"]["namespace"] == "rl"
    assert found["spec"] == {
        "podSelector": {"matchLabels": {"sandgate.dev/walled": "true"}},
        "policyTypes": ["Ingress", "Egress"],
    }


def test_who_reads_metrics_is_let_in_where_an_administrator_says_so() -> None:
    prometheus = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    for gateways, engines in (((prometheus,), ()), ((), (prometheus,))):
        settings = replace(SETTINGS, gateway_scrapers=gateways, engine_scrapers=engines)
        found = {
            one["spec"]["podSelector"]["matchLabels"][ROLE]: one["spec"]
            for one in sandbox_policy(job(MANAGED), settings)
        }
        for role, peers in ((GATEWAY, gateways), (ENGINE, engines)):
            rule, *_ = found[role]["ingress"]
            assert [peer for peer in rule["from"] if peer == prometheus] == list(peers)
        assert "ingress" not in found[AGENT]
        assert "ingress" not in found[VERIFIER]


SELECTOR = {"selector": {"matchLabels": {"app": "vllm"}, "port": 8080}}
EGRESS: dict[str, tuple[Manifest, list[list[str]] | None]] = {
    "to its own engine and DNS": (MANAGED, [["engine"], ["k8s-app=kube-dns"]]),
    "to pods of a selector and DNS": (
        manifest(("spec.engine", SELECTOR)),
        [["app=vllm"], ["k8s-app=kube-dns"]],
    ),
    "anywhere, if the engine is given by URLs": (ENDPOINTS, None),
    "anywhere, if the journal is a database": (SELECTED, None),
    "anywhere, if files are written to a URL": (
        manifest(("spec.engine", SELECTOR), ("spec.output", {"parquet": {"url": "s3://b"}})),
        None,
    ),
}


@pytest.mark.parametrize(("manifest", "rules"), EGRESS.values(), ids=EGRESS)
def test_where_gateways_may_go(manifest: Manifest, rules: list[list[str]] | None) -> None:
    spec = policies(manifest)["gateway"]
    assert ("Egress" in spec["policyTypes"]) == (rules is not None)
    assert [peers(rule) for rule in spec.get("egress", [])] == (rules or [])
    if rules is not None:
        found = engine_pods(job(manifest))
        assert found is not None
        assert spec["egress"][0]["ports"] == [{"protocol": "TCP", "port": found[1]}]


MAKE_PODS = ("StatefulSet", "Deployment")


@pytest.mark.parametrize("manifest", JOBS.values(), ids=JOBS)
def test_policies_come_before_the_pods_they_are_about(manifest: Manifest) -> None:
    made = job(manifest)
    gateways = gateway_objects(made, SETTINGS, engine_urls=(), secret_hex=SECRET)
    for found in (gateways, engine_objects(made, SETTINGS)):
        kinds = [each["kind"] for each in found]
        assert kinds == sorted(kinds, key=lambda kind: (kind in MAKE_PODS, kind != "NetworkPolicy"))


@pytest.mark.parametrize("manifest", JOBS.values(), ids=JOBS)
def test_the_policies_alone_are_those_among_the_objects(manifest: Manifest) -> None:
    found = [each for each in objects(job(manifest)) if each["kind"] == "NetworkPolicy"]
    assert sandbox_policy(job(manifest), SETTINGS) == found


# -- sessions ---------------------------------------------------------------------------------------------------------


def test_an_agent_session_says_which_attempt_it_is_and_who_owns_it() -> None:
    ref = Ref("shop", "Task 1", 3, 2)
    made = session_object(job(MANAGED), ref, "shop-gateway-1", remote=True)
    said = decode(AgentSession, made).spec
    assert (said.job_name, said.task_uid, said.sample_index, said.attempt) == ("shop", "Task 1", 3, 2)
    assert (said.gateway, said.remote) == ("shop-gateway-1", True)
    assert made["metadata"]["name"] == ref.name
    assert made["metadata"]["ownerReferences"] == [owner(job(MANAGED))]
    assert made["metadata"]["labels"]["sandgate.dev/group"] == group_name("shop", "Task 1")


SCOPES = {"api": Scope.AGENT, "reward": Scope.REWARD, "task": Scope.TASK}


@pytest.mark.parametrize(("size", "chunk", "samples"), [(4, 0, range(4)), (100, 1, range(64, 100))])
def test_a_secret_of_keys_has_three_for_each_of_its_samples(size: int, chunk: int, samples: range) -> None:
    made = job(manifest(("spec.groupSize", size)))
    secret = keys_secret(made, "q1", 1, chunk, bytes.fromhex(SECRET), 5e9)
    names = {Ref("shop", "q1", sample, 1).name for sample in samples}
    assert plain(secret).keys() == {f"{name}.{ending}" for name in names for ending in SCOPES}
    for entry, text in plain(secret).items():
        session, _, ending = entry.rpartition(".")
        assert verify(bytes.fromhex(SECRET), text, 4e9) == Key(SCOPES[ending], "shop", session, 5e9)


def test_a_full_secret_of_keys_of_the_longest_names_is_small() -> None:
    made = job(manifest(("metadata.name", "n" * 44), ("spec.groupSize", KEYS_PER_SECRET), ("spec.group", {})))
    secret = keys_secret(made, "u" * 256, 9_999, 0, bytes.fromhex(SECRET), 5e9)
    assert len(json.dumps(secret)) < 96 * 1024


def test_another_log_level_is_told_to_gateways_that_start_and_rolls_none_that_run() -> None:
    made = job(ENDPOINTS)

    def gateway(level: str) -> tuple[str, Json]:
        settings = replace(SETTINGS, gateway_log_level=level)
        found = gateway_objects(made, settings, engine_urls=(), secret_hex=SECRET)
        config = json.loads(one(found, "ConfigMap")["data"]["gateway.json"])
        return config["log_level"], one(found, "StatefulSet")

    told, stands = gateway("info")
    louder, stands_too = gateway("debug")
    assert (told, louder) == ("INFO", "DEBUG")
    assert stands == stands_too
