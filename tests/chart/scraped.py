"""What Prometheus reads of us: names of series, and their labels."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from sandgate.operator.cluster.health import OperatorHealth, ReplicaPhase
from sandgate.operator.replica.metrics import OperatorMetrics
from tests.support.gateway import gateway

OF_OTHERS = {"up", "vllm:kv_cache_usage_perc", "vllm:generation_tokens_total", "vllm:prompt_tokens_total"}
"""Prometheus' own, and vLLM's that no gateway reads."""


async def scraped() -> dict[str, set[str]]:
    """Series -> labels, of a real gateway's /metrics after a turn, and of an operator that has acted."""
    operator = OperatorMetrics()
    operator.called("get", "Pod", "200", 0.1)
    operator.acted("Forget", "ok", 0.1)
    operator.planned(0.1)
    operator.saw("Pod", "ADDED")
    operator.listed("Pod")
    operator.sees("rl", True)
    operator.swept(ok=True)
    pages = [
        operator.render(
            ReplicaPhase.LEADING, 0.0, OperatorHealth(sessions={"running": 1}, unready={"NoEngine": 1})
        ).decode()
    ]
    async with gateway(["hello"]) as g:
        await (await g.session()).ask("hi")
        await g.admin.get("/v1/sessions/none")
        pages.append((await g.admin.get("/metrics")).text)
    found: dict[str, set[str]] = {}
    for page in pages:
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                found.setdefault(sample.name, set()).update(sample.labels)
    return found
