"""Slim records of AgentSessions and pods; late and repeated news of an object change nothing. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Protocol, TypeVar

from sandgate.contract.agent_session import AgentSession, AgentSessionSpec
from sandgate.contract.errors import BadManifest
from sandgate.contract.labels import GROUP
from sandgate.contract.manifest_decoder import decode
from sandgate.contract.names import API_VERSION
from sandgate.contract.status import AgentSessionStatus, ConditionStatus, SessionCondition
from sandgate.operator.manifests import gateway_in
from sandgate.operator.observed.pod_record import PodSeen, pod_seen
from sandgate.operator.plan.actions import Ref, Told

Body = Mapping[str, Any]


def text_of(body: Body, *path: str) -> str:
    """A text deep inside; empty where there is none."""
    value: Any = body
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value if isinstance(value, str) else ""


def version_of(body: Body) -> int:
    """Its resourceVersion; since Kubernetes 1.35 larger is newer by contract, before it was so in fact."""
    text = text_of(body, "metadata", "resourceVersion")
    return int(text) if text.isascii() and text.isdigit() else 0


def owner_uid(body: Body) -> str:
    """Uid of the object's controller."""
    metadata = body.get("metadata")
    owners = metadata.get("ownerReferences") if isinstance(metadata, Mapping) else None
    for one in owners if isinstance(owners, list) else ():
        if isinstance(one, Mapping) and one.get("controller"):
            return str(one.get("uid") or "")
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSeen:
    """An AgentSession."""

    name: str
    uid: str
    version: int
    spec: AgentSessionSpec
    status: AgentSessionStatus
    """As last written, by us or by an operator before us."""
    owner: str = ""
    """Uid of its RolloutJob; empty for one that a person applied."""
    group: str = ""
    deleting: bool = False

    @property
    def ref(self) -> Ref:
        """Which attempt it is."""
        spec = self.spec
        called = self.name if spec.remote else ""
        return Ref(spec.job_name, spec.task_uid, spec.sample_index, spec.attempt, called)

    @property
    def gateway(self) -> str:
        """Where it is. A remote one need not name it: its address, written once it is open, does."""
        if self.spec.remote:
            return gateway_in(self.status.base_url)
        return self.spec.gateway

    def is_true(self, kind: SessionCondition) -> bool:
        """Is that condition True?"""
        return any(one.type == kind and one.status is ConditionStatus.TRUE for one in self.status.conditions)

    @property
    def told(self) -> Told:
        """How far its status is."""
        if self.is_true(SessionCondition.TRAJECTORY_COMMITTED):
            return Told.COMMITTED
        if any(one.type == SessionCondition.FINALIZED for one in self.status.conditions):
            return Told.FINALIZED
        return Told.RUNNING if self.is_true(SessionCondition.SCHEDULED) else Told.NOTHING


def session_seen(body: Body) -> SessionSeen | None:
    """None for one whose spec says nothing that we understand (an older CRD, a newer operator)."""
    try:
        spec = decode(AgentSessionSpec, body.get("spec"), ignore_unknown=True)
    except BadManifest:
        return None
    try:
        status = decode(AgentSessionStatus, body.get("status") or {}, ignore_unknown=True)
    except BadManifest:
        status = AgentSessionStatus()
    return SessionSeen(
        name=text_of(body, "metadata", "name"),
        uid=text_of(body, "metadata", "uid"),
        version=version_of(body),
        spec=spec,
        status=status,
        owner=owner_uid(body),
        group=text_of(body, "metadata", "labels", GROUP),
        deleting=bool(text_of(body, "metadata", "deletionTimestamp")),
    )


def controller(seen: SessionSeen) -> dict[str, Any]:
    """ownerReference of what goes with an AgentSession."""
    return {
        "apiVersion": API_VERSION,
        "kind": AgentSession.KIND,
        "name": seen.name,
        "uid": seen.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


@dataclass(frozen=True, slots=True)
class PodKept:
    """A pod of a session."""

    version: int
    seen: PodSeen
    owner: str = ""
    """Uid of its AgentSession."""

    @property
    def uid(self) -> str:
        return self.seen.uid

    def is_of(self, session: SessionSeen | None) -> bool:
        """Not where it is left from a session of the same name: of a job that was deleted and applied again, whose
        objects go one after the other."""
        return session is None or not self.owner or self.owner == session.uid


def pod_kept(body: Body, now: float, before: PodKept | None = None) -> PodKept:
    """Never raises. `before`: what is held under its name."""
    known = None if before is None else before.seen
    return PodKept(version_of(body), pod_seen(body, now, known), owner_uid(body))


class Versioned(Protocol):
    """What a table holds."""

    @property
    def uid(self) -> str: ...

    @property
    def version(self) -> int: ...


T = TypeVar("T", bound=Versioned)


@dataclass(slots=True)
class ObjectTable(Generic[T]):
    """Objects of one kind of one job, by name."""

    held: dict[str, T] = field(default_factory=dict)
    buried: dict[str, None] = field(default_factory=dict)
    """Uids of what is gone, so that news which were late do not bring it back; the newest BURIED_MAX."""

    def put(self, name: str, one: T) -> bool:
        """True if it is news: not older than what is held, and not of an object that is gone."""
        if one.uid in self.buried:
            return False
        before = self.held.get(name)
        if before is not None and before.uid == one.uid and 0 < one.version <= before.version:
            return False
        if before is not None and before.uid != one.uid and one.version < before.version:
            return False
        self.held[name] = one
        return True

    def pop(self, name: str, uid: str) -> T | None:
        """It is gone; None if that was known, or if another object has its name by now."""
        if uid:
            self.buried[uid] = None
            while len(self.buried) > BURIED_MAX:
                del self.buried[next(iter(self.buried))]
        before = self.held.get(name)
        if before is None or (uid and before.uid != uid):
            return None
        return self.held.pop(name)

    def uids(self) -> dict[str, str]:
        """Name -> uid of all that is held now."""
        return {name: one.uid for name, one in self.held.items()}


BURIED_MAX = 10_000
"""A watch that lags further behind is restarted by a list."""


def slim(seen: SessionSeen) -> SessionSeen:
    """Of one that nothing will be written to any more."""
    kept = (SessionCondition.FINALIZED, SessionCondition.TRAJECTORY_COMMITTED)
    last = tuple(one for one in seen.status.conditions if one.type in kept)
    return replace(
        seen, status=AgentSessionStatus(conditions=last, failure_reason=seen.status.failure_reason)
    )
