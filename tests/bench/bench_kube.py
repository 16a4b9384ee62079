"""What one call of the operator's client costs: processor of this process, and wall time with several at once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from sandgate.operator.kubernetes.access import from_kubeconfig
from sandgate.operator.kubernetes.client import KubeClient
from tests.cluster.harness.api import Api, api_server
from tests.cluster.harness.needs import why_no_api_server

CALLS, AT_ONCE, ROUNDS = 300, 16, 3
NAMESPACE = "calls"


def pod(number: int) -> dict[str, Any]:
    container = {
        "name": "agent",
        "image": "nowhere/agent:1",
        "env": [{"name": f"NAME_{one}", "value": "x" * 40} for one in range(10)],
        "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
    }
    spec = {"containers": [container, {**container, "name": "other"}], "restartPolicy": "Never"}
    meta = {"name": f"p-{number}", "namespace": NAMESPACE, "labels": {"app": "bench"}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


async def measured(call: Callable[[int], Awaitable[Any]], calls: int) -> tuple[float, float]:
    """Microseconds of processor and milliseconds of wall time per call, of all together."""
    left = iter(range(calls))

    async def worker() -> None:
        for number in left:
            await call(number)

    cpu, wall = time.process_time(), time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(AT_ONCE)))
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    return cpu / calls * 1e6, wall / calls * 1e3


async def rounds(api: Api, calls: int, times: int) -> dict[str, float]:
    """Best of some rounds."""
    kube = KubeClient(from_kubeconfig([api.kubeconfig]))
    status = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    verbs: dict[str, Callable[[int], Awaitable[Any]]] = {
        "apply_new": lambda number: kube.apply(pod(number)),
        "apply_same": lambda number: kube.apply(pod(number)),
        "patch_status": lambda number: kube.patch_status("Pod", NAMESPACE, f"p-{number}", status),
        "delete": lambda number: kube.delete("Pod", NAMESPACE, f"p-{number}", grace_s=0),
    }
    found: dict[str, float] = {}
    for _ in range(times):
        for name, call in verbs.items():
            cpu_us, wall_ms = await measured(call, calls)
            if cpu_us <= found.get(f"{name}_cpu_us", cpu_us):
                found |= {f"{name}_cpu_us": cpu_us, f"{name}_wall_ms": wall_ms}
    await kube.aclose()
    return found


def bench(smoke: bool) -> dict[str, float]:
    """Against the API server that tests/cluster builds; nothing where it cannot be had."""
    if why_no_api_server():
        return {}
    with api_server() as (api, _), api.namespace(NAMESPACE, security="privileged"):
        return asyncio.run(rounds(api, 20 if smoke else CALLS, 1 if smoke else ROUNDS))
