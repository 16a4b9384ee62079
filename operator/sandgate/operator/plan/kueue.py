"""Types of Kueue's side of a job: its Workload as it is, as it is to be, and the steps between. (pure)"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

GATEWAYS: Final = "gateways"
ENGINES: Final = "engines"
SANDBOXES: Final = "sandboxes"
"""Names of pod sets. A verifier's pod is a sandbox: it comes after its agent's, never beside it."""

Json = Any


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaAsk:
    """What a job wants of its queue."""

    queue: str
    """A LocalQueue of the job's namespace."""
    priority_class: str = ""
    """A WorkloadPriorityClass."""
    counts: Mapping[str, int]
    """Pod set -> pods."""
    digest: str
    """Of all that its Workload says; another one is another Workload."""
    takes: str = ""
    """Of what the job itself says of its pods' size and place, without what the installation adds: pods of another size
    need another quota; who upgrades the operator stops no job that runs."""
    stopped: bool = False
    """The job's own spec.suspend: then it wants no quota."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What pods of a set get from Kueue: its flavors' nodes, what admission checks add, the size that was admitted."""

    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Json, ...] = ()
    sizes: Mapping[str, Json] = field(default_factory=dict)
    """`initContainers/NAME` or `containers/NAME` -> `resources`, as it asked for them. What the installation decides
    may be more by now, and there is no quota for that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSeen:
    """The job's Workload."""

    digest: str = ""
    """Of what it asks for, as we wrote it."""
    takes: str = ""
    """As of `QuotaAsk`; empty: an operator of before made it, and did not say."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Pod set -> pods that it asks for."""
    assigned: Mapping[str, int] = field(default_factory=dict)
    """Pod set -> pods that it was given quota for, where Kueue says so."""
    active: bool = True
    stopped: bool = False
    """It was told that its job's user suspended the job."""
    reserved: bool = False
    """It has quota."""
    admitted: bool = False
    """It has quota, and every admission check is passed."""
    evicted: str = ""
    """Why it is to give its quota back, in a word; empty: it is not."""
    finished: bool = False
    deleting: bool = False
    words: str = ""
    """What Kueue says of it."""
    reclaimable: Mapping[str, int] = field(default_factory=dict)
    """Pod set -> pods whose quota was given back for good."""
    ready: bool = False
    """Condition PodsReady is True."""
    places: Mapping[str, Placement] = field(default_factory=dict)
    """Pod set -> where its pods go; once it is admitted."""

    @property
    def may_run(self) -> bool:
        """Its pods may stand now."""
        held = self.evicted or self.finished or self.deleting
        return self.admitted and self.reserved and self.active and not held


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSeen:
    """What was seen when Kueue was last looked at."""

    workload: WorkloadSeen | None = None
    trouble: str = ""
    """Why there is no Kueue to ask, for people."""
    refused: str = ""
    """Why the Workload cannot be made, for people."""


@dataclass(frozen=True, slots=True)
class Hold:
    """The job may not run. `reason` is that of its condition Suspended."""

    reason: str
    message: str


# -- steps ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AskQuota:
    """Make the Workload, or let one without quota ask for something else."""


@dataclass(frozen=True, slots=True)
class SwitchQuota:
    """The job's spec.suspend changed: it wants no quota, or wants it again."""

    active: bool


@dataclass(frozen=True, slots=True)
class GiveBack:
    """An evicted Workload's pods are gone: say so; it is queued again."""


@dataclass(frozen=True, slots=True)
class DropWorkload:
    """It is not wanted any more, or says something else than the job does."""


@dataclass(frozen=True, slots=True)
class TellWorkload:
    """Which pods will not be needed again, and whether the job is ready."""

    reclaimable: Mapping[str, int]
    ready: bool


@dataclass(frozen=True, slots=True)
class FinishWorkload:
    """The job is over, and holds nothing."""

    succeeded: bool
    message: str


QueueStep: TypeAlias = AskQuota | SwitchQuota | GiveBack | DropWorkload | TellWorkload | FinishWorkload
