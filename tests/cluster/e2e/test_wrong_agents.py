"""Jobs whose agents cannot start, or cannot work, in a real cluster: scheduler, kubelet, runtime and admission say why,
and it stands in the job's status and its Events. What keeps gateways and engines away is in test_not_ready.py."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import pytest

from tests.cluster.e2e import scripted
from tests.cluster.e2e.world import World
from tests.support.waiting import until_now

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300, func_only=True)]

Json = dict[str, Any]
SIZE, RETRIES = 2, 1
WITHIN_S = 60.0
"""From the moment when its gateway takes sessions: a dozen of those start at once on few cores."""
ALL_S = 200.0
NO_QUOTA, NO_RANGE = "quota", "range"
"""Namespaces with rules of their own."""

TURN = "say('hello'); leave(reward=1.0)"


def pod(**spec: Any) -> Json:
    """`agent`, with this in its PodSpec."""
    container = scripted.python("agent", scripted.TALK + TURN)
    return {"agent": {"template": {"spec": {"containers": [container], **spec}}}}


def container(**fields: Any) -> Json:
    """`agent`, with this in its container."""
    one = scripted.python("agent", scripted.TALK + TURN) | fields
    return {"agent": {"template": {"spec": {"containers": [one]}}}}


SECRET = {"name": "data", "secret": {"secretName": "no-such-secret"}}
CLAIM = {"name": "data", "persistentVolumeClaim": {"claimName": "no-such-claim"}}
MOUNTED: Json = container(volumeMounts=[{"name": "data", "mountPath": "/data"}])["agent"]["template"]["spec"]
"""A volume that nothing mounts is no kubelet's business."""
KEY = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "no-such-secret", "key": "x"}}}

WRONG: dict[str, tuple[Json, str, str]] = {
    "image": (
        container(image="localhost/no-such-agent:1"),
        "NothingStarts",
        "no agent of the first 2 started: 2 ImageError: .*no-such-agent",
    ),
    "command": (container(command=["no-such-program"]), "ProgramMissing", "no-such-program"),
    "secret-env": (
        container(env=[KEY]),
        "PodsWait|NothingStarts",  # whichever is looked at first: its Event, or its pod after startSeconds
        'rror: secret "no-such-secret" not found',
    ),
    "secret-volume": (
        {"agent": {"template": {"spec": MOUNTED | {"volumes": [SECRET]}}}},
        "PodsWait",
        'FailedMount: .*secret "no-such-secret" not found',
    ),
    "claim": (pod(volumes=[CLAIM]), "PodsWait", 'Unschedulable: .*persistentvolumeclaim "no-such-claim" not found'),
    "node": (pod(nodeSelector={"disk": "no-such"}), "PodsWait", "Unschedulable: .*node affinity/selector"),
    "runtime": (pod(runtimeClassName="no-such-class"), "PodRefused|NothingStarts", "no-such-class"),
    "privileged": (
        container(securityContext={"privileged": True}),
        "PodRefused",
        "violates PodSecurity .*privileged",
    ),
    "script": (
        container(
            command=["python3", "-c", "import no_such_module"],
            terminationMessagePolicy="FallbackToLogsOnError",
        ),
        "AgentsFailAlike|AllFailed",  # whichever is first, where the machine is slow
        "No module named 'no_such_module'",
    ),
    "model": (
        {"model": {"name": "shpo", "tokenizer": "model"}},
        "NoEngine",
        "model 'shpo' is not served; there are \\['shop'\\]",
    ),
    NO_QUOTA: ({}, "PodsWait", "exceeded quota: few"),
    NO_RANGE: (
        container(resources={"limits": {"cpu": "3"}, "requests": {"cpu": "20m"}}),
        "PodRefused",
        "maximum cpu usage per Container is 2, but limit is 3",
    ),
}  # fmt: skip
"""Name of a job -> (what is wrong with its spec, where it stands, its message)."""


@contextmanager
def places(world: World) -> Iterator[dict[str, str]]:
    """Job -> its namespace; an engine serves them all."""
    cluster = world.cluster
    with (
        cluster.namespace("wrong-agents") as most,
        cluster.namespace("wrong-quota") as quota,
        cluster.namespace("wrong-range") as limits,
    ):
        found = dict.fromkeys(WRONG, most) | {NO_QUOTA: quota, NO_RANGE: limits}
        for namespace in (most, quota, limits):
            scripted.prepare(world, namespace)
        cluster.apply(*engine(most))
        hard: Json = {"spec": {"hard": {"pods": "1"}}}
        usual: Json = {"default": {"cpu": "1"}, "defaultRequest": {"cpu": "20m"}}
        bounds: Json = {"spec": {"limits": [{"type": "Container", "max": {"cpu": "2"}, **usual}]}}
        cluster.apply(
            {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "few", "namespace": quota}}
            | hard,
            {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "range", "namespace": limits}}
            | bounds,
        )
        yield {**found, "engine": most}


def engine(namespace: str) -> tuple[Json, Json]:
    """The scripted engine as a pod that is nobody's, and its Service."""
    managed = scripted.engine()["managed"]
    spec = json.loads(json.dumps(managed["template"]["spec"]))
    spec["securityContext"] = {
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    safe = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    spec["containers"][0] |= {
        "image": managed["image"],
        "command": managed["command"],
        "securityContext": safe,
    }
    meta = {"name": "one-engine", "namespace": namespace}
    ports = [{"port": 8000, "targetPort": 8000}]
    return (
        {"apiVersion": "v1", "kind": "Pod", "metadata": meta | {"labels": {"app": "one-engine"}}, "spec": spec},
        {"apiVersion": "v1", "kind": "Service", "metadata": meta,
         "spec": {"selector": {"app": "one-engine"}, "ports": ports}},
    )  # fmt: skip


def test_a_job_whose_agents_cannot_start_says_why_within_a_minute_and_makes_one_group_of_pods(
    world: World,
) -> None:
    began = time.monotonic()
    with places(world) as namespaces:
        where = {"kind": "vllm", "logprobsMode": "processed_logprobs"}
        where["endpoints"] = [f"http://one-engine.{namespaces['engine']}:8000"]  # type: ignore[assignment]
        for name, (change, *_) in WRONG.items():
            tasks = 1 if name == "script" else 3
            blocks: Json = {"engine": where, "parallelism": 99, "group": {"retry": {"infra": RETRIES}}}
            job = scripted.job(name, TURN, tasks=tasks, samples=SIZE, **(blocks | change))
            scripted.submit(world, namespaces[name], job)
        found: dict[str, list[Json]] = {}

        def all_say() -> bool:
            for name in WRONG:
                found[name] = events(world, namespaces[name], name)
            return all(told(found[name], *WRONG[name][1:]) for name in WRONG)

        try:
            until_now(all_say, what="each says why", within_s=ALL_S)
        except AssertionError as error:
            silent = [name for name in WRONG if not told(found[name], *WRONG[name][1:])]
            seen = {name: [(one["reason"], one["message"]) for one in found[name]] for name in silent}
            raise AssertionError(f"{error}: {json.dumps(seen, indent=1)}") from None
        print(f"all {len(WRONG)} after {time.monotonic() - began:.0f} s")
        for name, (_, reason, words) in WRONG.items():
            if ready := told(
                found[name], "GatewaysAndEnginesReady", ""
            ):  # one that failed at once never told it
                late = told(found[name], reason, words) - ready
                assert late <= WITHIN_S, f"{name} took {late} s"
            body = world.get("rolloutjob", namespaces[name], name)
            conditions = {one["type"]: one["status"] for one in body["status"]["conditions"]}
            assert conditions["Complete"] == "False", name
            assert body["status"]["running"] == 0, name
            made = world.list("ags", namespaces[name], f"sandgate.dev/job={name}")
            assert bool(made) == (reason != "NoEngine"), f"{name}: agents are begun once there is an engine"
            assert len(made) <= SIZE * (1 + RETRIES), name
            assert len({one["spec"]["taskUid"] for one in made}) <= 1, f"{name}: one group alone was begun"


def events(world: World, namespace: str, name: str) -> list[Json]:
    """The job's own."""
    wanted = f"--field-selector=involvedObject.kind=RolloutJob,involvedObject.name={name}"
    said = world.cluster.kubectl("get", "events", "-n", namespace, wanted, "-o", "json")
    listed: list[Json] = json.loads(said)["items"]
    return listed


def told(listed: list[Json], reason: str, words: str) -> float:
    """When an Event first said so; 0: none did."""
    times = [
        datetime.fromisoformat(one["firstTimestamp"]).timestamp()
        for one in listed
        if re.fullmatch(reason, one["reason"]) and re.search(words, one["message"])
    ]
    return min(times, default=0.0)
