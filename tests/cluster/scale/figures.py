"""What a job cost: the API server's audit log, counted, and what its processes used."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

Event = Mapping[str, Any]

READS = ("get", "list", "watch")


@dataclass(frozen=True)
class Figures:
    """Of one job; times in seconds."""

    sessions: int
    """That have a pod."""
    writes: Counter[str]
    """By `verb resource[/subresource]`: everything that the operator asked for, its Lease too, and what was refused."""
    wait_s: tuple[float, ...]
    """From AgentSession to pod, in order: from the one's existence to the other's."""
    begun: tuple[float, ...]
    """When pods were there, in order."""
    began: float
    """When the first AgentSession was asked for."""
    ended: float
    """When the last status was written."""

    @property
    def writes_per_session(self) -> float:
        return self.writes.total() / self.sessions

    @property
    def rate(self) -> float:
        """Sessions a second, from the first AgentSession to the last commit."""
        return self.sessions / (self.ended - self.began)

    @property
    def steady(self) -> float:
        """Pods a second, without the first and the last tenth of them."""
        first, last = len(self.begun) // 10, len(self.begun) * 9 // 10
        return (last - first) / (self.begun[last] - self.begun[first])

    def wait(self, share: float) -> float:
        """A quantile of `wait_s`."""
        return quantile(self.wait_s, share)


def quantile(ordered: tuple[float, ...], share: float) -> float:
    """The smallest that `share` of them do not exceed."""
    return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)]


def figures(events: Iterable[Event], user: str) -> Figures:
    """Of the audit log's events of one job and of nothing else."""
    writes: Counter[str] = Counter()
    made: dict[str, float] = {}
    pods: dict[str, float] = {}
    asked: list[float] = []
    told: list[float] = []
    for event in events:
        if event["user"].get("username") != user or event["verb"] in READS:
            continue
        ref, at = event["objectRef"], seconds(event["stageTimestamp"])
        what = "/".join(filter(None, (ref["resource"], ref.get("subresource"))))
        writes[f"{event['verb']} {what}"] += 1
        if event["responseStatus"]["code"] >= 400:
            continue
        match event["verb"], what:
            case "create", "agentsessions":
                made[ref["name"]] = at
                asked.append(seconds(event["requestReceivedTimestamp"]))
            case "create", "pods":
                pods[ref["name"]] = at
            case "patch", "agentsessions/status":
                told.append(at)
    waits = tuple(sorted(at - made[name] for name, at in pods.items()))
    return Figures(len(pods), writes, waits, tuple(sorted(pods.values())), min(asked), max(told))


def seconds(text: str) -> float:
    """Unix time of a timestamp with microseconds."""
    return datetime.fromisoformat(text).timestamp()
