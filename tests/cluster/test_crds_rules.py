"""Every CEL rule of the definitions accepts what it should and rejects what it should, on a real API server.

The list of rules is read from the definitions: a rule without its pair here fails, and a pair without its rule.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from sandgate.contract.manifest_decoder import encode
from sandgate.operator.cluster import refused_job
from tests.cluster.crds import Json, install, path, refusal, roots, schemas
from tests.cluster.harness.api import Api
from tests.cluster.harness.rest import Refused
from tests.contract.manifests import CONTAINER, GONE, put, spoilt
from tests.support.waiting import until_now

Changes = tuple[tuple[str, Any], ...]
NAMESPACE = "crd-rules"
AGENT = "spec.agent.template.spec.containers[0]"
SESSION: Json = {
    "apiVersion": "sandgate.dev/v1alpha1",
    "kind": "AgentSession",
    "metadata": {"name": "shop-q1-0-0"},
    "spec": {"jobName": "shop", "taskUid": "q1"},
}
MANAGED: Changes = (("spec.engine.endpoints", GONE), ("spec.engine.managed", {"image": "vllm:1"}))
UNMANAGED: Changes = (("spec.engine.endpoints", ["http://a:1"]), ("spec.engine.managed", GONE))
SELECTOR: Changes = (
    ("spec.engine.endpoints", GONE),
    ("spec.engine.selector", {"matchLabels": {"app": "vllm"}}),
)
TRUE_CONDITIONS = {
    kind: {"conditions": [{"type": kind, "status": "True"}]}
    for kind in ("Complete", "Failed", "TrajectoryCommitted")
}
FALSE_CONDITIONS = {
    kind: {"conditions": [{"type": kind, "status": "False"}]}
    for kind in ("Complete", "Failed", "TrajectoryCommitted")
}


@dataclass(frozen=True)
class Pair:
    """`good` and `bad` are changes of a manifest that is created, or of an object that was created from `start`."""

    good: Changes
    bad: Changes
    start: Changes | None = None
    kind: str = "RolloutJob"


@dataclass(frozen=True)
class Status:
    """A status that follows another."""

    first: Json
    good: Json
    bad: Json
    kind: str = "RolloutJob"


def fixed(at: str, value: Any, start: Changes = ()) -> dict[str, Pair]:
    """A field that may not become `value`; with the field as it was, another may change."""
    change = ("spec.suspend", True)
    return {f"RolloutJob: {at} is immutable": Pair((change,), (change, (at, value)), start)}


WHILE_SUSPENDED = "changes only while the job is suspended (spec.suspend: true)"


def stands(at: str, value: Any, start: Changes = ()) -> dict[str, Pair]:
    """A field that may not become `value` in the change that suspends the job, either."""
    change = ("spec.suspend", True)
    return {f"RolloutJob: {at} {WHILE_SUSPENDED}": Pair((change,), (change, (at, value)), start)}


def stays(at: str, good: Changes, bad: Changes, start: Changes = ()) -> dict[str, Pair]:
    """An optional field that can neither come nor go."""
    return {f"RolloutJob: {at} can neither be added nor removed": Pair(good, bad, start)}


def selecting(labels: dict[str, str]) -> Changes:
    """A job whose engine is found by these."""
    return ("spec.engine.endpoints", GONE), ("spec.engine.selector", {"matchLabels": labels})


ONE_OF = "exactly one of"
PAIRS: dict[str, Pair | Status] = {
    "RolloutJob: metadata.name has more than 44 characters": Pair(
        (("metadata.name", "x" * 44),), (("metadata.name", "x" * 45),)
    ),
    "RolloutJob: metadata.name is not a DNS label (lower case letters, digits and dashes)": Pair(
        (("metadata.name", "a-1"),), (("metadata.name", "a.1"),)
    ),
    "spec.engine.selector.matchLabels: a key is not a label's name, such as app or example.com/app": Pair(
        selecting({"a.example.com/app_1.x": "vllm"}),
        selecting({"app name": "vllm"}),
    ),
    "spec.sampling.topP: is below 1e-06": Pair((("spec.sampling.topP", 1),), (("spec.sampling.topP", 0),)),
    "spec.sampling.repetitionPenalty: is below 0.01": Pair(
        (("spec.sampling.repetitionPenalty", 1),), (("spec.sampling.repetitionPenalty", 0),)
    ),
    "AgentSession: metadata.name has more than 63 characters": Pair(
        (("metadata.name", "x" * 63),), (("metadata.name", "x" * 64),), kind="AgentSession"
    ),
    "AgentSession: metadata.name is not a DNS label (lower case letters, digits and dashes)": Pair(
        (("metadata.name", "a-1"),), (("metadata.name", "a.1"),), kind="AgentSession"
    ),
    "AgentSession spec: spec is immutable": Pair(
        (("metadata.labels", {"a": "b"}),), (("spec.attempt", 1),), (), "AgentSession"
    ),
    "AgentSession status: what was committed stays committed": Status(
        TRUE_CONDITIONS["TrajectoryCommitted"],
        TRUE_CONDITIONS["TrajectoryCommitted"] | {"turns": 3},
        FALSE_CONDITIONS["TrajectoryCommitted"],
        "AgentSession",
    ),
    "status: a complete job stays complete": Status(
        TRUE_CONDITIONS["Complete"], TRUE_CONDITIONS["Complete"] | {"ended": 4}, {"conditions": []}
    ),
    "status: a failed job stays failed": Status(
        TRUE_CONDITIONS["Failed"], TRUE_CONDITIONS["Failed"] | {"ended": 4}, FALSE_CONDITIONS["Failed"]
    ),
    "spec: quorum is more than groupSize": Pair((("spec.group.quorum", 4),), (("spec.group.quorum", 5),)),
    "spec: Complete stops the agent at its /complete, and reward.source exitCode would never see an exit code: use"
    " Exit, or another source": Pair(
        (("spec.agent.completion", "Complete"),),
        (("spec.agent.completion", "Complete"), ("spec.reward", {"source": "exitCode"})),
    ),
    f"spec.engine: {ONE_OF} endpoints, selector, managed is needed": Pair(
        MANAGED, (("spec.engine.managed", {}),)
    ),
    f"spec.tasks: {ONE_OF} inline, configMap, file, queue is needed": Pair(
        (("spec.tasks", {"queue": {}}),), (("spec.tasks.file", "t.jsonl"),)
    ),
    f"spec.gateway.journal: {ONE_OF} sqlite, postgres is needed": Pair(
        (("spec.gateway.journal", {"postgres": {"secretRef": {"name": "db"}}}),),
        (("spec.gateway.journal", {}),),
    ),
    "spec.gateway.roles[]: name a header, or what the system prompt or the last message contains: "
    "this would be every call": Pair(
        (("spec.gateway.roles", [{"role": "side", "systemContains": "judge"}]),),
        (("spec.gateway.roles", [{"role": "side"}]),),
    ),
    "spec.gateway.roles[]: headerValue is of a header: name it": Pair(
        (("spec.gateway.roles", [{"role": "side", "header": "x-a", "headerValue": "1"}]),),
        (("spec.gateway.roles", [{"role": "side", "headerValue": "1", "systemContains": "judge"}]),),
    ),
    f"spec.output: {ONE_OF} lease, parquet is needed": Pair(
        (("spec.output", {"parquet": {"url": "s3://b/d"}}),), (("spec.output", {}),)
    ),
    "spec.agent: backend Process runs containers[0].command, which is missing": Pair(
        (("spec.agent.backend", "Process"),), (("spec.agent.backend", "Process"), (f"{AGENT}.command", GONE))
    ),
    "spec.agent.template.spec.containers[]: image is missing, and there is no command either": Pair(
        ((f"{AGENT}.image", GONE),), ((f"{AGENT}.image", GONE), (f"{AGENT}.command", GONE))
    ),
    "spec.reward: source verifier needs the verifier block, and only that source may have it": Pair(
        (("spec.reward", {}),), (("spec.reward.source", "agent"),)
    ),
    "spec.reward.verifier.container: image is missing, and there is no command either": Pair(
        (("spec.reward.verifier.container", {"command": ["v"]}),),
        (("spec.reward.verifier.container", {"name": "v"}),),
    ),
    "RolloutJob: spec.gateway.replicas may only grow: sessions live on their gateway": Pair(
        (("spec.gateway.replicas", 3),), (("spec.gateway.replicas", 1),), (("spec.gateway.replicas", 2),)
    ),
    **stays("spec.engine.selector", (("spec.engine.endpoints", ["http://b:1"]),), SELECTOR),
    **stays("spec.engine.managed", (("spec.engine.managed.replicas", 2),), UNMANAGED, MANAGED),
    **stays("spec.group.quorum", (("spec.group.retry.infra", 9),), (("spec.group.quorum", GONE),)),
    **fixed("spec.model", {"name": "other", "tokenizer": "/models/tiny"}),
    **fixed("spec.engine.kind", "sglang"),
    "spec.engine: a managed engine is vLLM: start SGLang yourself, and name it in endpoints or selector": Pair(
        (("spec.engine.kind", "sglang"),), (*MANAGED, ("spec.engine.kind", "sglang"))
    ),
    "spec: SGLang takes a repetitionPenalty of 2 at most": Pair(
        (("spec.engine.kind", "sglang"), ("spec.sampling", {"repetitionPenalty": 2})),
        (("spec.engine.kind", "sglang"), ("spec.sampling", {"repetitionPenalty": 2.5})),
    ),
    **fixed("spec.engine.model", "other"),
    **fixed("spec.engine.logprobsMode", "raw_logprobs"),
    **fixed("spec.engine.selector", {"matchLabels": {"app": "other"}}, SELECTOR),
    **stands("spec.engine.managed.image", "vllm:2", MANAGED),
    **fixed("spec.engine.managed.gpus", 2, MANAGED),
    **fixed("spec.engine.managed.gpuResource", "amd.com/gpu", MANAGED),
    **fixed("spec.engine.managed.model", "other", MANAGED),
    **fixed("spec.engine.managed.command", ["serve"], MANAGED),
    **fixed("spec.engine.managed.args", ["--x"], MANAGED),
    **fixed("spec.engine.managed.env", {"A": "1"}, MANAGED),
    **fixed("spec.engine.managed.startSeconds", 9, MANAGED),
    **stands("spec.engine.managed.template", {"spec": {"nodeName": "n"}}, MANAGED),
    **fixed("spec.tasks", {"inline": [{"uid": "q1", "prompt": "buy 8 kiwi"}]}),
    **stands("spec.agent.template", {"spec": {"containers": [CONTAINER], "hostNetwork": True}}),
    **fixed("spec.agent.backend", "Process"),
    **fixed("spec.agent.taskDelivery", "File"),
    **fixed("spec.agent.completion", "Complete"),
    **fixed("spec.agent.isolation", "Policy"),
    **fixed("spec.agent.egress", [{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}]}]),
    **fixed("spec.gateway.beside", "Required"),
    **fixed("spec.gateway.journal", {"sqlite": {"storage": "2Gi"}}),
    **fixed("spec.gateway.roles", [{"role": "side", "header": "x-a"}]),
    **fixed("spec.gateway.media", {"allowedHosts": ["images.example.com"]}),
    **stands("spec.gateway.image", "gateway:2"),
    **stands("spec.gateway.template", {"metadata": {"labels": {"a": "b"}}}),
    **fixed("spec.groupSize", 5),
    **fixed("spec.sampling", {"temperature": 0.5}),
    **fixed("spec.limits", {"turns": 21}),
    **fixed("spec.reward", {"source": "agent"}),
    **fixed("spec.group.quorum", 3),
    **fixed("spec.group.stragglerSeconds", 9),
    **fixed("spec.output", {"parquet": {"url": "s3://b/d"}}),
    **fixed("spec.managedBy", "example.com/other"),
}
"""`[AgentSession ]path: message`; without a kind it is RolloutJob's."""


def rules() -> Iterator[str]:
    """All there are, named as the pairs are."""
    for kind, root in roots().items():
        for at, schema in schemas("", root):
            for one in schema.get("x-kubernetes-validations", ()):
                owner = " ".join(filter(None, [kind if kind != "RolloutJob" or not at else "", at]))
                yield f"{owner}: {one['message']}"


def test_every_rule_has_its_pair_and_every_pair_its_rule() -> None:
    found = list(rules())
    assert len(found) == len(set(found)) > 40
    assert set(found) == PAIRS.keys()


def says(rule: str) -> str:
    """What a refusal by this rule has; one that holds a field of a spec names it first."""
    message = rule.partition(": ")[2]
    path = message.partition(" ")[0]
    return f"{path}: Forbidden: {message}" if path.startswith("spec.") else message


def held() -> dict[str, Pair]:
    """The rules that hold a field of a RolloutJob as it was made."""
    return {
        rule: one
        for rule, one in PAIRS.items()
        if isinstance(one, Pair) and one.kind == "RolloutJob" and one.start is not None
    }


def refused_status() -> Json:
    """As the operator writes it."""
    return encode(refused_job.refusal("spec.tasks.file: no", 1, None, 0.0))


@pytest.fixture(scope="module")
def api(apiserver: Api) -> Iterator[Api]:
    install(apiserver)
    with apiserver.namespace(NAMESPACE):
        yield apiserver


def manifest(kind: str, changes: Changes) -> Json:
    if kind == "RolloutJob":
        return spoilt(("metadata.managedFields", GONE), *changes)
    made = copy.deepcopy(SESSION)
    for at, value in changes:
        put(made, at, value)
    return made


def plural(kind: str) -> str:
    return f"{kind.lower()}s"


def changed(api: Api, pair: Pair, name: str, changes: Changes) -> Refused | None:
    """What the API server says of creating, or of changing what was created from `start`."""
    if pair.start is None:
        return refusal(api, NAMESPACE, manifest(pair.kind, changes), plural(pair.kind))
    made = manifest(pair.kind, (*pair.start, ("metadata.name", name)))
    stored = api.rest().create(path(NAMESPACE, plural(pair.kind)), made)
    for at, value in changes:
        put(stored, at, value)
    try:
        api.rest().call("PUT", path(NAMESPACE, plural(pair.kind), name), stored)
    except Refused as refused:
        return refused
    return None


def named(cases: dict[str, Any], cls: type) -> list[Any]:
    return [pytest.param(rule, one, id=rule) for rule, one in cases.items() if isinstance(one, cls)]


def label(rule: str, end: str) -> str:
    return f"rule-{list(PAIRS).index(rule)}-{end}"


@pytest.mark.parametrize(("rule", "pair"), named(PAIRS, Pair))
def test_a_rule_accepts(api: Api, rule: str, pair: Pair) -> None:
    assert changed(api, pair, label(rule, "good"), pair.good) is None


@pytest.mark.parametrize(("rule", "pair"), named(PAIRS, Pair))
def test_a_rule_rejects(api: Api, rule: str, pair: Pair) -> None:
    refused = changed(api, pair, label(rule, "bad"), pair.bad)
    assert refused is not None
    assert refused.status == 422
    assert says(rule) in str(refused)


@pytest.mark.parametrize(("rule", "pair"), named(held(), Pair))
def test_every_field_of_a_job_that_was_refused_may_be_corrected(api: Api, rule: str, pair: Pair) -> None:
    assert pair.start is not None
    rest, name = api.rest(), label(rule, "refused")
    at = path(NAMESPACE, plural(pair.kind), name)
    made = manifest(pair.kind, (*pair.start, ("metadata.name", name)))
    rest.create(path(NAMESPACE, plural(pair.kind)), made)
    rest.merge(path(NAMESPACE, plural(pair.kind), f"{name}/status"), {"status": refused_status()})
    stored = rest.call("GET", at)
    for where, value in pair.bad:
        put(stored, where, value)
    rest.call("PUT", at, stored)


@pytest.mark.parametrize(("rule", "case"), named(PAIRS, Status))
def test_a_rule_of_a_status_accepts_and_rejects(api: Api, rule: str, case: Status) -> None:
    name, rest = label(rule, "status"), api.rest()
    rest.create(path(NAMESPACE, plural(case.kind)), manifest(case.kind, (("metadata.name", name),)))
    at = path(NAMESPACE, plural(case.kind), f"{name}/status")
    rest.merge(at, {"status": FALSE_CONDITIONS["Complete"]})  # what is not final may change
    rest.merge(at, {"status": case.first})
    rest.merge(at, {"status": case.good})
    with pytest.raises(Refused, match=rule.partition(": ")[2]):
        rest.merge(at, {"status": case.bad})


def test_a_job_that_began_is_held_though_somebody_calls_it_refused(api: Api) -> None:
    """As an operator would that is older than this definition: it cannot read what this one fills in."""
    rest, at = api.rest(), path(NAMESPACE, plural("RolloutJob"), "began")
    rest.create(path(NAMESPACE, plural("RolloutJob")), manifest("RolloutJob", (("metadata.name", "began"),)))
    began = {"status": refused_status() | {"selector": "sandgate.dev/job=began"}}
    rest.merge(path(NAMESPACE, plural("RolloutJob"), "began/status"), began)
    stored = rest.call("GET", at)
    put(stored, "spec.groupSize", stored["spec"]["groupSize"] + 1)
    with pytest.raises(Refused, match="groupSize is immutable"):
        rest.call("PUT", at, stored)


def test_a_job_that_was_refused_may_be_mended(api: Api) -> None:
    rest, at = api.rest(), path(NAMESPACE, plural("RolloutJob"), "mended/status")
    rest.create(path(NAMESPACE, plural("RolloutJob")), manifest("RolloutJob", (("metadata.name", "mended"),)))
    rest.merge(at, {"status": refused_status()})
    rest.merge(at, {"status": FALSE_CONDITIONS["Failed"]})
    rest.merge(at, {"status": {"conditions": [{"type": "Failed", "status": "True", "reason": "AllFailed"}]}})
    with pytest.raises(Refused, match="a failed job stays failed"):
        rest.merge(at, {"status": FALSE_CONDITIONS["Failed"]})


LONG = "x" * 45
OLD: dict[str, tuple[str, Json]] = {
    "a job of before with a longer name is suspended": ("", {"spec": {"suspend": True}}),
    "is told a status": ("/status", {"status": {"running": 1}}),
    "is labelled": ("", {"metadata": {"labels": {"a": "b"}}}),
    "is held by a finalizer": ("", {"metadata": {"finalizers": ["example.com/held"]}}),
    "is let go of": ("", {"metadata": {"finalizers": []}}),
}


def test_a_job_of_before_whose_name_is_longer_can_be_changed_finished_and_deleted(api: Api) -> None:
    rest, at = api.rest(), path(NAMESPACE, plural("RolloutJob"), LONG)
    name = "crd/rolloutjobs.sandgate.dev"
    crd = json.loads(api.kubectl("get", name, "-o", "json"))
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    rules = schema["x-kubernetes-validations"]
    schema["x-kubernetes-validations"] = [one for one in rules if "hasValue" not in one["rule"]]
    where = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/rolloutjobs.sandgate.dev"
    made = manifest("RolloutJob", (("metadata.name", LONG),))
    assert refusal(api, NAMESPACE, made) is not None
    rest.call("PUT", where, crd)
    try:
        until_now(
            lambda: refusal(api, NAMESPACE, made) is None, what="the older definition counts", within_s=30
        )
        rest.create(path(NAMESPACE, plural("RolloutJob")), made)
    finally:
        install(api)
    again = manifest("RolloutJob", (("metadata.name", "y" * 45),))
    until_now(lambda: refusal(api, NAMESPACE, again) is not None, what="this definition counts", within_s=30)
    for part, change in OLD.values():
        rest.merge(path(NAMESPACE, plural("RolloutJob"), f"{LONG}{part}"), change)
    rest.call("DELETE", f"{at}&propagationPolicy=Foreground")
    rest.merge(at, {"metadata": {"finalizers": []}})  # as the garbage collector does
    with pytest.raises(Refused):
        rest.call("GET", at)


SUSPENDED = {is_so: {"conditions": [{"type": "Suspended", "status": is_so}]} for is_so in ("True", "False")}
MAY_CHANGE_SUSPENDED: dict[str, tuple[Any, Changes]] = {
    "spec.agent.template": ({"spec": {"containers": [{**CONTAINER, "image": "agent:2"}]}}, ()),
    "spec.gateway.image": ("gateway:2", ()),
    "spec.gateway.template": ({"metadata": {"labels": {"a": "b"}}}, ()),
    "spec.engine.managed.image": ("vllm:2", MANAGED),
    "spec.engine.managed.template": ({"spec": {"nodeName": "n"}}, MANAGED),
}


@pytest.mark.parametrize("goes_on", [False, True], ids=["and stays so", "and goes on with it"])
@pytest.mark.parametrize(("at", "case"), MAY_CHANGE_SUSPENDED.items(), ids=MAY_CHANGE_SUSPENDED)
def test_what_may_change_while_a_job_is_suspended(
    api: Api, at: str, case: tuple[Any, Changes], *, goes_on: bool
) -> None:
    value, start = case
    rest, name = api.rest(), f"{at.lower().replace('.', '-')}-{str(goes_on).lower()}"
    where, at_status = (path(NAMESPACE, plural("RolloutJob"), part) for part in (name, f"{name}/status"))
    made = (*start, ("spec.suspend", True), ("metadata.name", name))
    rest.create(path(NAMESPACE, plural("RolloutJob")), manifest("RolloutJob", made))

    def change() -> None:
        stored = rest.call("GET", where)
        put(stored, at, value)
        put(stored, "spec.suspend", not goes_on)
        rest.call("PUT", where, stored)

    for status in ({}, SUSPENDED["False"]):
        rest.merge(at_status, {"status": status})
        with pytest.raises(Refused, match="changes only while the job is suspended"):
            change()  # nobody has stopped it yet
    rest.merge(at_status, {"status": SUSPENDED["True"]})
    change()


MAY_CHANGE: dict[str, Any] = {
    "spec.suspend": True,
    "spec.parallelism": 16,
    "spec.startBurst": 2,
    "spec.activeDeadlineSeconds": 7,
    "spec.ttlSecondsAfterFinished": GONE,
    "spec.engine.endpoints": ["http://10.0.0.6:8000"],
    "spec.gateway.replicas": 2,
    "spec.gateway.idleSeconds": 0,
    "spec.group.retry": {"infra": 0},
    "spec.staleness": GONE,
    "spec.trainer": {"heartbeatSeconds": 5, "collectSeconds": 50},
}


@pytest.mark.parametrize(("at", "value"), MAY_CHANGE.items(), ids=MAY_CHANGE)
def test_what_may_change_while_a_job_runs(api: Api, at: str, value: Any) -> None:
    name = "may-" + at.lower().replace(".", "-")
    assert changed(api, Pair((), (), ()), name, ((at, value),)) is None
