"""Which of verl's servers takes a generation: prefix first, load second, within a bound.

verl's own balancer knows request ids alone: each is new at the least busy server, and stays there. With ids of a group
and a session that is a session's affinity, so that 32 samples of one prompt spread over the servers. `GroupRouter`
keeps a group's samples together as far as its bound allows, so that their prompt is prefilled at fewer servers:

    actor_rollout_ref.rollout.router_config_path: router.yaml
    # router.yaml
    router_class: sandgate.trainer.verl.GroupRouter
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from math import ceil
from typing import Any

BETWEEN = "\x1f"
"""Of group and session in a request id."""
SLACK = 1.25
"""A server takes a group's next session while it has at most so many times the mean of what runs."""
HOMES_MAX = 20_000
"""Sessions, and groups, whose servers are remembered."""


def sticky_id(group: str, session: str) -> str:
    """A request id that says both; empty if neither is known."""
    return f"{group}{BETWEEN}{session}" if group and session else session or group


def choose(
    loads: Mapping[str, int], mine: str | None, group: Iterable[str] = (), *, slack: float = SLACK
) -> str:
    """The server of one more generation. `loads`: what runs at each that may be chosen; at least one. `mine`: where the
    session's history is; `group`: where its group's prompt is. No server gets a new session while it has more than
    `slack` times the mean, and one besides. (pure)"""
    if mine is not None and mine in loads:
        return mine
    bound = ceil(slack * (sum(loads.values()) + 1) / len(loads))
    near = [name for name in group if name in loads and loads[name] < bound]
    return min(near or loads, key=lambda name: loads[name])


class GroupRouter:
    """One of verl's load balancers (`RequestLoadBalancer`), chosen by `rollout.router_config_path`."""

    def __init__(self, servers: Mapping[str, Any], config: Mapping[str, Any] | None = None) -> None:
        """`config`: the YAML; `slack` in it is the bound's, at least 1. Raises ValueError."""
        self.slack = float((config or {}).get("slack", SLACK))
        if not self.slack >= 1.0:
            raise ValueError(f"slack: must be at least 1, not {self.slack:g}")
        self._servers = dict(servers)
        self._loads = dict.fromkeys(servers, 0)
        self._sessions: OrderedDict[str, str] = OrderedDict()
        self._groups: OrderedDict[str, dict[str, None]] = OrderedDict()

    def acquire_server(self, request_id: str) -> tuple[str, Any]:
        """(name, handle). Raises RuntimeError, as verl's own does, if there is no server."""
        if not self._loads:
            raise RuntimeError("No available servers in load balancer")
        group = request_id.partition(BETWEEN)[0]
        near = self._groups.setdefault(group, {})
        chosen = choose(self._loads, self._sessions.get(request_id), near, slack=self.slack)
        near[chosen] = None
        self._sessions[request_id] = chosen
        self._sessions.move_to_end(request_id)
        self._groups.move_to_end(group)
        for known in (self._sessions, self._groups):
            if len(known) > HOMES_MAX:
                known.popitem(last=False)
        self._loads[chosen] += 1
        return chosen, self._servers[chosen]

    def release_server(self, server_id: str, request_id: str | None = None) -> None:
        """A generation ended."""
        if self._loads.get(server_id, 0) > 0:
            self._loads[server_id] -= 1

    def require_acquire_fields(self) -> list[str]:
        """The request id says all."""
        return []

    def require_release_fields(self) -> list[str]:
        """The server's name says all."""
        return []

    def add_servers(self, servers: Mapping[str, Any]) -> None:
        """More of them."""
        for name, handle in servers.items():
            self._servers[name] = handle
            self._loads[name] = 0

    def remove_servers(self, server_ids: Iterable[str]) -> None:
        """Their sessions move with their next turns."""
        for name in server_ids:
            self._servers.pop(name, None)
            self._loads.pop(name, None)

    def get_all_servers(self) -> list[str]:
        """Names."""
        return list(self._loads)

    def get_inflight_count(self, server_id: str) -> int:
        """What runs there."""
        return self._loads.get(server_id, 0)

    def get_total_inflight(self) -> int:
        """What runs in all."""
        return sum(self._loads.values())

    def get_status(self) -> dict[str, Any]:
        """As verl's own tells it."""
        return {
            "servers": dict(self._loads),
            "total_inflight": self.get_total_inflight(),
            "active_servers": len(self._loads),
            "registered_handles": list(self._servers),
        }

    def clear_sticky_cache(self) -> dict[str, Any]:
        """Every session is placed anew: its weights changed, and with them what is cached."""
        cleared = len(self._sessions)
        self._sessions.clear()
        self._groups.clear()
        return {"cleared_entries": cleared, "server_loads": dict(self._loads)}
