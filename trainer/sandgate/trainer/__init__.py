"""What is learned from it: the user's side, from submitting jobs to exporting trajectories.

    from sandgate.trainer import RolloutClient, cluster_fleet, fleet, groups, local, prepare, submit, weight_update

Each name is loaded when it is first asked for, so that `import sandgate.trainer` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import os
    from contextlib import AbstractAsyncContextManager

    from sandgate.gateway.client import Retries
    from sandgate.trainer.client import blocking
    from sandgate.trainer.client.attach import LocalFleet
    from sandgate.trainer.client.blocking_client import RolloutClient
    from sandgate.trainer.client.cluster import ClusterPlace, submit
    from sandgate.trainer.client.fleet import AsyncFleet, cluster_fleet, fleet
    from sandgate.trainer.client.groups import Group
    from sandgate.trainer.client.rollout_client import AsyncRolloutClient
    from sandgate.trainer.client.streaming import Ahead, groups
    from sandgate.trainer.client.weight_update import weight_update
    from sandgate.trainer.credit.group_advantages import prepare

__all__ = [
    "Ahead",
    "AsyncFleet",
    "AsyncRolloutClient",
    "ClusterPlace",
    "Group",
    "Retries",
    "RolloutClient",
    "blocking",
    "cluster_fleet",
    "fleet",
    "groups",
    "local",
    "prepare",
    "submit",
    "weight_update",
]

_HOMES = {
    "Ahead": "streaming",
    "AsyncFleet": "fleet",
    "AsyncRolloutClient": "rollout_client",
    "ClusterPlace": "cluster",
    "Group": "groups",
    "RolloutClient": "blocking_client",
    "cluster_fleet": "fleet",
    "fleet": "fleet",
    "groups": "streaming",
    "submit": "cluster",
    "weight_update": "weight_update",
}


def __getattr__(name: str) -> Any:
    """PEP 562: `name` from its module, loaded now. `blocking` is a module: the same for programs without a loop."""
    if name == "blocking":
        return import_module("sandgate.trainer.client.blocking")
    if name == "Retries":
        return import_module("sandgate.gateway.client").Retries
    if name == "prepare":
        return import_module("sandgate.trainer.credit.group_advantages").prepare
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"sandgate.trainer.client.{_HOMES[name]}"), name)


def local(out: str | os.PathLike[str], **options: Any) -> AbstractAsyncContextManager[LocalFleet]:
    """Attach to a run of this machine: `sandgate run JOB.yaml --out OUT`. See `client.attach.attach`."""
    from sandgate.trainer.client.attach import attach  # loads the client

    return attach(out, **options)
