"""What one job's driver holds: the parts that its actions, its collector and its watchers share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sandgate.contract.errors import Unavailable
from sandgate.contract.job import RolloutJob, Task
from sandgate.contract.names import KEYS_PER_SECRET, group_name, keys_name, remote_verifier_name
from sandgate.gateway.client import GatewayClient
from sandgate.operator.cluster.api import Api
from sandgate.operator.cluster.gateway_monitor import GatewayMonitor
from sandgate.operator.cluster.object_store import ObjectTable, PodKept, SessionSeen
from sandgate.operator.manifests.sandbox_pods import PodDefaults
from sandgate.operator.observed.job import Observed
from sandgate.operator.plan.actions import Ref
from sandgate.operator.settings import Settings


@dataclass(slots=True)
class JobState:
    """Not for several threads."""

    kube: Api
    settings: Settings
    job: RolloutJob
    observed: Observed
    now: Callable[[], float]
    secret: bytes = b""
    """Signs the job's keys; known once gateways are provided."""
    doors: dict[str, GatewayMonitor] = field(default_factory=dict)
    tasks: dict[str, Task] = field(default_factory=dict)
    """Those that are not settled."""
    sessions: ObjectTable[SessionSeen] = field(default_factory=ObjectTable)
    agents: ObjectTable[PodKept] = field(default_factory=ObjectTable)
    """By session."""
    verifiers: ObjectTable[PodKept] = field(default_factory=ObjectTable)
    """By session."""
    keys: dict[str, None] = field(default_factory=dict)
    """Keys Secrets that were made, of groups that are not settled."""
    opened: dict[str, None] = field(default_factory=dict)
    """Live sessions that their gateway is known to hold."""
    unstopped: dict[str, None] = field(default_factory=dict)
    """Sessions that are to be stopped and whose pod was not told yet."""

    @property
    def name(self) -> str:
        return self.job.metadata.name

    @property
    def namespace(self) -> str:
        return self.job.metadata.namespace

    @property
    def look(self) -> PodDefaults:
        """What the installation decides about sandboxes."""
        settings = self.settings
        return PodDefaults(
            fetcher_image=settings.fetcher_image,
            pull_policy=settings.pull_policy,
            pull_secrets=settings.pull_secrets,
            runtime_class=settings.runtime_class,
            resources=settings.sandbox_resources,
            unreachable_seconds=settings.unreachable_seconds,
        )

    def group(self, ref: Ref) -> str:
        """Label value of its group."""
        return group_name(ref.job, ref.uid)

    def keys_of(self, ref: Ref) -> str:
        """Name of the Secret with its pods' keys."""
        if ref.called:
            return remote_verifier_name(ref.called)
        return keys_name(self.group(ref), ref.attempt, ref.sample // KEYS_PER_SECRET)

    def door_of(self, ref: Ref) -> GatewayMonitor:
        """The gateway that holds a session. Raises Unavailable if the operator does not know it (yet)."""
        seen = self.sessions.held.get(ref.name)
        gateway = seen.gateway if seen is not None else ""
        if not gateway and ref.uid in self.observed.groups:
            gateway = self.observed.gateway_of(ref.uid)
        gateway = gateway or self.observed.placed(ref.name)
        if gateway not in self.doors:
            raise Unavailable(f"{ref.name}: gateway {gateway!r} is not known")
        return self.doors[gateway]

    def client_of(self, ref: Ref) -> GatewayClient:
        """Raises Unavailable while its gateway does not answer."""
        return self.door_of(ref).client
