"""What real kubelets and controllers write when a sandbox ends, and that it is understood.

With SANDGATE_RECORD=1 each status is kept in tests/golden/pods, which the operator's tests read without a cluster.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sandgate.contract.failure_reasons import FailureReason as R
from sandgate.contract.labels import labels
from sandgate.operator.observed.pod_failure import IMAGE_PATIENCE_S
from sandgate.operator.observed.pod_record import PodSeen, pod_seen
from tests.cluster import pods
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.images import PYTHON
from tests.cluster.harness.rest import Refused
from tests.support.waiting import until_now

GOLDEN = Path(__file__).parents[1] / "golden" / "pods"
RECORD = bool(os.environ.get("SANDGATE_RECORD"))
Json = dict[str, Any]
Act = Callable[[Cluster, str, str], Any]

SLEEPS = "exec sleep 600"
POLITE = "trap 'exit 0' TERM; sleep 600 & wait"
DEAF = "trap '' TERM; while :; do sleep 1; done"
TOO_MUCH = "python3 -c 'bytearray(200 << 20)'"
SMALL = {"resources": {"limits": {"memory": "32Mi"}}}
TOLD = '{"reason": "NetworkPolicyNotEnforced", "detail": "10.96.0.1:443 can be reached"}'


@dataclass(frozen=True)
class Case:
    """A pod, what is done to it once it runs, and its end: (code, signal, reason), or None for no end."""

    script: str
    end: tuple[int | None, int | None, R | None] | None
    act: Act | None = None
    later: float = 0.0
    """Seconds by which it is looked at later than it is."""
    fields: Json = field(default_factory=dict)
    """Of its container."""
    spec: Json = field(default_factory=dict)
    words: str = ""
    """In the detail, or in what it waits for."""


def stop(cluster: Cluster, space: str, name: str) -> None:
    """As the operator stops a pod."""
    cluster.rest().merge(pods.path(space, name), {"spec": {"activeDeadlineSeconds": 1}})


def outlive(cluster: Cluster, space: str, name: str) -> None:
    """Its deadline counts from when the kubelet saw it, and comes when it runs: starting may take longer than that."""
    cluster.rest().merge(pods.path(space, name), {"spec": {"activeDeadlineSeconds": 8}})


def delete(cluster: Cluster, space: str, name: str) -> None:
    cluster.rest().call("DELETE", pods.path(space, name))


def evict(cluster: Cluster, space: str, name: str) -> None:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": space}}
    cluster.rest().create(f"{pods.path(space, name)}/eviction", body)


def init(script: str) -> Json:
    one = pods.pod("x", script)["spec"]["containers"][0]
    return {"initContainers": [{**one, "name": "sandgate-fetcher"}]}


def beside(script: str) -> Json:
    return {**pods.pod("x", script)["spec"]["containers"][0], "name": "tools"}


CASES: dict[str, Case] = {
    "runs": Case(SLEEPS, None),
    "exits-with-0": Case("echo '{\"reward\": 1}' > /dev/termination-log", (0, None, None)),
    "exits-with-3": Case("exit 3", (3, None, None)),
    "is-killed-by-its-own-doing": Case(
        "ulimit -c 0; python3 -c 'import os; os.abort()'; exit $?", (None, 6, None)
    ),
    "runs-out-of-memory": Case(f"exec {TOO_MUCH}", (None, 9, R.OOM_KILLED), fields=SMALL),
    "copes-with-a-child-out-of-memory": Case(f"{TOO_MUCH}; exit 0", (0, None, None), fields=SMALL),
    "has-a-side-car-that-runs-on": Case("exit 0", (0, None, None), spec={"also": SLEEPS}),
    "has-a-side-car-that-fails": Case(SLEEPS, None, spec={"also": "exit 1"}),
    "image-cannot-be-pulled": Case(
        SLEEPS,
        (None, None, R.IMAGE_ERROR),
        later=IMAGE_PATIENCE_S,
        fields={"image": "127.0.0.1:1/nothing:1", "imagePullPolicy": "Always"},
        words="ErrImagePull",
    ),
    "image-name-is-none": Case(SLEEPS, (None, None, R.IMAGE_ERROR), fields={"image": "NO NAME"}),
    "image-must-not-be-pulled": Case(SLEEPS, (None, None, R.IMAGE_ERROR), fields={"image": "nothing:1"}),
    "secret-is-missing": Case(
        SLEEPS,
        (None, None, R.START_FAILED),
        later=IMAGE_PATIENCE_S,
        fields={"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "none", "key": "k"}}}]},
        words='secret "none" not found',
    ),
    "program-is-missing": Case(
        "", (None, None, R.AGENT_MISSING), fields={"command": ["no-such-program"]}, words="no-such-program"
    ),
    "working-directory-is-relative": Case("", (None, None, R.START_FAILED), fields={"workingDir": "here"}),
    "no-node-has-room": Case(
        SLEEPS, None, fields={"resources": {"limits": {"nvidia.com/gpu": "64"}}}, words="Unschedulable: 0/"
    ),
    "fetcher-fails": Case(
        SLEEPS,
        (None, None, R.START_FAILED),
        spec=init(f"echo '{TOLD}' > /dev/termination-log; exit 3"),
        words="NetworkPolicyNotEnforced: 10.96.0.1:443 can be reached",
    ),
    "fetcher-runs": Case(SLEEPS, None, spec=init(SLEEPS)),
    "is-stopped": Case(SLEEPS, (None, 9, None), act=stop),
    "is-stopped-and-takes-it-well": Case(POLITE, (0, None, None), act=stop),
    "is-stopped-while-it-fetches": Case(SLEEPS, (None, 9, None), act=stop, spec=init(SLEEPS)),
    "outlives-its-deadline": Case(POLITE, (None, 9, R.SESSION_TIMEOUT), act=outlive, words="longer than"),
    "fetches-beyond-its-deadline": Case(
        SLEEPS, (None, 9, R.START_TIMEOUT), spec={**init(SLEEPS), "activeDeadlineSeconds": 3}
    ),
    "is-deleted": Case(POLITE, (None, None, R.EVICTED), act=delete),
    "is-deleted-and-will-not-go": Case(DEAF, (None, None, R.EVICTED), act=delete),
    "is-evicted-by-the-api": Case(DEAF, (None, None, R.EVICTED), act=evict, words="Eviction API"),
    "is-evicted-by-its-node": Case(
        "dd if=/dev/zero of=/v/x bs=1M count=9; exec sleep 600",
        (None, None, R.STORAGE_EXCEEDED),
        fields={"volumeMounts": [{"name": "v", "mountPath": "/v"}]},
        spec={"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}]},
        words="exceeds the limit",
    ),
}


def body(name: str, case: Case, **spec: Any) -> Json:
    fields = {"name": "agent", "image": PYTHON, **case.fields}
    whole = {"terminationGracePeriodSeconds": 3, **case.spec, **spec}
    also = whole.pop("also", "")
    made = pods.pod(
        name, case.script, labels=labels("shop", "agent", session=name), container=fields, **whole
    )
    made["metadata"]["annotations"] = {"kubectl.kubernetes.io/default-container": "agent"}
    made["spec"]["containers"] += [beside(also)] if also else []
    return made


def verdict(seen: PodSeen) -> tuple[int | None, int | None, R | None] | None:
    end = seen.running.exit
    return None if end is None else (end.code, end.signal, end.reason)


def record(name: str, found: Json, now: float, seen: PodSeen) -> None:
    """Without what nobody reads and what changes with every run of the same thing."""
    if not RECORD:
        return
    meta = {
        key: value
        for key, value in found["metadata"].items()
        if key not in ("managedFields", "resourceVersion")
    }
    spec = {key: found["spec"][key] for key in ("nodeName", "activeDeadlineSeconds") if key in found["spec"]}
    for kind in ("initContainers", "containers"):
        spec[kind] = [{"name": one["name"]} for one in found["spec"].get(kind, [])]
    end = verdict(seen)
    kept = {
        "now": now,
        "end": end,
        "started": seen.running.started_at is not None,
        "over": seen.over,
        "pod": {"metadata": meta, "spec": spec, "status": found["status"]},
    }
    GOLDEN.mkdir(exist_ok=True)
    (GOLDEN / f"{name}.json").write_text(json.dumps(kept, indent=1, sort_keys=True) + "\n", "utf-8")


def follow(cluster: Cluster, space: str, name: str, case: Case, within_s: float = 90.0) -> PodSeen:
    """Until it has ended, or settled where it does not end."""
    last: list[PodSeen] = []
    today: list[PodSeen] = []

    def look() -> bool:
        found = pods.look(cluster, space, name)
        now = time.time() + case.later
        today.append(pod_seen(found, time.time(), today[-1] if today else None))
        seen = pod_seen(found, now, today[-1])  # patience counts from when its trouble was first seen
        last.append(seen)
        settled = seen.running.started_at is not None or case.words in (seen.waiting or "-")
        if case.end is None and "Initialized" in str(found["status"].get("conditions")):
            states = [one["state"] for one in found["status"].get("initContainerStatuses", [])]
            settled = settled or any("running" in one for one in states)
        done = seen.running.exit is not None if case.end is not None else settled
        if done:
            record(name, found, now, seen)
        return done

    until_now(look, what=f"{name} {'ends' if case.end else 'runs'}: {last[-1:]}", within_s=within_s)
    return last[-1]


@pytest.fixture(scope="module")
def space(cluster: Cluster) -> Iterator[str]:
    """All pods of the table, started at once; on a node that no test breaks."""
    with cluster.namespace("statuses") as name:
        for case_name, case in CASES.items():
            pinned = {} if case_name == "no-node-has-room" else {"nodeSelector": home(cluster)}
            pods.start(cluster, name, body(case_name, case, **pinned))
        yield name


def home(cluster: Cluster) -> Json:
    return {"kubernetes.io/hostname": cluster.nodes[0]}


def started(cluster: Cluster, space: str, name: str) -> bool:
    status = pods.look(cluster, space, name)["status"]
    all_of = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    return any("running" in one["state"] for one in all_of)


@pytest.mark.parametrize("name", CASES)
def test_a_real_end_is_understood(cluster: Cluster, space: str, name: str) -> None:
    case = CASES[name]
    if case.act is not None:
        until_now(lambda: started(cluster, space, name), what=f"{name} runs", within_s=60)
        case.act(cluster, space, name)
    seen = follow(cluster, space, name, case)
    assert verdict(seen) == case.end, seen
    end = seen.running.exit
    assert case.words in (seen.waiting if end is None else end.detail)


def admitted(cluster: Cluster, space: str, pod: Json) -> bool:
    """The API server learns of new priority classes by a watch of its own."""
    try:
        cluster.rest().create(f"/api/v1/namespaces/{space}/pods?dryRun=All", pod)
    except Refused:
        return False
    return True


def test_a_pod_that_the_scheduler_pushes_out_was_preempted(cluster: Cluster) -> None:
    """By a port of the node, so that nobody else's pods are in the way."""
    low = f"sandgate-test-low-{time.time_ns()}"
    classes = "/apis/scheduling.k8s.io/v1/priorityclasses"
    cluster.rest().create(classes, {"metadata": {"name": low}, "value": -10})
    port = {"ports": [{"containerPort": 9, "hostPort": 48_123}]}
    case = Case(DEAF, (None, None, R.PREEMPTED), fields=port)
    try:
        with cluster.namespace("preempted", security="privileged") as space:
            pinned = {"nodeSelector": home(cluster)}
            first = body("is-preempted", case, priorityClassName=low, **pinned)
            until_now(lambda: admitted(cluster, space, first), what="the class is known")
            pods.start(cluster, space, first)
            until_now(lambda: started(cluster, space, "is-preempted"), what="it runs", within_s=60)
            pods.start(cluster, space, body("pushes", case, **pinned))
            assert verdict(follow(cluster, space, "is-preempted", case)) == case.end
            until_now(lambda: pods.gone(cluster, space, "is-preempted"), what="it is gone", within_s=60)
            delete(cluster, space, "pushes")
    finally:
        with suppress(Refused):
            cluster.rest().call("DELETE", f"{classes}/{low}")


def test_pods_of_a_node_without_power_are_lost_at_once_and_stay_lost(cluster: Cluster) -> None:
    """One leaves as soon as the node counts as gone; one waits for the node, which has forgotten it."""
    case = Case(SLEEPS, (None, None, R.NODE_LOST))
    gone = {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute"}
    pinned = {"nodeSelector": {"kubernetes.io/hostname": "n2"}}
    with cluster.namespace("dark") as space:
        leaves = body(
            "is-on-a-node-without-power", case, tolerations=[{**gone, "tolerationSeconds": 0}], **pinned
        )
        stays = body("was-on-a-node-without-power", case, tolerations=[gone], **pinned)
        pods.start(cluster, space, leaves, stays)
        for name in ("is-on-a-node-without-power", "was-on-a-node-without-power"):
            until_now(partial(started, cluster, space, name), what=f"{name} runs", within_s=60)
        with cluster.machines.powerless("n2"):
            seen = follow(cluster, space, "is-on-a-node-without-power", case)
            assert verdict(seen) == case.end
            assert not seen.over
        assert verdict(follow(cluster, space, "was-on-a-node-without-power", case)) == case.end
