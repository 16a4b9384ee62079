"""What the statuses of a job's gateways say together. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sandgate.contract.trajectory import Json

Statuses = Mapping[str, dict[str, Json] | BaseException]
"""Gateway -> its GET /v1/status, or why it did not answer."""


@dataclass(frozen=True, slots=True)
class Progress:
    """Sums over a job's gateways, now."""

    gateways: int
    away: tuple[str, ...]
    """Gateways that do not answer; they are in no sum."""
    paused: tuple[str, ...]
    """Gateways on hold. Outside of a weight update: left so by a trainer that died in one; make the update again."""
    sessions: int
    """That the gateways hold, ended ones included."""
    sessions_open: int
    generations: int
    """In the engines, for these gateways."""
    tasks_waiting: int
    """Pushed, and not finished."""
    policy_version: int
    """The newest that a gateway was told."""


def progress_of(said: Statuses) -> Progress:
    """Sums over the gateways that answered; the others are named."""
    here = answered(said)

    def total(*path: str) -> int:
        return sum(int(one[path[0]] if len(path) == 1 else one[path[0]][path[1]]) for one in here.values())

    return Progress(
        gateways=len(said),
        away=tuple(name for name in said if name not in here),
        paused=tuple(name for name, one in here.items() if one["paused"]),
        sessions=total("sessions"),
        sessions_open=total("sessions_open"),
        generations=sum(engine["in_flight"] for one in here.values() for engine in one["engines"]),
        tasks_waiting=total("tasks", "held"),
        policy_version=max((int(one["policy_version"]) for one in here.values()), default=0),
    )


def without_weights(said: Statuses) -> tuple[str, ...]:
    """URLs of engines that a gateway does not use before the weight update is made again."""
    listed = [engine for one in answered(said).values() for engine in one["engines"]]
    return tuple(sorted({str(one["url"]) for one in listed if one.get("unlabelled")}))


def answered(said: Statuses) -> dict[str, dict[str, Json]]:
    """The statuses that came."""
    return {name: one for name, one in said.items() if isinstance(one, dict)}
