"""ToldVersions: policy versions that the trainer told gateways. One that lost its journal is told again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True, order=True)
class PolicyTold:
    """What the trainer said its weights are."""

    version: int
    adapter: str = ""
    labelled: bool = False


@dataclass(slots=True)
class ToldVersions:
    """Of the gateways of one job, since this operator knows it.

    Without it, a gateway on an empty journal would record the tokens of engines without labels as of version 0 until
    the next weight update, and have them sampled by the weights below a LoRA adapter."""

    _told: dict[str, PolicyTold] = field(default_factory=dict)
    """Gateway -> what it was told last, be it before it lost its journal."""

    def owed(self, gateway: str, status: Mapping[str, Any]) -> PolicyTold | None:
        """What a gateway with this GET /v1/status should be told: what the job's gateways were, if it was told
        nothing. (A gateway of a release before does not say so.)"""
        if not status.get("version_told", True):
            return max(self._told.values(), default=None)
        version, adapter = int(status.get("policy_version") or 0), str(status.get("adapter") or "")
        self._told[gateway] = PolicyTold(version, adapter, bool(status.get("labelled")))
        return None
