"""What is left of a round that failed: what objects and gateways say of each session, and everybody's logs."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from sandgate.contract.errors import SandgateError
from sandgate.contract.session import SessionSummary
from sandgate.gateway.client import GatewayClient
from sandgate.trainer.client.cluster import ClusterPlace, JobGateways, job_gateways
from tests.cluster.e2e.world import SYSTEM, World, conditions

GATEWAY_S = 10.0
"""How long a gateway is asked; one that does not answer then is away, which is worth to know."""
TROUBLE = (AssertionError, SandgateError, OSError, ValueError, KeyError, subprocess.SubprocessError)
"""The cluster was broken a moment ago; whatever of it does not answer, the rest has something to say."""
GATEWAYS = "sandgate.dev/role=gateway"
OPERATORS = "app.kubernetes.io/name=sandgate-operator"
KINDS = "rolloutjobs,agentsessions,pods,events"
Body = Mapping[str, Any]


def testify(world: World, namespace: str, job: str, folder: Path) -> str:
    """For people: each session that is not known to be committed, by its object and by its gateway. Objects and logs
    are written to `folder`."""
    folder.mkdir(exist_ok=True)
    objects = tried(partial(world.cluster.kubectl, "get", KINDS, "-n", namespace, "-o", "json"))
    (folder / "objects.json").write_text(objects, "utf-8")
    said: dict[str, SessionSummary] = {}
    asked = tried(partial(ask_gateways, world, namespace, job, said))
    (folder / "gateways.txt").write_text("\n".join(map(str, said.values())), "utf-8")
    for name, text in logs(world, namespace).items():
        (folder / f"{name}.log").write_text(text, "utf-8")
    return f"{asked}\n{tried(partial(open_cases, objects, said))}\nobjects and logs: {folder}"


def tried(ask: Callable[[], str]) -> str:
    """Its answer, or why there is none."""
    try:
        return ask()
    except TROUBLE as error:
        return f"{type(error).__name__}: {error}"


def ask_gateways(world: World, namespace: str, job: str, said: dict[str, SessionSummary]) -> str:
    """Puts what each session is into `said`; gives what each gateway holds."""

    place = ClusterPlace(namespace=namespace, kubeconfig=str(world.cluster.kubeconfig))
    with job_gateways(job, place) as there, ThreadPoolExecutor(1) as beside:  # our thread may run a loop
        parts = [tried(beside.submit(asyncio.run, ask(there, name, said)).result) for name in there.origins]
    return "\n".join(parts)


async def ask(there: JobGateways, name: str, said: dict[str, SessionSummary]) -> str:
    """One of them."""
    client = GatewayClient(there.origins[name], there.key, deadline_s=GATEWAY_S)
    async with client, asyncio.timeout(3 * GATEWAY_S):
        listed = [one async for one in client.sessions(job=there.job)]
        said.update({one.session_id: one for one in listed})
        done = sum(one.committed for one in listed)
        return f"{name}: {len(listed)} sessions, {done} committed; {json.dumps(await client.status())}"


def open_cases(objects: str, said: Mapping[str, SessionSummary]) -> str:
    """A line for each sample of which no attempt is committed and well, attempts by their names."""
    sessions = [one for one in json.loads(objects)["items"] if one["kind"] == "AgentSession"]
    by_sample: dict[tuple[str, int], list[Body]] = {}
    for one in sessions:
        by_sample.setdefault((one["spec"]["taskUid"], one["spec"]["sampleIndex"]), []).append(one)
    lines = [f"{len(sessions)} AgentSessions of {len(by_sample)} samples"]
    for sample, attempts in sorted(by_sample.items()):
        if sum(map(well, attempts)) != 1:
            lines += [f"{sample}: {describe(one, said.get(one['metadata']['name']))}" for one in attempts]
    lost = said.keys() - {one["metadata"]["name"] for one in sessions}
    return "\n".join([*lines, *(f"without an object: {said[name]}" for name in sorted(lost))])


def well(session: Body) -> bool:
    """A trainer has it, and it did not fail."""
    status = session.get("status", {})
    return conditions(session).get("TrajectoryCommitted") == "True" and not status.get("failureReason")


def describe(session: Body, said: SessionSummary | None) -> str:
    """Both books' word."""
    spec, status = session["spec"], dict(session.get("status", {}))
    known = [
        " ".join((one["type"], one["status"], one["reason"], one.get("message", "")))
        for one in status.pop("conditions", ())
    ]
    return f"{session['metadata']['name']} at {spec['gateway']}: {known} {status}; there: {said}"


def logs(world: World, namespace: str) -> dict[str, str]:
    """Name -> text, of operators and gateways, and of their last lives."""
    kubectl = world.cluster.kubectl
    found = {}
    for place, labels in ((SYSTEM, OPERATORS), (namespace, GATEWAYS)):
        pods = tried(partial(kubectl, "get", "pods", "-n", place, "-l", labels, "-o", "name"))
        for pod in (line for line in pods.split() if line.startswith("pod/")):
            for life in ((), ("--previous",)):
                name = f"{pod.removeprefix('pod/')}{'-before' if life else ''}"
                found[name] = tried(partial(kubectl, "logs", pod, "-n", place, "--all-containers", *life))
    return found
