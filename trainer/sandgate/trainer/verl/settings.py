"""Settings of `agent_framework` that are more than a word: checked by name before anything starts. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, get_args

from sandgate.contract.session import finite
from sandgate.gateway.config import Limits, SessionLimits
from sandgate.trainer.credit.reasons import Truncated

WHERE = "agent_framework"
OPTIONS = frozenset(
    {
        "num_cpus", "memory", "resources", "scheduling_strategy", "label_selector", "runtime_env", "max_restarts",
        "max_task_retries", "max_concurrency", "num_gpus", "accelerator_type", "namespace", "enable_task_events",
    }
)  # fmt: skip
"""Of Ray's options of an actor, those that say where a gateway runs and what it may take. The others (name, lifetime)
would make actors that outlive their trainer, or of which there can be only one."""
LOGPROBS = ("processed_logprobs", "raw_logprobs")
"""Modes of vLLM whose numbers are logprobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayActors:
    """Where gateways run, and what they take."""

    host: str = ""
    """What agents reach a gateway's node by; empty: the node's address in Ray."""
    options: dict[str, Any] = field(default_factory=dict)
    """Ray's, of each actor."""
    limits: dict[str, Any] = field(default_factory=dict)
    """Of each gateway process: `limits` of its configuration (docs/reference/gateway.md)."""
    session_limits: dict[str, Any] = field(default_factory=dict)
    """Of each session."""


def gateway_actors(section: Mapping[str, Any]) -> GatewayActors:
    """Raises ValueError naming the key that is unknown or of the wrong type."""
    host = section.get("gateway_host")
    if host is not None and not isinstance(host, str):
        raise ValueError(f"{WHERE}.gateway_host must be a string, not {host!r}")
    return GatewayActors(
        host=host or "",
        options=_known(section, "gateway_options", OPTIONS),
        limits=_known(section, "gateway_limits", frozenset(Limits.__struct_fields__)),
        session_limits=_known(section, "session_limits", frozenset(SessionLimits.__struct_fields__)),
    )


def _known(section: Mapping[str, Any], name: str, keys: frozenset[str]) -> dict[str, Any]:
    given = section.get(name)
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ValueError(f"{WHERE}.{name} must be a mapping, not {given!r}")
    if unknown := set(given) - keys:
        raise ValueError(f"{WHERE}.{name}.{min(unknown)}: no such key; there are {', '.join(sorted(keys))}")
    return dict(given)


def truncated_of(section: Mapping[str, Any], where: str = WHERE) -> Truncated:
    """Raises ValueError."""
    said = section.get("truncated") or "score"
    if said not in get_args(Truncated):
        raise ValueError(f"{where}.truncated must be score or mask, not {said!r}")
    return "mask" if said == "mask" else "score"


def reward_of(section: Mapping[str, Any], where: str = WHERE) -> float:
    """Raises ValueError."""
    said = section.get("truncated_reward")
    found = 0.0 if said is None else finite(said)
    if found is None:
        raise ValueError(f"{where}.truncated_reward must be a finite number, not {said!r}")
    return found


def logprobs_mode_of(rollout: Any) -> str:
    """The engine's own, as verl starts it. Raises ValueError for one whose numbers are no logprobs."""
    mode = str(rollout.get("logprobs_mode") or LOGPROBS[0])
    if mode not in LOGPROBS:
        raise ValueError(
            f"actor_rollout_ref.rollout.logprobs_mode: {mode} are no logprobs; make it {' or '.join(LOGPROBS)}"
        )
    return mode
