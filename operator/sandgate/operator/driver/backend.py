"""Interfaces between a job's driver and the place where the job runs: sandboxes, gateways, objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from sandgate.contract.job import Task
from sandgate.contract.session import SessionHandle, SessionOutcome, SessionSpec, SessionSummary
from sandgate.contract.status import RolloutJobStatus
from sandgate.contract.trajectory import Json
from sandgate.operator.plan.actions import Exit, Outage, Provided, Ref, SessionObserved
from sandgate.operator.plan.kueue import QueueStep


class SandboxBackend(Protocol):
    """Where agents and verifiers run: processes, pods. Every call is idempotent, and raises what passes by itself; how
    a program starts and ends is told to the store by the backend, when it sees it."""

    async def prepare(self, ref: Ref, gateway: str) -> str:
        """Whatever must be there before the gateway is told of a session; the gateway that it is bound to, which an
        earlier driver may have chosen otherwise."""

    @property
    def task_chars_max(self) -> int | None:
        """See `session_spec`."""

    def metadata(self, task: Task) -> Mapping[str, Json]:
        """What a session's record says beside."""

    def opened(self, ref: Ref, handle: SessionHandle) -> None:
        """Its gateway holds it now."""

    def refused(self, ref: Ref, why: str) -> None:
        """Its gateway does not take it, and says this. It is tried again."""

    async def start(self, ref: Ref, task: Task) -> None:
        """Run the agent. One that can never start is a fact for the store, no error."""

    async def stop(self, ref: Ref) -> None:
        """Politely, then by force. The store knows why."""

    async def kill(self, ref: Ref) -> None:
        """At once."""

    async def start_verifier(self, ref: Ref, task: Task, end: Exit | None) -> None:
        """Run the verifier on what the agent left at its `end`; None for an agent elsewhere."""

    async def stop_verifier(self, ref: Ref) -> None:
        """As `stop`."""

    async def kill_verifier(self, ref: Ref) -> None:
        """As `kill`."""

    async def forget(self, ref: Ref) -> None:
        """Nothing of it is needed any more."""


class SessionClient(Protocol):
    """Of a gateway's client, what a driver calls."""

    async def create(self, spec: SessionSpec) -> SessionHandle: ...
    async def get(self, session_id: str) -> SessionSummary: ...
    async def finalize(self, session_id: str, outcome: SessionOutcome) -> None: ...
    async def abort(self, session_id: str) -> None: ...
    async def close_group(self, uid: str, *, job: str = "") -> None: ...


class Gateways(Protocol):
    """The job's gateways, by name."""

    def client(self, gateway: str) -> SessionClient:
        """Raises Unavailable for one that is away, or not known (yet)."""

    def gateway_of(self, ref: Ref) -> str:
        """Where a session is. Raises Unavailable if that is not known (yet)."""

    async def absence(self, gateway: str, now: float) -> Outage | None:
        """Whether it was away lately, and nobody told so yet."""


class JobWatcher(Protocol):
    """Who else is told of a job's progress."""

    def stands(self, gateway: str, said: SessionSummary) -> None:
        """How a session stands; before the store is told, which may settle its group by it."""

    def sealed(self, seen: SessionObserved, said: SessionSummary, outcome: SessionOutcome) -> None:
        """An attempt is over."""

    def wrote(self, status: RolloutJobStatus) -> None:
        """The job's status is this now."""


class JobObjects(Protocol):
    """What only a cluster has: the job's own objects, and those of its sessions."""

    async def open_remote(self, ref: Ref, gateway: str) -> None: ...
    async def hold_remote(self, ref: Ref, why: str, *, final: bool) -> None: ...
    async def write_session(self, ref: Ref) -> None: ...
    async def provide(self, what: Provided) -> None: ...
    async def tend_workload(self, step: QueueStep) -> None: ...
    async def delete_job(self) -> None: ...
