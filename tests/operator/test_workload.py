"""The Workload of a job: what it asks of Kueue, how Kueue's answer is read, what its status is told."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from sandgate.contract.job import RolloutJob
from sandgate.contract.labels import PRIORITY_CLASS, QUEUE
from sandgate.contract.manifest_decoder import decode
from sandgate.contract.names import workload_name
from sandgate.operator.manifests import engine_objects, gateway_objects
from sandgate.operator.manifests.example_session import session_objects
from sandgate.operator.manifests.workload import ask_of, placed, pod_sets, workload
from sandgate.operator.observed.workload import (
    finished,
    flavors_of,
    given_back,
    told,
    version_of,
    workload_seen,
)
from sandgate.operator.plan.kueue import Placement
from sandgate.operator.settings import Settings
from tests.contract.manifests import spoilt

Json = Any
SETTINGS = Settings()
LABELS = {QUEUE: "team", PRIORITY_CLASS: "high"}
VERIFIER = {"container": {"image": "judge:1", "resources": {"requests": {"cpu": "2"}}}}


def job(*changes: tuple[str, Any], labels: dict[str, str] | None = None) -> RolloutJob:
    managed = {"image": "engine:1", "replicas": 2, "gpus": 4}
    made = decode(RolloutJob, spoilt(("spec.engine", {"managed": managed}), *changes))
    meta = replace(made.metadata, namespace="lab", uid="u-1", labels=LABELS if labels is None else labels)
    return replace(made, metadata=meta)


def sets(of: RolloutJob) -> dict[str, Json]:
    return {one["name"]: one for one in pod_sets(of, SETTINGS)}


# -- what it asks for -------------------------------------------------------------------------------------------------


def test_pod_sets_ask_for_what_the_pods_ask_for() -> None:
    found = sets(job(("spec.parallelism", 3), ("spec.groupSize", 4)))
    assert {name: one["count"] for name, one in found.items()} == {
        "gateways": 1,
        "engines": 2,
        "sandboxes": 3,
    }
    (gateway,) = found["gateways"]["template"]["spec"]["containers"]
    assert gateway["resources"] == SETTINGS.gateway_resources
    (engine,) = found["engines"]["template"]["spec"]["containers"]
    assert engine["resources"] == {"limits": {"nvidia.com/gpu": "4"}}
    assert {"key": "nvidia.com/gpu", "operator": "Exists"} in found["engines"]["template"]["spec"][
        "tolerations"
    ]
    (agent,) = found["sandboxes"]["template"]["spec"]["containers"]
    assert agent["resources"]["requests"]["cpu"] == "100m"


def test_a_job_asks_for_no_more_sandboxes_than_it_has_samples() -> None:
    tasks = {"inline": [{"uid": "a", "prompt": "x"}, {"uid": "b", "prompt": "y"}]}
    few = job(("spec.parallelism", 100), ("spec.groupSize", 2), ("spec.group", {}), ("spec.tasks", tasks))
    assert sets(few)["sandboxes"]["count"] == 4


def test_an_engine_that_is_not_the_jobs_is_nobodys_pod_set() -> None:
    assert set(sets(job(("spec.engine", {"endpoints": ["http://10.0.0.5:8000"]})))) == {
        "gateways",
        "sandboxes",
    }


def test_a_verifier_comes_after_its_agent_and_counts_as_an_init_container() -> None:
    judged = job(("spec.reward", {"source": "verifier", "verifier": VERIFIER}))
    spec = sets(judged)["sandboxes"]["template"]["spec"]
    assert [one["resources"]["requests"]["cpu"] for one in spec["initContainers"]][-1] == "2"


def test_no_environment_leaves_the_job() -> None:
    """Prompts and names of Secrets are not Kueue's to know."""
    for one in pod_sets(job(), SETTINGS):
        for container in one["template"]["spec"]["containers"]:
            assert set(container) <= {"name", "image", "resources", "restartPolicy"}


@pytest.mark.parametrize(
    ("change", "same"),
    [
        (("spec.parallelism", 2), False),
        (("spec.engine.managed.replicas", 3), False),
        (("spec.activeDeadlineSeconds", 7), True),
    ],
)
def test_another_digest_is_another_ask(change: tuple[str, Any], same: bool) -> None:
    one, other = ask_of(job(), SETTINGS), ask_of(job(change), SETTINGS)
    assert one is not None
    assert other is not None
    assert (one.digest == other.digest) is same


def test_another_queue_or_class_is_another_ask_and_no_queue_is_none() -> None:
    asks = [
        ask_of(job(labels={QUEUE: q, PRIORITY_CLASS: c}), SETTINGS)
        for q, c in (("a", ""), ("b", ""), ("a", "x"))
    ]
    assert len({one.digest for one in asks if one is not None}) == 3
    assert ask_of(job(labels={}), SETTINGS) is None


def test_the_object() -> None:
    of = job(("spec.suspend", True))
    ask = ask_of(of, SETTINGS)
    assert ask is not None
    body = workload(of, SETTINGS, ask, 100, {"sandgate.dev/asks": ask.digest})
    assert body["metadata"]["name"] == workload_name("shop", "u-1")
    assert body["metadata"]["ownerReferences"][0]["controller"] is True
    assert QUEUE not in body["metadata"]["labels"]
    spec = body["spec"]
    assert (spec["queueName"], spec["active"], spec["priority"]) == ("team", False, 100)
    assert spec["priorityClassRef"] == {
        "group": "kueue.x-k8s.io",
        "kind": "WorkloadPriorityClass",
        "name": "high",
    }


def test_a_later_job_of_the_same_name_has_another_workload() -> None:
    assert workload_name("shop", "u-1") != workload_name("shop", "u-2")
    assert len(workload_name("x" * 52, "u")) <= 63


# -- where its pods go ------------------------------------------------------------------------------------------------

TOLERATION = {"key": "spot", "operator": "Exists", "effect": "NoSchedule"}
PLACE = Placement(
    labels={"sandgate.dev/role": "x", "team": "a"}, node_selector={"pool": "gpu"}, tolerations=(TOLERATION,)
)


def test_pods_go_to_the_nodes_of_their_flavor() -> None:
    of = job()
    objects = [
        *engine_objects(of, SETTINGS),
        *gateway_objects(of, SETTINGS, engine_urls=(), secret_hex="ab" * 32),
    ]
    before = copy.deepcopy(objects)
    after = {one["kind"]: placed(one, {"engines": PLACE}) for one in objects}
    assert objects == before, "the objects themselves are left as they were"
    template = after["Deployment"]["spec"]["template"]
    assert template["spec"]["nodeSelector"] == {"pool": "gpu"}
    assert template["spec"]["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}, TOLERATION]
    assert template["metadata"]["labels"]["team"] == "a"
    assert template["metadata"]["labels"]["sandgate.dev/role"] == "engine", "ours win"
    assert "nodeSelector" not in after["StatefulSet"]["spec"]["template"]["spec"], "of another pod set"


def test_a_templates_own_selector_stays_beside_the_flavors() -> None:
    pod = {
        "kind": "Pod",
        "metadata": {},
        "spec": {"nodeSelector": {"disk": "ssd"}, "tolerations": [TOLERATION]},
    }
    spec = placed(pod, {"sandboxes": PLACE})["spec"]
    assert spec == {"nodeSelector": {"disk": "ssd", "pool": "gpu"}, "tolerations": [TOLERATION]}


# -- how it is read ---------------------------------------------------------------------------------------------------


def condition(kind: str, status: str = "True", reason: str = "R", message: str = "m") -> Json:
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }


def body(*conditions: Json, spec: Json | None = None, **status: Any) -> Json:
    """As Kueue leaves it."""
    counted = [{"name": "gateways", "count": 1}, {"name": "sandboxes", "count": 4}]
    notes = {"sandgate.dev/asks": "d1"}
    return {
        "metadata": {"uid": "w", "resourceVersion": "7", "generation": 2, "annotations": notes},
        "spec": {"podSets": counted, "active": True, **(spec or {})},
        "status": {"conditions": list(conditions), **status},
    }


RESERVED, IS_ADMITTED = condition("QuotaReserved"), condition("Admitted", message="The workload is admitted")
ADMISSION = {
    "clusterQueue": "q",
    "podSetAssignments": [
        {"name": "gateways", "count": 1, "flavors": {"cpu": "small", "memory": "small"}},
        {"name": "sandboxes", "count": 3, "flavors": {"cpu": "spot", "nvidia.com/gpu": "gpu"}},
    ],
}
FLAVORS: dict[str, Json] = {
    "small": {"spec": {}},
    "spot": {"spec": {"nodeLabels": {"pool": "spot"}, "tolerations": [TOLERATION]}},
    "gpu": {"spec": {"nodeLabels": {"gpu": "yes"}}},
}
CHECK = {
    "name": "provision",
    "state": "Pending",
    "message": "nodes come",
    "podSetUpdates": [{"name": "gateways", "annotations": {"a": "1"}, "nodeSelector": {"zone": "z"}}],
}


def test_an_admitted_workload_is_read_whole() -> None:
    found = workload_seen(body(RESERVED, IS_ADMITTED, admission=ADMISSION), FLAVORS)
    assert found.may_run
    assert (version_of(body(RESERVED)), found.digest) == (7, "d1")
    assert (found.counts, found.assigned) == (
        {"gateways": 1, "sandboxes": 4},
        {"gateways": 1, "sandboxes": 3},
    )
    assert found.places["gateways"] == Placement()
    assert found.places["sandboxes"] == Placement(
        node_selector={"pool": "spot", "gpu": "yes"}, tolerations=(TOLERATION,)
    )
    assert flavors_of(body(admission=ADMISSION)) == {"small", "spot", "gpu"}


def test_what_admission_checks_add_is_added() -> None:
    places = workload_seen(body(admission=ADMISSION, admissionChecks=[CHECK]), FLAVORS).places
    assert places["gateways"] == Placement(annotations={"a": "1"}, node_selector={"zone": "z"})


WORDS: dict[str, tuple[Json, dict[str, Any], str]] = {
    "nothing yet": (body(), FLAVORS, ""),
    "no quota": (
        body(condition("QuotaReserved", "False", "Pending", "insufficient unused quota for cpu")),
        FLAVORS,
        "insufficient unused quota for cpu",
    ),
    "an admission check": (
        body(RESERVED, admission=ADMISSION, admissionChecks=[CHECK]),
        FLAVORS,
        "it has quota and waits for provision Pending: nodes come",
    ),
    "preempted": (
        body(
            RESERVED,
            IS_ADMITTED,
            condition("Evicted", reason="Preempted", message="for b"),
            admission=ADMISSION,
        ),
        FLAVORS,
        "Preempted: for b",
    ),
    "preempted, and waiting again": (
        body(
            condition("Evicted", reason="Preempted", message="for b"),
            condition("QuotaReserved", "False", message="no room"),
        ),
        FLAVORS,
        "Preempted: for b; since then: no room",
    ),
    "preempted a moment ago": (
        body(
            condition("Evicted", reason="Preempted", message="for b"),
            condition("QuotaReserved", "False", message="for b"),
        ),
        FLAVORS,
        "Preempted: for b",
    ),
    "stopped by hand": (
        body(spec={"active": False}),
        FLAVORS,
        "its Workload is stopped (spec.active is false)",
    ),
    "finished by somebody": (
        body(condition("Finished", message="out of sync")),
        FLAVORS,
        "its Workload is finished: out of sync",
    ),
    "a flavor that is gone": (
        body(RESERVED, IS_ADMITTED, admission=ADMISSION),
        {"small": {}, "gpu": {}},
        "there is no ResourceFlavor spot, which it was given",
    ),
}


@pytest.mark.parametrize(("found", "flavors", "words"), WORDS.values(), ids=WORDS)
def test_its_words_are_kueues(found: Json, flavors: dict[str, Any], words: str) -> None:
    seen = workload_seen(found, flavors)
    assert seen.words == words
    assert not seen.may_run


@pytest.mark.parametrize(
    "junk", [{}, {"status": None}, {"status": {"conditions": "x", "admission": []}}, {"spec": 3}]
)
def test_junk_is_no_leave(junk: Json) -> None:
    assert not workload_seen(junk, {}).may_run


# -- what its status is told ------------------------------------------------------------------------------------------


def by_type(patch: Json) -> dict[str, tuple[str, str]]:
    return {one["type"]: (one["status"], one["reason"]) for one in patch["conditions"]}


@pytest.mark.parametrize(
    ("reason", "requeued"),
    [
        ("Preempted", "True"),
        ("NodeFailures", "True"),
        ("Deactivated", "False"),
        ("PodsReadyTimeout", "False"),
    ],
)
def test_quota_goes_back_as_kueues_own_jobs_give_it(reason: str, requeued: str) -> None:
    evicted = body(
        RESERVED, IS_ADMITTED, condition("Evicted", reason=reason, message="why"), admission=ADMISSION
    )
    patch = given_back(evicted, 100.0)
    assert patch["admission"] is None
    assert by_type(patch) == {
        "QuotaReserved": ("False", "Pending"),
        "Admitted": ("False", "NoReservation"),
        "Evicted": ("True", reason),
        "Requeued": (requeued, reason),
    }
    after = workload_seen(body(*patch["conditions"]), {})
    assert not after.reserved
    assert not after.admitted


def test_pods_that_are_not_needed_any_more_are_told_and_others_conditions_stay() -> None:
    patch = told(body(RESERVED, IS_ADMITTED), {"sandboxes": 2}, 100.0, ready=True)
    assert patch["reclaimablePods"] == [{"name": "sandboxes", "count": 2}]
    assert set(by_type(patch)) == {"QuotaReserved", "Admitted", "PodsReady"}
    after = workload_seen(body(*patch["conditions"], reclaimablePods=patch["reclaimablePods"]), FLAVORS)
    assert (after.reclaimable, after.ready) == ({"sandboxes": 2}, True)


def test_a_condition_that_stays_as_it_was_keeps_its_time() -> None:
    ready = condition("PodsReady")
    (one,) = told(body(ready), {}, 1e9, ready=True)["conditions"]
    assert one["lastTransitionTime"] == ready["lastTransitionTime"]


def test_the_end() -> None:
    assert by_type(finished(body(), 1.0, "done", succeeded=True)) == {"Finished": ("True", "Succeeded")}
    assert by_type(finished(body(), 1.0, "no", succeeded=False)) == {"Finished": ("True", "Failed")}


# -- size -------------------------------------------------------------------------------------------------------------

BIG = {"requests": {"cpu": "4"}}
LARGE = Settings(sandbox_resources={"requests": {"cpu": "2"}}, gateway_resources={"requests": {"cpu": "8"}})
AGENT = "spec.agent.template.spec"
TAKES: dict[str, tuple[tuple[str, Any], bool]] = {
    "another image takes as much": ((f"{AGENT}.containers[0].image", "agent:2"), True),
    "another command takes as much": ((f"{AGENT}.containers[0].command", ["other"]), True),
    "more sandboxes are counted, not measured": (("spec.parallelism", 99), True),
    "an agent of another size takes more": ((f"{AGENT}.containers[0].resources", BIG), False),
    "an agent elsewhere takes another flavor": ((f"{AGENT}.nodeSelector", {"pool": "x"}), False),
    "an agent that tolerates more takes another flavor": ((f"{AGENT}.tolerations", [{"key": "x"}]), False),
    "a runtime has an overhead": ((f"{AGENT}.runtimeClassName", "gvisor"), False),
    "a pod as a whole takes more": ((f"{AGENT}.resources", BIG), False),
    "an init container takes more": (
        (f"{AGENT}.initContainers", [{"name": "i", "image": "i:1", "resources": BIG}]),
        False,
    ),
    "a gateway of another size takes more": (
        (
            "spec.gateway.template",
            {"spec": {"containers": [{"name": "gateway", "resources": BIG}]}},
        ),
        False,
    ),
    "an engine of another size takes more": (
        (
            "spec.engine.managed.template",
            {"spec": {"containers": [{"name": "engine", "resources": BIG}]}},
        ),
        False,
    ),
    "an engine elsewhere takes another flavor": (
        ("spec.engine.managed.template", {"spec": {"nodeSelector": {"pool": "x"}}}),
        False,
    ),
}


@pytest.mark.parametrize(("change", "same"), TAKES.values(), ids=TAKES)
def test_what_another_quota_is_needed_for(change: tuple[str, Any], same: bool) -> None:
    before, after = ask_of(job(), SETTINGS), ask_of(job(change), SETTINGS)
    assert before is not None
    assert after is not None
    assert (before.takes == after.takes) is same


def test_an_installation_that_gives_more_asks_for_more_and_takes_the_same() -> None:
    before, after = ask_of(job(), SETTINGS), ask_of(job(), LARGE)
    assert before is not None
    assert after is not None
    assert before.digest != after.digest
    assert before.takes == after.takes


def admitted(of: RolloutJob) -> dict[str, Placement]:
    """As the operator reads it, of a Workload that was made under SETTINGS."""
    ask = ask_of(of, SETTINGS)
    assert ask is not None
    body = workload(of, SETTINGS, ask, None, {})
    given = [{"name": one["name"], "count": one["count"], "flavors": {}} for one in body["spec"]["podSets"]]
    body["status"] = {
        "admission": {"podSetAssignments": given},
        "conditions": [{"type": kind, "status": "True"} for kind in ("QuotaReserved", "Admitted")],
    }
    return dict(workload_seen(body, {}).places)


JOBS = {
    "an agent that says nothing of its size": (),
    "an agent that says some of it, and has company": (
        (f"{AGENT}.containers[0].resources", BIG),
        (f"{AGENT}.initContainers", [{"name": "i", "image": "i:1"}]),
    ),
    "a verifier": (("spec.reward", {"source": "verifier", "verifier": VERIFIER}),),
}


@pytest.mark.parametrize("changes", JOBS.values(), ids=JOBS)
def test_pods_of_a_job_that_runs_are_as_large_as_was_admitted_though_the_installation_gives_more(
    changes: tuple[tuple[str, Any], ...],
) -> None:
    made = job(*changes)
    places = admitted(made)

    def objects(settings: Settings) -> list[Json]:
        of_job = gateway_objects(made, settings, engine_urls=(), secret_hex="00" * 32)
        return [*of_job, *engine_objects(made, settings), *session_objects(made, settings)]

    before, after = objects(SETTINGS), objects(LARGE)
    assert before != after
    assert [placed(body, places) for body in after] == before


def test_containers_of_one_name_are_not_taken_for_each_other() -> None:
    twins = [{"name": "verifier", "image": "i:1", "resources": BIG}]
    changes = (
        (f"{AGENT}.initContainers", twins),
        ("spec.reward", {"source": "verifier", "verifier": VERIFIER}),
    )
    made = job(*changes)
    places = admitted(made)
    pods = [one for one in session_objects(made, SETTINGS) if one["kind"] == "Pod"]
    assert [placed(body, places) for body in pods] == pods
