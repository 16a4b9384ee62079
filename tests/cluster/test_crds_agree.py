"""The decoder and the API server mean the same: what one refuses the other does, and both fill in the same defaults.

Differences are listed here, each with its reason, and each is checked to be one.
"""

from __future__ import annotations

import datetime as dt
import json
import math
import os
from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sandgate.contract.conditions import JobCondition, JobReason, SessionCondition, SessionReason
from sandgate.contract.errors import BadManifest
from sandgate.contract.failure_reasons import FAILURE_CLASS, FailureReason
from sandgate.contract.job import API_VERSION, AgentSession, RolloutJob
from sandgate.contract.manifest_decoder import INT64_MAX, decode, encode
from sandgate.contract.session import parse_termination
from sandgate.contract.status import AgentSessionStatus, Condition, ConditionStatus, RolloutJobStatus
from sandgate.operator.cluster.agent_end import agent_end
from sandgate.operator.local.manifest import parse_job
from sandgate.operator.plan.actions import Exit, Running
from tests.cluster.crds import Json, install, path, refusal
from tests.cluster.harness.api import Api
from tests.cluster.harness.rest import Refused
from tests.contract.manifests import GOOD, put, spoilt
from tests.contract.test_bad_manifests import BAD, TWO_CHANGES, name
from tests.contract.test_job import json_values, paths
from tests.tidy.source import ROOT

NAMESPACE = "crd-agree"
AGENT = "spec.agent.template.spec.containers[0]"

NO_UNION = "text or a list: a structural schema has no unions"
NO_JSON = "it cannot be written as JSON"
GO_MENDS = "Go reads half a surrogate pair as U+FFFD"
GO_FLOAT = "in free JSON Go reads it as a float"
ONLY_DECODER = {
    ("spec.tasks.inline[0].prompt", "5"): NO_UNION,
    ("spec.tasks.inline[0].prompt", "[]"): NO_UNION,
    ("spec.tasks.inline[0].uid", repr("\ud800")): GO_MENDS,
    ("spec.tasks.inline[0].data", repr(10**30)): GO_FLOAT,
    (
        "spec.gateway.media",
        repr({"allowedHosts": ["[:::]"]}),
    ): "a pattern does not know which colons are an address",
    ("status.running", repr("x")): "the status of a job that is created is dropped",
}
"""(path, repr of the value) -> why only the decoder refuses it."""
UNSAYABLE = (dt.date, dt.datetime)
"""YAML and Python know them, JSON does not: they never reach an API server."""


@pytest.fixture(scope="module")
def api(apiserver: Api) -> Iterator[Api]:
    install(apiserver)
    with apiserver.namespace(NAMESPACE):
        yield apiserver


def clean(*changes: tuple[str, Any]) -> Json:
    """GOOD with changes, without what only a stored object has."""
    made = spoilt(*changes)
    if isinstance(made.get("metadata"), dict):
        made["metadata"].pop("managedFields", None)
    return made


def sayable(value: Any) -> bool:
    if isinstance(value, dict):
        return all(isinstance(key, str) for key in value) and all(map(sayable, value.values()))
    if isinstance(value, list):
        return all(map(sayable, value))
    return not isinstance(value, UNSAYABLE) and not (isinstance(value, float) and not math.isfinite(value))


SAYABLE = [case for case in BAD if sayable(case[1])]


def test_most_of_the_corpus_can_be_said_in_json() -> None:
    assert len(BAD) - len(SAYABLE) == 3  # a date, NaN, infinity
    assert ONLY_DECODER.keys() <= {(at, repr(value)) for at, value, _ in SAYABLE}


@pytest.mark.parametrize(("at", "value", "says"), SAYABLE, ids=[name(case) for case in SAYABLE])
def test_the_api_server_refuses_what_the_decoder_refuses(api: Api, at: str, value: Any, says: str) -> None:
    refused = refusal(api, NAMESPACE, clean((at, value)))
    if (at, repr(value)) in ONLY_DECODER:
        assert refused is None, "it is refused after all: strike it off ONLY_DECODER"
    else:
        assert refused is not None
        assert refused.status in (400, 404, 422)


@pytest.mark.parametrize(("changes", "field"), TWO_CHANGES, ids=[field for _, field in TWO_CHANGES])
def test_the_api_server_refuses_faults_that_need_two_changes(
    api: Api, changes: list[tuple[str, Any]], field: str
) -> None:
    refused = refusal(api, NAMESPACE, clean(*changes))
    if field == "spec.tasks.inline[0].prompt[0]":
        assert refused is None, NO_UNION
    else:
        assert refused is not None


MORE = int(os.environ.get("SANDGATE_FUZZ_EXAMPLES") or 150)
"""Each costs a call of 5 ms."""
SPEC = [at for at in paths(GOOD) if at.startswith("spec.")]


@settings(max_examples=MORE, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    at=st.sampled_from(SPEC),
    value=json_values | st.sampled_from([0, 1, -1, 2**31, 4.0, "", "a", [], {}, None]),
)
@example(at="spec.groupSize", value=4.0)
@example(at="spec.staleness", value=None)
@example(at="spec.sampling.temperature", value=None)
@example(at="spec.tasks.inline[0].data", value=None)
@example(at="spec.tasks.inline[0].prompt", value=None)
@example(at=f"{AGENT}.command", value=None)
@example(at=f"{AGENT}.command[0]", value="\0")
@example(at="spec.agent.template.spec.containers[0].image", value="")
@example(at="spec.engine.endpoints[0]", value="http://a/\u00a0")
@example(at="spec.engine.endpoints[0]", value="http://a/\x1c")
@example(at="spec.gateway.journal.sqlite.storage", value="\u0661")
def test_any_value_in_any_place_means_the_same_to_both(api: Api, at: str, value: Any) -> None:
    """What the decoder accepts is accepted, and stored as the decoder understands it; what is stored can be decoded."""
    if not sayable(value):
        return
    manifest = clean((at, value))
    try:
        job = decode(RolloutJob, manifest)
    except BadManifest:
        job = None
    stored, refused = tried(api, manifest)
    if stored is None:
        assert job is None or whole_float(value), f"only the API server refuses {at} = {value!r}: {refused}"
        return
    if job is not None:
        assert floats(stored["spec"]) == floats(encode(job)["spec"])
    elif not known_difference(at, manifest):
        decode(RolloutJob, stored)  # what it refused was dropped, as a null is


def tried(api: Api, manifest: Json) -> tuple[Json | None, Refused | None]:
    """What would be stored, or why nothing would be."""
    try:
        return api.rest().create(path(NAMESPACE, query="dryRun=All"), manifest), None
    except Refused as refused:
        return None, refused


def known_difference(at: str, manifest: Json) -> bool:
    """The reasons of ONLY_DECODER, for values at random."""
    free = at.startswith("spec.tasks.inline")  # NO_UNION
    text = json.dumps(manifest, ensure_ascii=False)
    halves = any("\ud800" <= char <= "\udfff" for char in text)  # GO_MENDS
    return free or halves or any(abs(number) > INT64_MAX for number in numbers(manifest))  # GO_FLOAT


def floats(value: Any) -> Any:
    """With every number as a float: Go writes 3e16 with all its digits."""
    if isinstance(value, dict):
        return {name: floats(one) for name, one in value.items()}
    if isinstance(value, list):
        return [floats(one) for one in value]
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def whole_float(value: Any) -> bool:
    """4.0 for a whole number: CEL refuses it, the schema alone and the decoder do not. kubectl sends 4."""
    if isinstance(value, dict | list):
        return any(map(whole_float, value.values() if isinstance(value, dict) else value))
    return isinstance(value, float) and value.is_integer()


def numbers(value: Any) -> Iterator[int]:
    if isinstance(value, dict | list):
        for one in value.values() if isinstance(value, dict) else value:
            yield from numbers(one)
    elif isinstance(value, int):
        yield value


MINIMAL: Json = {
    "apiVersion": "sandgate.dev/v1alpha1",
    "kind": "RolloutJob",
    "metadata": {"name": "minimal"},
    "spec": {
        "model": {"name": "tiny", "tokenizer": "/models/tiny"},
        "engine": {"endpoints": ["http://10.0.0.5:8000"]},
        "tasks": {"inline": [{"uid": "q1"}]},
        "agent": {"template": {"spec": {"containers": [{"image": "my/agent:1"}]}}},
    },
}
BLOCKS: dict[str, list[tuple[str, Any]]] = {
    "a manifest with no more than what is required": [],
    "managed engine": [("spec.engine", {"managed": {}})],
    "engine selector": [("spec.engine", {"selector": {"matchLabels": {"a": "b"}}})],
    "journal in Postgres": [("spec.gateway", {"journal": {"postgres": {"secretRef": {"name": "db"}}}})],
    "tasks in a ConfigMap": [("spec.tasks", {"configMap": {"name": "tasks"}})],
    "tasks by a queue": [("spec.tasks", {"queue": {}})],
    "verifier": [("spec.reward", {"source": "verifier", "verifier": {"container": {"image": "v"}}})],
    "empty blocks": [(f"spec.{one}", {}) for one in ("gateway", "sampling", "limits", "reward", "group")],
    "trainer and staleness": [("spec.trainer", {}), ("spec.staleness", {})],
    "parquet": [("spec.output", {"parquet": {"url": "s3://b/d"}})],
}


@pytest.mark.parametrize("changes", BLOCKS.values(), ids=BLOCKS)
def test_the_api_server_fills_in_the_defaults_of_the_decoder(
    api: Api, changes: list[tuple[str, Any]]
) -> None:
    manifest = json.loads(json.dumps(MINIMAL))
    for at, value in changes:
        put(manifest, at, value)
    stored = api.rest().create(path(NAMESPACE, query="dryRun=All"), manifest)
    assert stored["spec"] == encode(decode(RolloutJob, manifest))["spec"]
    assert decode(RolloutJob, stored).spec == decode(RolloutJob, manifest).spec


def test_a_session_has_the_defaults_of_the_decoder_too(api: Api) -> None:
    manifest = {
        "apiVersion": "sandgate.dev/v1alpha1",
        "kind": "AgentSession",
        "metadata": {"name": "remote"},
        "spec": {"jobName": "shop", "taskUid": "q 1 \u00e9", "remote": True},
    }
    stored = api.rest().create(path(NAMESPACE, "agentsessions", query="dryRun=All"), manifest)
    assert stored["spec"] == encode(decode(AgentSession, manifest))["spec"]


@pytest.mark.parametrize("file", sorted(ROOT.glob("examples/*/job.yaml")), ids=lambda file: file.parent.name)
def test_kubectl_reads_an_example_as_sandgate_run_does(api: Api, file: Any) -> None:
    """Go's YAML 1.1 has more booleans than Python's: an unquoted `n` is a key `false` there."""
    dry = ["-n", NAMESPACE, "apply", "--dry-run=server", "-o", "json", "-f", str(file)]
    here = parse_job(file.read_text("utf-8")).spec
    for more in ([], ["--server-side"]):
        stored = json.loads(api.kubectl(*dry, *more))
        assert decode(RolloutJob, stored).spec == here


def test_a_repeated_task_is_refused_by_both(api: Api) -> None:
    tasks = [{"uid": "q1"}, {"uid": "q2"}, {"uid": "q1"}]
    refused = refusal(api, NAMESPACE, clean(("spec.tasks.inline", tasks)))
    assert "Duplicate value" in str(refused)
    with pytest.raises(BadManifest, match=r"^spec.tasks.inline\[2\].uid: 'q1' is there twice"):
        decode(RolloutJob, clean(("spec.tasks.inline", tasks)))


def all_said(types: type[StrEnum], reasons: Iterable[str]) -> tuple[Condition, ...]:
    """Every condition with some reason, and every reason once."""
    told = [*reasons, ""]
    return tuple(
        Condition(
            type=one.value, status=ConditionStatus.FALSE, reason=told[index % len(told)], message="x\ny"
        )
        for index, one in enumerate(types)
    )


STATUSES: dict[str, RolloutJobStatus | AgentSessionStatus] = {
    "an empty status of a job": RolloutJobStatus(),
    "an empty status of a session": AgentSessionStatus(),
    "a job that says all": RolloutJobStatus(
        conditions=all_said(JobCondition, JobReason),
        running=3,
        policy_version=-1,
        start_time="2026-11-21T13:09:55Z",
    ),
    **{
        f"a session that failed for {reason}": AgentSessionStatus(
            base_url="http://shop-gateway-0.shop-gateway.default.svc.cluster.local:8000/sessions/x/v1",
            conditions=all_said(SessionCondition, [reason, *SessionReason]),
            reward=-0.5,
            failure_class=FAILURE_CLASS[reason].value,
            failure_reason=reason.value,
        )
        for reason in FailureReason
    },
    **{
        f"an agent that left {what}": AgentSessionStatus(
            agent_end=agent_end(Running(0.0, 1.0, Exit(9.0, code, message=parse_termination(left))))
        )
        for what, code, left in (
            ("nothing", 0, b""),
            ("a reward", 0, b'{"reward": 0.5, "reward_info": {"tests": [1, 2.5, "\xc3\xa9"]}}'),
            ("words", 3, b'a "word"\n\x1b[1m'),
            ("a NUL", -1, b"a\0"),
            ("as much as it may of what JSON spells at length", 1, b"\x01" * 4096),
        )
    },
}


@pytest.mark.parametrize(("name", "status"), list(enumerate(STATUSES.values())), ids=STATUSES)
def test_what_the_operator_writes_into_a_status_is_stored_as_it_is(
    api: Api, name: int, status: RolloutJobStatus | AgentSessionStatus
) -> None:
    body, plural = clean(), "rolloutjobs"
    if isinstance(status, AgentSessionStatus):
        spec = {"jobName": "shop", "taskUid": "q1"}
        body, plural = (
            {"apiVersion": API_VERSION, "kind": "AgentSession", "metadata": {}, "spec": spec},
            "agentsessions",
        )
    body["metadata"] = {"name": f"status-{name}"}
    rest = api.rest()
    rest.create(path(NAMESPACE, plural), body)
    stored = rest.merge(path(NAMESPACE, plural, f"status-{name}/status"), {"status": encode(status)})
    assert stored["status"] == encode(status)
    assert decode(type(status), stored["status"]) == status
