"""JobState: what the parts of one job's driver in a cluster share: gateways, objects, pods, keys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sandgate.contract.errors import Unavailable
from sandgate.contract.failure_reasons import FailureReason
from sandgate.contract.names import KEYS_PER_SECRET, gateway_name, group_name, keys_name, remote_verifier_name
from sandgate.gateway.client import GatewayClient
from sandgate.operator.cluster.api import Api
from sandgate.operator.cluster.gateway_monitor import GatewayMonitor
from sandgate.operator.cluster.object_store import ObjectTable, PodKept, SessionSeen
from sandgate.operator.driver.journal_outages import JournalOutages
from sandgate.operator.driver.state import DriverState
from sandgate.operator.manifests import agents_origin, gateway_origin
from sandgate.operator.manifests.sandbox_pods import PodDefaults
from sandgate.operator.plan.actions import Outage, Ref
from sandgate.operator.plan.kueue import Placement
from sandgate.operator.settings import Settings


@dataclass(slots=True, kw_only=True)
class JobState(DriverState):
    """In a cluster. It knows the job's gateways (`driver.backend.Gateways`)."""

    kube: Api
    settings: Settings
    secret: bytes = b""
    """Signs the job's keys; known while gateways are provided."""
    monitors: dict[str, GatewayMonitor] = field(default_factory=dict)
    sessions: ObjectTable[SessionSeen] = field(default_factory=ObjectTable)
    agents: ObjectTable[PodKept] = field(default_factory=ObjectTable)
    """By session."""
    verifiers: ObjectTable[PodKept] = field(default_factory=ObjectTable)
    """By session."""
    keys: dict[str, float] = field(default_factory=dict)
    """Keys Secrets that were made, of groups that are not settled -> when their keys expire, in unix seconds; 0.0 where
    an operator before this one made them."""
    rebuilding: bool = False
    """What is observed is being replaced: no session is opened, because it might be in neither."""

    journals: JournalOutages = field(init=False)

    def __post_init__(self) -> None:
        self.journals = JournalOutages(self)

    def signed(self, secret: bytes) -> None:
        """What signs keys from now on; empty without gateways. Nobody holds it then: what stands in the Secret when
        they come back counts, be it another, and keys that were made are looked at again."""
        if not secret:
            self.keys = dict.fromkeys(self.keys, 0.0)
        self.secret = secret

    @property
    def name(self) -> str:
        return self.job.metadata.name

    @property
    def namespace(self) -> str:
        return self.job.metadata.namespace

    @property
    def look(self) -> PodDefaults:
        """What the installation decides about sandboxes."""
        return PodDefaults.of(self.settings)

    @property
    def places(self) -> Mapping[str, Placement]:
        """Pod set -> where Kueue wants its pods."""
        queue = self.observed.queue
        return {} if queue is None or queue.workload is None else queue.workload.places

    def group(self, ref: Ref) -> str:
        """Label value of its group."""
        return group_name(ref.job, ref.uid)

    def keys_of(self, ref: Ref) -> str:
        """Name of the Secret with its pods' keys."""
        if ref.called:
            return remote_verifier_name(ref.called)
        return keys_name(self.group(ref), ref.attempt, ref.sample // KEYS_PER_SECRET)

    def client(self, gateway: str) -> GatewayClient:
        """Raises Unavailable for one that is not known (yet), or does not answer."""
        return self._monitor(gateway).client

    def gateway_of(self, ref: Ref) -> str:
        """The gateway that holds a session. Raises Unavailable if the operator does not know it (yet)."""
        return self._monitor(self._holder(ref)).name

    def origin_of(self, ref: Ref) -> str:
        """What its agent reaches that gateway by, whether it stands now or was scaled to nothing. Raises Unavailable
        likewise."""
        name = self._holder(ref)
        if ref.called:
            return self.agents_origin(name)
        return gateway_origin(self.name, self._index(name), self.job.metadata.namespace, self.settings)

    def agents_origin(self, gateway: str) -> str:
        """What an agent that runs elsewhere reaches it by. Raises Unavailable for one that the job has not."""
        return agents_origin(self.job, self._index(gateway), self.settings)

    def _index(self, gateway: str) -> int:
        for index in range(self.job.spec.gateway.replicas):
            if gateway_name(self.name, index) == gateway:
                return index
        raise Unavailable(f"gateway {gateway!r} is not known")

    def _holder(self, ref: Ref) -> str:
        seen = self.sessions.held.get(ref.name)
        gateway = seen.gateway if seen is not None else ""
        if not gateway and ref.uid in self.observed.groups:
            gateway = self.observed.gateway_of(ref.uid)
        return gateway or self.observed.placed.get(ref.name, "")

    async def absence(self, gateway: str, now: float) -> Outage | None:
        """It restarted, and its long poll has not told so yet; or it cannot write."""
        monitor = self._monitor(gateway)
        status, same_life = await monitor.status()
        self.journals.heard(gateway, status)
        if (broken := self.journals.outages.get(gateway)) is not None:
            return broken
        if same_life:
            return None
        return Outage(monitor.heard_at, now, FailureReason.GATEWAY_LOST)

    def _monitor(self, gateway: str) -> GatewayMonitor:
        if gateway not in self.monitors:
            raise Unavailable(f"gateway {gateway!r} is not known")
        return self.monitors[gateway]
