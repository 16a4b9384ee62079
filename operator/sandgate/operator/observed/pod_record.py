"""PodSeen: what is kept of a sandbox's pod, and what the plan is told of it. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from sys import intern
from typing import Any

from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.labels import GROUP, JOB, ROLE, SESSION
from sandgate.operator.observed.pod_failure import OVER, PodStatus, Trouble, map_of, unix
from sandgate.operator.plan.actions import Exit, Running, SideCars

Body = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class PodSeen:
    """What is kept of a pod; well below 2.5 KiB."""

    name: str
    namespace: str
    uid: str
    job: str
    session: str
    group: str
    role: str
    node: str = ""
    running: Running
    deleting: bool = False
    """It has a deletionTimestamp."""
    over: bool = False
    """No container of it runs or will run. An exit may be told before (`Running.side_cars`)."""
    waiting: str = ""
    """Why the deciding container has not started: the scheduler's or the kubelet's words."""
    again_at: float | None = None
    """Look at the same status again then: patience ends, and no event may tell. When it was understood, that was to
    come."""
    trouble: Trouble | None = None
    """What keeps it from starting; when that began is not in its status."""


def pod_seen(body: Body, now: float, before: PodSeen | None = None) -> PodSeen:
    """Understand a pod. Never raises for a pod that an API server accepted; what is absent is taken as not yet said.

    `before`: what was understood of the same pod. Its exit stands, for later statuses may tell less: a stuck pod that
    was then deleted, a deletion whose second step (grace 0) begins after the container has ended. So does the time
    since which it is in trouble.
    """
    meta = map_of(body, "metadata")
    marks = map_of(meta, "labels")
    if before is not None and before.uid != meta.get("uid"):
        before = None
    pod = PodStatus(body, now, None if before is None else before.trouble)
    exit_ = (None if before is None else before.running.exit) or pod.exit()
    waiting, again = ("", None) if exit_ is not None else pod.waiting()
    return PodSeen(
        name=str(meta.get("name", "")),
        namespace=intern(str(meta.get("namespace", ""))),
        uid=str(meta.get("uid", "")),
        job=intern(str(marks.get(JOB, ""))),
        session=str(marks.get(SESSION, "")),
        group=intern(str(marks.get(GROUP, ""))),
        role=intern(str(marks.get(ROLE, ""))),
        node=intern(str(map_of(body, "spec").get("nodeName") or "")),
        running=Running(
            unix(meta.get("creationTimestamp")) or now,
            pod.started_at,
            exit_,
            pod.placed_at,
            None if exit_ is not None or pod.began else pod.held_up(waiting),
            unplaced=exit_ is None and pod.unplaced,
            side_cars=SideCars.NONE if exit_ is None else pod.side_cars,
        ),
        deleting=pod.deleted_at is not None,
        over=pod.phase in OVER,
        waiting=waiting,
        again_at=again,
        trouble=None if exit_ is not None else pod.trouble,
    )


def pod_gone(seen: PodSeen, now: float) -> PodSeen:
    """The same pod, no longer there. Without an exit of its own somebody deleted it: infrastructure. (A DELETED event
    carries the last status: understand that first.)"""
    end = seen.running.exit or Exit(now, reason=FailureReason.EVICTED, detail="the pod was deleted")
    running = replace(seen.running, exit=end, side_cars=SideCars.NONE)
    return replace(seen, running=running, deleting=True, over=True, waiting="", again_at=None)
