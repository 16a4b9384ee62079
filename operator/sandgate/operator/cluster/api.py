"""Interfaces of the API server and of gateways that the cluster driver needs; tests implement both. (pure)"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from sandgate.gateway.client import GatewayClient

Json = Any
Items = list[Json]


class Api(Protocol):
    """The verbs of operator.kubernetes.client.KubeClient that the driver uses; errors are those of contract.errors."""

    async def apply(self, body: Json, *, force: bool = True) -> Json: ...

    async def create(self, body: Json) -> Json: ...

    async def get(self, kind: str, namespace: str, name: str) -> Json: ...

    async def list(
        self, kind: str, namespace: str = "", *, labels: str = "", fields: str = "", chunks: int = 0
    ) -> Items: ...

    async def list_metadata(self, kind: str, namespace: str = "", *, labels: str = "") -> Items: ...

    async def patch(self, kind: str, namespace: str, name: str, body: Json) -> Json: ...

    async def patch_status(self, kind: str, namespace: str, name: str, body: Json) -> Json: ...

    async def put_status(self, kind: str, namespace: str, name: str, status: Json, *, uid: str) -> Json: ...

    async def delete(
        self, kind: str, namespace: str, name: str, *, uid: str = "", grace_s: int | None = None
    ) -> bool: ...

    async def delete_many(self, kind: str, namespace: str, *, labels: str) -> None: ...


Connect = Callable[[str, str, float], GatewayClient]
"""(origin, key, deadline in seconds) -> a client; tests reach gateways elsewhere than their origin says."""


def connect(origin: str, key: str, deadline_s: float) -> GatewayClient:
    """As inside the cluster: by the gateway's own name."""
    return GatewayClient(origin, key, deadline_s=deadline_s)
